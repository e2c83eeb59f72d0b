"""Read pooling, normalisation and maximum length from a sentence-transformers folder.

Such a folder contains `modules.json`, a list of stages: Transformer (the checkpoint), Pooling, sometimes Normalize.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tasks.json_files import read_flag, read_json, read_json_value
from tasks.tokenizer import Tokenizer

MODULES_FILE = "modules.json"
_POOLINGS = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}


def checkpoint_directory(directory: Path) -> Path:
    """Return the folder of the Transformer module, or `directory` itself for any other layout.

    Raises:
        ValueError: if `modules.json` is broken or does not start with a Transformer.
    """
    modules = _modules(directory)
    if not modules:
        return directory
    kind, path = modules[0]
    if kind != "Transformer":
        raise ValueError(f"`{directory / MODULES_FILE}` starts with a module `{kind}`; expected `Transformer`")
    return path


def embedding_settings(directory: Path, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the fields of `EmbeddingSettings` that the folder prescribes; empty for any other layout.

    Raises:
        ValueError: naming the module, pooling or preprocessing that is not supported.
    """
    settings: dict[str, Any] = {}
    if not (modules := _modules(directory)):
        return settings
    for kind, path in modules[1:]:
        if kind == "Pooling":
            settings["pooling"] = _pooling(path / "config.json")
        elif kind == "Normalize":
            settings["normalize"] = True
        else:
            raise ValueError(f"unsupported module in `{directory / MODULES_FILE}`: `{kind}`")
    if "pooling" not in settings:
        raise ValueError(f"`{directory / MODULES_FILE}` has no module `Pooling`")
    _refuse_prompt(directory / "config_sentence_transformers.json")
    path = checkpoint_directory(directory) / "sentence_bert_config.json"
    if path.is_file():
        config = read_json(path)
        if read_flag(config, "do_lower_case", path) and not tokenizer.lowercases:
            raise ValueError(
                f"`{path}` sets do_lower_case, but its tokenizer does not; set it to false, and lowercase texts before"
            )
        if length := config.get("max_seq_length"):
            settings["max_seq_length"] = length
    return settings


def _refuse_prompt(path: Path) -> None:
    """Raise if sentence-transformers would put a prompt before each text, as Bertline adds none."""
    config = read_json(path) if path.is_file() else {}
    name, prompts = config.get("default_prompt_name"), config.get("prompts")
    if name is not None and not (isinstance(prompts, dict) and prompts.get(str(name)) == ""):
        raise ValueError(
            f"unsupported default_prompt_name `{name}` in `{path}`; set it to null, and put the prompt before texts"
        )


def _modules(directory: Path) -> list[tuple[str, Path]]:
    """Return kind and folder of each module, in order."""
    path = directory / MODULES_FILE
    if not path.is_file():
        return []
    try:
        modules = [(item["type"].rpartition(".")[2], directory / item["path"]) for item in read_json_value(path)]
    except (KeyError, TypeError, AttributeError):
        modules = []
    if not modules:
        raise ValueError(f"`{path}` must be a list of modules, each with `type` and `path`")
    return modules


def _pooling(path: Path) -> str:
    if not path.is_file():
        raise ValueError(f"missing file: `{path}`")
    config = {"pooling_mode_mean_tokens": True} | read_json(path)  # the default is true
    if not read_flag(config, "include_prompt", path, default=True):
        raise ValueError(
            f"unsupported include_prompt `false` in `{path}`; set it to true, and give texts without prompts"
        )
    modes = [key for key in config if key.startswith("pooling_mode") and read_flag(config, key, path)]
    if len(modes) != 1 or modes[0] not in _POOLINGS:
        raise ValueError(
            f"unsupported pooling in `{path}`: `{', '.join(modes) or 'none'}` (one of: {', '.join(_POOLINGS)})"
        )
    return _POOLINGS[modes[0]]
