"""Write checkpoint directories: config, weights, tokenizer, task card, README."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tasks.base import TaskSettings
from tasks.bundle.files import atomic_directory
from tasks.classification import ClassificationSettings
from tasks.embedding import EmbeddingSettings
from training.checkpoint.reader import CONFIG_FILE, label_values
from training.checkpoint.sentence_transformers_writer import write_modules
from training.checkpoint.task_card import CARD_FILE, TASK_FILE, TaskCard
from training.checkpoint.tokenizer import copy_tokenizer
from training.checkpoint.weights import WEIGHTS_FILE, save_weights
from training.model.architectures import ARCHITECTURES
from training.model.architectures.base import Architecture
from training.model.heads import BertForSequenceRegression, BertModel, task_of


def save_checkpoint(
    directory: str | Path,
    model: BertModel,
    *,
    tokenizer_from: str | Path,
    card: TaskCard,
    readme: str = "",
    overwrite: bool = False,
) -> None:
    """Write a checkpoint directory atomically. Weights keep their precision: 16 bits for a `model.half()`.

    Args:
        directory: directory to write.
        model: network to write.
        tokenizer_from: directory whose tokenizer files are copied.
        card: task card to write.
        readme: text of README.md (`training.reports.model_card.describe_checkpoint`); none is written if it is empty.
        overwrite: replace an existing directory.

    Raises:
        ValueError: if the directory exists and `overwrite` is off.
    """
    with atomic_directory(Path(directory), replace=overwrite) as temporary:
        config = config_values(model, card.settings)
        (temporary / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        weights = {name: value for name, value in model.state_dict().items() if not name.startswith("dense.")}
        save_weights(_architecture(model).to_hugging_face(weights, task_of(model)), temporary / WEIGHTS_FILE)
        if isinstance(card.settings, EmbeddingSettings):
            write_modules(temporary, card.settings, model.dense, model.config.hidden_size)
        copy_tokenizer(tokenizer_from, temporary)
        (temporary / TASK_FILE).write_text(card.to_json(), encoding="utf-8")
        if readme:
            (temporary / CARD_FILE).write_text(readme, encoding="utf-8")


def _architecture(model: BertModel) -> Architecture:
    return ARCHITECTURES[model.config.model_type].for_config(vars(model.config))


def config_values(model: BertModel, settings: TaskSettings) -> dict[str, Any]:
    """Return the values of `config.json`."""
    labels, architecture = getattr(settings, "labels", ()), _architecture(model)
    config = {"architectures": [architecture.class_name(model.architecture)], **architecture.write_config(model.config)}
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    config |= {"position_embedding_type": "absolute"} if model.config.has_position_embeddings else {}
    config |= {"torch_dtype": dtype}
    if isinstance(model, BertForSequenceRegression):
        config["problem_type"] = "regression"
        labels = ("LABEL_0",)  # transformers takes the number of outputs from the labels
    elif isinstance(settings, ClassificationSettings) and settings.is_multi_label:
        config["problem_type"] = settings.problem_type
    return config | (label_values(labels) if labels else {})
