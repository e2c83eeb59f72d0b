"""Files that let other libraries load a model directory: Optimum's classes, and sentence-transformers' ONNX backend.

Both take `last_hidden_state` and pool it; an embedding graph has pooled already, and gives its vector there as the only
token, whose pooling is that of [CLS].
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from export.source import Source
from tasks.embedding import EmbeddingSettings
from tasks.json_files import read_json
from training.checkpoint import CONFIG_FILE

_COPIED = (CONFIG_FILE, "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")
_MODULES = "sentence_transformers.models"
_POOLING = "1_Pooling"
FOR_OTHERS = (*_COPIED, "modules.json", "sentence_bert_config.json", _POOLING, f"{_POOLING}/config.json")
"""All that may be written."""


def write_for_others(directory: Path, source: Source, hidden_size: int) -> None:
    """Write them beside graph and tokenizer."""
    for name in _COPIED:
        if (source.directory / name).is_file():
            shutil.copyfile(source.directory / name, directory / name)
    if labels := getattr(source.task.settings, "labels", ()):
        _name_labels(directory / CONFIG_FILE, labels)
    if isinstance(source.task.settings, EmbeddingSettings):
        _write_sentence_transformer(directory, source.task.settings, hidden_size)


def _write_sentence_transformer(directory: Path, settings: EmbeddingSettings, hidden_size: int) -> None:
    kinds = {"": "Transformer", _POOLING: "Pooling"}
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"{_MODULES}.{kind}"}
        for number, (path, kind) in enumerate(kinds.items())
    ]
    (directory / _POOLING).mkdir()
    _write(directory / "modules.json", modules)
    _write(
        directory / _POOLING / "config.json",
        {"word_embedding_dimension": hidden_size, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False},
    )
    _write(directory / "sentence_bert_config.json", {"max_seq_length": settings.max_seq_length, "do_lower_case": False})


def _name_labels(path: Path, labels: Sequence[str]) -> None:
    """As the manifest does, whatever the checkpoint called them."""
    id2label = {str(number): label for number, label in enumerate(labels)}
    label2id = {label: number for number, label in enumerate(labels)}
    _write(path, read_json(path) | {"id2label": id2label, "label2id": label2id})


def _write(path: Path, values: object) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
