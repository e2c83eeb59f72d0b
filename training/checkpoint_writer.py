"""Write checkpoint directories: config, weights, tokenizer, task card and model card."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tasks.base import TaskSettings
from tasks.classification import ClassificationSettings
from tasks.embedding import EmbeddingSettings
from tasks.files import atomic_directory
from tasks.tokenizer import Tokenizer
from training.checkpoint import CONFIG_FILE, label_values
from training.model.architectures import ARCHITECTURES
from training.model.architectures.base import Architecture
from training.model.heads import BertForSequenceRegression, BertModel, task_of
from training.reports.model_card import model_card
from training.reports.usages import MASK
from training.sentence_transformers_writer import write_modules
from training.task_card import CARD_FILE, TASK_FILE, TaskCard
from training.tokenizer import copy_tokenizer
from training.weights import WEIGHTS_FILE, save_weights


def save_checkpoint(
    directory: str | Path, model: BertModel, *, tokenizer_from: str | Path, card: TaskCard, overwrite: bool = False
) -> None:
    """Write a checkpoint directory atomically. Weights keep their precision: 16 bits for a `model.half()`.

    Args:
        directory: directory to write.
        model: network to write.
        tokenizer_from: directory whose tokenizer files are copied.
        card: task card to write.
        overwrite: replace an existing directory.

    Raises:
        ValueError: if the directory exists and `overwrite` is off.
    """
    with atomic_directory(Path(directory), replace=overwrite) as temporary:
        write_checkpoint(temporary, model, tokenizer_from=tokenizer_from, card=card)


def write_checkpoint(directory: Path, model: BertModel, *, tokenizer_from: str | Path, card: TaskCard) -> None:
    """Write the files of a checkpoint into an existing directory."""
    architecture = ARCHITECTURES[model.config.model_type].for_config(vars(model.config))
    config = _config_values(model, architecture, card.settings)
    (directory / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    weights = {name: value for name, value in model.state_dict().items() if not name.startswith("dense.")}
    save_weights(architecture.to_hugging_face(weights, task_of(model)), directory / WEIGHTS_FILE)
    if isinstance(card.settings, EmbeddingSettings):
        write_modules(directory, card.settings, model.dense, model.config.hidden_size)
    copy_tokenizer(tokenizer_from, directory)
    (directory / TASK_FILE).write_text(card.to_json(), encoding="utf-8")
    text = model_card(
        card,
        {**asdict(model.config), **config},
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        mask=Tokenizer.load(directory).mask_token or MASK,
    )
    (directory / CARD_FILE).write_text(text, encoding="utf-8")


def _config_values(model: BertModel, architecture: Architecture, settings: TaskSettings) -> dict[str, Any]:
    """Return the values of `config.json`."""
    labels = getattr(settings, "labels", ())
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
