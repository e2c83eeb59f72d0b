"""What a sentence-transformers folder adds to a checkpoint: pooling, normalisation, and its own maximal length.

Such a folder holds `modules.json`, a list of stages: Transformer (the checkpoint), Pooling, sometimes Normalize.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MODULES_FILE = "modules.json"
_POOLINGS = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}


def checkpoint_directory(directory: Path) -> Path:
    """Where the checkpoint lies: the folder of the Transformer module, or `directory` itself in any other layout.

    Raises:
        ValueError: when `modules.json` is broken or does not start with a Transformer.
    """
    modules = _modules(directory)
    if not modules:
        return directory
    kind, path = modules[0]
    if kind != "Transformer":
        raise ValueError(f"`{directory / MODULES_FILE}` starts with a module `{kind}`; expected `Transformer`")
    return path


def embedding_settings(directory: Path) -> dict[str, Any]:
    """Fields of `EmbeddingSettings` that the folder prescribes; empty in any other layout.

    Raises:
        ValueError: naming the module or pooling that is not supported.
    """
    settings: dict[str, Any] = {}
    modules = _modules(directory)
    for kind, path in modules[1:]:
        if kind == "Pooling":
            settings["pooling"] = _pooling(path / "config.json")
        elif kind == "Normalize":
            settings["normalize"] = True
        else:
            raise ValueError(f"unsupported module in `{directory / MODULES_FILE}`: `{kind}`")
    if modules and "pooling" not in settings:
        raise ValueError(f"`{directory / MODULES_FILE}` has no module `Pooling`")
    config_path = checkpoint_directory(directory) / "sentence_bert_config.json"
    if modules and config_path.is_file() and (length := _read_json(config_path).get("max_seq_length")):
        settings["max_seq_length"] = length
    return settings


def _modules(directory: Path) -> list[tuple[str, Path]]:
    """Kind and folder of each module, in order."""
    path = directory / MODULES_FILE
    if not path.is_file():
        return []
    try:
        return [(item["type"].rpartition(".")[2], directory / item["path"]) for item in _read_json(path)]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"`{path}` must be a list of modules, each with `type` and `path`") from error


def _pooling(path: Path) -> str:
    if not path.is_file():
        raise ValueError(f"missing file: `{path}`")
    modes = [key for key, value in _read_json(path).items() if key.startswith("pooling_mode") and value]
    if len(modes) != 1 or modes[0] not in _POOLINGS:
        raise ValueError(
            f"unsupported pooling in `{path}`: `{', '.join(modes) or 'none'}` (one of: {', '.join(_POOLINGS)})"
        )
    return _POOLINGS[modes[0]]


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"broken JSON in `{path}`: {error}") from error
