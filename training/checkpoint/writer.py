"""Write checkpoints in Hugging Face's layout; those of embeddings are also folders of sentence-transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from tasks.base import TaskSettings
from tasks.bundle.files import atomic_directory
from tasks.classification import ClassificationSettings
from tasks.embedding import NORMALIZE, EmbeddingSettings, Pooling, activation_of
from tasks.regression import Activation
from training.checkpoint.reader import CONFIG_FILE, label_values
from training.checkpoint.sentence_transformers import (
    ACTIVATION_CLASSES,
    LENGTH_FILES,
    MODEL_CONFIG_FILE,
    MODULES_FILE,
    POOLING_FLAGS,
)
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
) -> None:
    """Write a checkpoint directory atomically. Weights keep their precision: 16 bits for a `model.half()`.

    Args:
        tokenizer_from: directory whose tokenizer files are copied.
        readme: text of README.md (`training.reports.model_card.describe_checkpoint`); none is written if it is empty.

    Raises:
        ValueError: if the directory exists.
    """
    with atomic_directory(Path(directory)) as temporary:
        _write_json(temporary / CONFIG_FILE, config_values(model, card.settings))
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


# Files of sentence-transformers, in addition to the network


def write_modules(directory: Path, settings: EmbeddingSettings, dense: nn.ModuleDict, hidden_size: int) -> None:
    """Write the stages of a sentence-transformers folder: the folder itself, Pooling, then Dense and Normalize.

    Any version of the library from 2 on reads them.

    Args:
        dense: linear layers by their place in `settings.layers`.
        hidden_size: size of the network's hidden states.
    """
    kinds = ["Transformer", "Pooling"]
    folders = ["", "1_Pooling"]
    _write_json(directory / folders[1] / CONFIG_FILE, _pooling_config(settings.poolings, hidden_size))
    for index, layer in enumerate([*settings.layers, *[NORMALIZE] * settings.normalize]):
        kinds.append("Dense" if activation_of(layer) else "Normalize")
        folders.append(f"{len(folders)}_{kinds[-1]}")
        if activation := activation_of(layer):
            folder, linear = directory / folders[-1], dense[str(index)]
            assert isinstance(linear, nn.Linear)
            sizes = {"in_features": linear.in_features, "out_features": linear.out_features}
            options = {"bias": linear.bias is not None, "activation_function": ACTIVATION_CLASSES[activation]}
            _write_json(folder / CONFIG_FILE, sizes | options)
            weights = {f"linear.{name}": value for name, value in linear.state_dict().items()}
            save_weights(weights, folder / WEIGHTS_FILE)
    modules = [
        {"idx": index, "name": str(index), "path": folder, "type": f"sentence_transformers.models.{kind}"}
        for index, (folder, kind) in enumerate(zip(folders, kinds, strict=True))
    ]
    _write_json(directory / MODULES_FILE, modules)
    _write_json(directory / LENGTH_FILES[0], {"max_seq_length": settings.max_seq_length, "do_lower_case": False})
    _write_json(directory / MODEL_CONFIG_FILE, model_values(settings))


def model_values(settings: EmbeddingSettings) -> dict[str, Any]:
    """Return the values of `config_sentence_transformers.json`."""
    return {
        "prompts": dict(settings.prompts),
        "default_prompt_name": settings.default_prompt_name,
        "similarity_fn_name": settings.similarity_fn_name,
    }


def with_activation(config: Mapping[str, Any], activation: Activation) -> dict[str, Any]:
    """Return the values of `config.json`, with the function named for sentence-transformers and transformers.

    A pipeline of transformers applies a sigmoid to one output, unless `problem_type` is regression.
    """
    name, problem, library = ACTIVATION_CLASSES[activation], config.get("problem_type"), "sentence_transformers"
    before = config.get(library)
    named = {**config, library: {**(before if isinstance(before, dict) else {}), "activation_fn": name}}
    named["sbert_ce_default_activation_function"] = name
    if activation == "identity":
        return named | {"problem_type": "regression"}
    return named | ({"problem_type": None} if problem == "regression" else {})


def _pooling_config(poolings: Sequence[Pooling], hidden_size: int) -> dict[str, Any]:
    """Return the flags that all versions read; a list, which version 6 reads, for poolings in another order."""
    if list(poolings) == [pooling for pooling in POOLING_FLAGS.values() if pooling in poolings]:
        flags = {flag: pooling in poolings for flag, pooling in POOLING_FLAGS.items()}
        return {"word_embedding_dimension": hidden_size, **flags}
    return {"embedding_dimension": hidden_size, "pooling_mode": list(poolings)}


def _write_json(path: Path, values: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
