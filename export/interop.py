"""Files that let Optimum and the ONNX backend of sentence-transformers load a model directory.

Both pool `last_hidden_state` themselves. An embedding graph has already pooled, so it outputs its vector there as the
only token, and the files ask for [CLS] pooling.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from export.source import Source
from tasks.base import TaskSettings
from tasks.classification import ClassificationSettings
from tasks.embedding import EmbeddingSettings
from tasks.regression import RegressionSettings
from tasks.text.json_files import read_json
from training.checkpoint.reader import CONFIG_FILE, label_values
from training.checkpoint.sentence_transformers import LENGTH_FILES, MODEL_CONFIG_FILE, MODULES_FILE
from training.checkpoint.writer import model_values, with_activation

_COPIED = (CONFIG_FILE, "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")
_POOLING = "1_Pooling"
INTEROP_FILES = (
    *(*_COPIED, MODULES_FILE, LENGTH_FILES[0]),
    *(MODEL_CONFIG_FILE, _POOLING, f"{_POOLING}/{CONFIG_FILE}"),
)
"""All files and folders that may be written."""


def write_interop_files(directory: Path, source: Source, hidden_size: int) -> None:
    """Write the files next to graph and tokenizer."""
    for name in _COPIED:
        if (source.directory / name).is_file():
            shutil.copyfile(source.directory / name, directory / name)
    settings, path = source.task.settings, directory / CONFIG_FILE
    _write(path, with_settings(read_json(path), settings))
    if not isinstance(settings, EmbeddingSettings):
        return
    kinds = {"": "Transformer", _POOLING: "Pooling"}
    modules = [
        {"idx": index, "name": str(index), "path": folder, "type": f"sentence_transformers.models.{kind}"}
        for index, (folder, kind) in enumerate(kinds.items())
    ]
    _write(directory / MODULES_FILE, modules)
    (directory / _POOLING).mkdir()
    pooling = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    _write(directory / _POOLING / CONFIG_FILE, {"word_embedding_dimension": hidden_size, **pooling})
    _write(directory / LENGTH_FILES[0], {"max_seq_length": settings.max_seq_length, "do_lower_case": False})
    stated = model_values(settings)
    if any(stated.values()):
        _write(directory / MODEL_CONFIG_FILE, stated)


def with_settings(config: Mapping[str, Any], settings: TaskSettings) -> dict[str, Any]:
    """Return the values of `config.json` with the labels, problem type and activation function of the settings."""
    values = dict(config)
    if labels := getattr(settings, "labels", ()):
        values |= label_values(labels)
    if isinstance(settings, ClassificationSettings) and (settings.is_multi_label or values.get("problem_type")):
        values["problem_type"] = settings.problem_type
    if isinstance(settings, RegressionSettings):
        values = with_activation(values, settings.activation)
    return values


def _write(path: Path, values: object) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
