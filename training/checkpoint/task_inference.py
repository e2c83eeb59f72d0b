"""Task of a checkpoint: from its task card or, for checkpoints of others, from their files.

Bertline's own checkpoints state task and settings in `task.json`. For others, the task follows from the architecture in
`config.json`, the settings from `config.json`, `tokenizer_config.json` and the files of sentence-transformers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, Protocol, get_args

from tasks import TASKS, AnyTask, create_task, settings_from_dict, settings_to_dict
from tasks.classification import MULTI_LABEL, SINGLE_LABEL, ProblemType
from tasks.embedding import EmbeddingSettings
from tasks.prompts import PromptSettings
from tasks.registry import LabelledTask
from tasks.regression import Activation
from tasks.spans import SpanSettings
from tasks.sparse_embedding import SparseEmbedding
from tasks.text.json_files import as_json, read_optional_json
from tasks.text.tokenizer import Tokenizer
from tasks.text.tokenizer_files import TOKENIZER_CONFIG_FILE
from tasks.token_embedding import TokenEmbedding, TokenEmbeddingSettings
from training.checkpoint.reader import (
    CONFIG_FILE,
    architecture_of,
    labels_of,
    load_tokenizer,
    read_config,
    read_shape,
)
from training.checkpoint.sentence_transformers import (
    MODEL_CONFIG_FILE,
    checkpoint_directory,
    cross_encoder_settings,
    folder_settings,
    folder_task,
    sparse_settings,
    token_settings,
)
from training.checkpoint.task_card import TaskCard, read_task_card
from training.checkpoint.tokenizer import check_truncation_side
from training.model.architectures.base import Architecture
from training.model.config import EncoderConfig
from training.model.disentangled_encoder import DisentangledConfig
from training.model.heads import MODELS
from training.model.modernbert_encoder import ModernBertConfig
from training.model.nomic_encoder import NomicBertConfig

_ACTIVATIONS: dict[str, Activation] = {"Identity": "identity", "Sigmoid": "sigmoid"}
"""Last part of the name of torch's class -> setting."""
_NO_ACTIVATION = (
    "activation: identity, as the configuration names no function; for a cross-encoder, sentence-transformers would "
    "apply a sigmoid: give --activation sigmoid for its scores"
)


class Family(Protocol):
    """Facts about a family of encoders that task inference needs."""

    @property
    def vocab_size(self) -> int:
        """Number of rows of the word embeddings."""

    @property
    def num_positions(self) -> int:
        """Longest sequence, in tokens."""

    @property
    def embedding_classes(self) -> Sequence[str]:
        """Classes that give embeddings."""

    def class_name(self, task: str) -> str:
        """Return the family's class for a task."""


@dataclass(frozen=True)
class KnownFamily:
    """Family that `training.model` computes."""

    architecture: Architecture
    shape: EncoderConfig

    @property
    def vocab_size(self) -> int:
        """Number of rows of the word embeddings."""
        return self.shape.vocab_size

    @property
    def num_positions(self) -> int:
        """Longest sequence, in tokens."""
        return self.shape.num_positions

    @property
    def embedding_classes(self) -> list[str]:
        """Classes that give embeddings."""
        names = [self.architecture.class_name(f"Bert{name}") for name in ("Model", "ForPreTraining", "ForMaskedLM")]
        return [*names, f"{self.architecture.class_prefix}ForPreTraining"]

    def class_name(self, task: str) -> str:
        """Return the family's class for a task."""
        return self.architecture.class_name(MODELS[task].architecture)


@dataclass(frozen=True, kw_only=True)
class CheckpointTask:
    """Task of a checkpoint, and where it is from."""

    task: AnyTask
    card: TaskCard | None
    """None for checkpoints that Bertline did not train."""
    remark: str = ""
    """Note on a setting that the checkpoint does not state; empty if there is none."""


def read_known_family(directory: Path, config: Mapping[str, Any]) -> KnownFamily:
    """Read the family of a checkpoint.

    Raises:
        ValueError: if `training.model` does not compute it.
    """
    return KnownFamily(architecture_of(config, directory / CONFIG_FILE), read_shape(directory))


def read_checkpoint_task(
    checkpoint: str | Path,
    *,
    family: Family | None = None,
    task: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> CheckpointTask:
    """Read the task and settings of a checkpoint.

    Args:
        checkpoint: directory in Hugging Face's layout, or sentence-transformers folder.
        family: family of its network; None to read it.
        task: task to read; None for the checkpoint's own task.
        settings: settings that override the checkpoint's.

    Raises:
        ValueError: naming the file or setting that is missing, unknown or invalid.
    """
    checkpoint = Path(checkpoint)
    directory = checkpoint_directory(checkpoint)
    config, card = read_config(directory, any_family=True), read_task_card(directory)
    family = family or read_known_family(directory, config)
    task = task or (card.task if card else folder_task(checkpoint) or _infer_task(directory, config, family))
    if task not in TASKS:
        raise ValueError(f"unknown task: `{task}` (one of: {', '.join(TASKS)})")
    _refuse_other_heads(directory, config, card, family, task)
    tokenizer = load_tokenizer(directory, family.vocab_size)
    check_truncation_side(directory, tokenizer, task)
    remark = ""
    if card and card.task == task:
        values = settings_to_dict(card.settings)
    else:
        values = _foreign_settings(directory, config, card, family, task)
        if read_folder := _FOLDER_SETTINGS.get(task):
            values |= read_folder(checkpoint, tokenizer)
        if task == "regression" and "activation" not in (settings or {}):
            values["activation"], remark = _activation(checkpoint, directory, config)
    knows_null = bool(values.get("unanswerable"))
    values |= dict(settings or {})
    if knows_null and not values["unanswerable"]:
        values["null_is_trained"] = True
    if task == "classification" and not card:  # the identity leaves the scores to the problem type
        named = _read_activation(checkpoint, directory, config, remedy="remove it")
        if named == "sigmoid" and values.get("problem_type") != MULTI_LABEL:
            raise ValueError(
                f"`{directory}` names a sigmoid as activation function, as multi-label models have; "
                f"give --problem-type {MULTI_LABEL}"
            )
    known_task = create_task(task, tokenizer, settings_from_dict(task, values))
    if (longest := known_task.settings.max_seq_length) > family.num_positions:
        raise ValueError(f"max_seq_length `{longest}` exceeds the {family.num_positions} positions of `{directory}`")
    if isinstance(known_task.settings, TokenEmbeddingSettings):
        _check_expansion(family, known_task.settings)
    _check_prompts(checkpoint, known_task)
    remark = remark or ("" if "pooling" in values else _pooling_remark(known_task, config))
    return CheckpointTask(task=known_task, card=card, remark=remark)


_FOLDER_SETTINGS: dict[str, Callable[[Path, Tokenizer], dict[str, Any]]] = {
    "embedding": folder_settings,
    SparseEmbedding.name: sparse_settings,
    TokenEmbedding.name: token_settings,
    **dict.fromkeys(("classification", "regression"), cross_encoder_settings),
}
"""Readers of the settings that a folder of sentence-transformers prescribes, by task."""


def _pooling_remark(task: AnyTask, config: Mapping[str, Any]) -> str:
    """Return a note on the pooling of a checkpoint that states none; empty for other tasks."""
    if not isinstance(task.settings, EmbeddingSettings):
        return ""
    return (
        f"pooling: {task.settings.pooling}, by default, as the checkpoint has no modules.json; if it was trained with "
        "another one, vectors are wrong: see its description, and give --pooling"
        f"{'; to fill in masks, give --task masked-lm' * _architecture(config).endswith(('MaskedLM', 'PreTraining'))}"
    )


def _infer_task(directory: Path, config: Mapping[str, Any], family: Family) -> str:
    """Return the task of the class that `config.json` names.

    Classification and regression share one: Hugging Face treats one label as a regression.
    """
    classes = {name: task for task, name in reversed(_own_heads(family).items())}
    known = {**dict.fromkeys(family.embedding_classes, "embedding"), **classes}
    if (architecture := _architecture(config)) not in known:
        raise ValueError(
            f"unknown architecture `{architecture}` in `{directory / CONFIG_FILE}`; "
            f"give --task (one of: {', '.join(TASKS)})"
        )
    task = known[architecture]
    if task == "classification" and (config.get("problem_type") == "regression" or len(labels_of(config)) == 1):
        return "regression"
    return task


def _own_heads(family: Family) -> dict[str, str]:
    """Return the tasks that need their own head, and the family's class with that head."""
    return {task: family.class_name(task) for task in get_args(LabelledTask)}


def _architecture(config: Mapping[str, Any]) -> str:
    named = config.get("architectures")
    return str(named[0]) if isinstance(named, list) and named else "none"


def _activation(checkpoint: Path, directory: Path, config: Mapping[str, Any]) -> tuple[Activation, str]:
    """Return the activation function of a network with one output, and a note if nothing in the files decides.

    One output with problem type `multi_label_classification` is a sigmoid, as in transformers, and so is that of a
    cross-encoder, as in sentence-transformers.
    """
    problem = config.get("problem_type")
    if named := _read_activation(checkpoint, directory, config, remedy="give --activation"):
        return named, ""
    is_release_6 = read_optional_json(checkpoint / MODEL_CONFIG_FILE).get("model_type") == "CrossEncoder"
    if problem == MULTI_LABEL or "sentence_transformers" in config or is_release_6:
        return "sigmoid", ""
    return "identity", "" if problem == "regression" else _NO_ACTIVATION


def _read_activation(checkpoint: Path, directory: Path, config: Mapping[str, Any], *, remedy: str) -> Activation | None:
    """Return the function that sentence-transformers applies to the output of a cross-encoder; None if none is named.

    Releases before 4 name it in `config.json` as `sbert_ce_default_activation_function`, releases 4 and 5 as
    `sentence_transformers.activation_fn`; release 6 names it in `config_sentence_transformers.json`.
    """
    path, of_library = directory / CONFIG_FILE, checkpoint / MODEL_CONFIG_FILE
    key, library = "sbert_ce_default_activation_function", config.get("sentence_transformers")
    named = {
        f"`{path}` (sentence_transformers.activation_fn)": library.get("activation_fn")
        if isinstance(library, dict)
        else None,
        f"`{path}` ({key})": config.get(key),
        f"`{of_library}` (activation_fn)": read_optional_json(of_library).get("activation_fn"),
    }
    found: dict[Activation, str] = {}
    for source, name in named.items():
        if name is None:
            continue
        package, _, kind = str(name).rpartition(".")
        if kind not in _ACTIVATIONS or not f"{package}.".startswith("torch.nn."):
            known = ", ".join(f"torch.nn.{item}" for item in _ACTIVATIONS)
            raise ValueError(
                f"unsupported activation function `{str(name)[:60]}` in {source} (one of: {known}); {remedy}"
            )
        found.setdefault(_ACTIVATIONS[kind], source)
    if len(found) > 1:
        (first, source), (second, other) = found.items()
        raise ValueError(f"{source} names the function `{first}`, {other} `{second}`; {remedy}")
    return next(iter(found), None)


def _refuse_other_heads(
    directory: Path, config: Mapping[str, Any], card: TaskCard | None, family: Family, task: str
) -> None:
    """Raise for heads of another task, even if their weights would fit."""
    heads = _own_heads(family)
    named = [_architecture(config), *([family.class_name(TASKS[card.task].network or card.task)] if card else [])]
    others = [name for name in named if name in heads.values() and name != heads.get(task)]
    if task in heads and others:
        raise ValueError(
            f"checkpoint `{directory}` cannot do `{task}`: it has the head of a `{others[0]}`; fine-tune it first"
        )
    problem, known = config.get("problem_type") or SINGLE_LABEL, get_args(ProblemType)
    if task == "classification" and problem not in known:
        raise ValueError(
            f"unsupported problem_type `{problem}` in `{directory / CONFIG_FILE}` (one of: {', '.join(known)})"
        )


def _foreign_settings(
    directory: Path, config: Mapping[str, Any], card: TaskCard | None, family: Family, task: str
) -> dict[str, Any]:
    """Return settings for a checkpoint without a task card, or trained for another task."""
    limits = [family.num_positions, *_tokenizer_limit(directory)]
    if card:
        limits.append(card.settings.max_seq_length)
    if task == "spans":
        limits.append(SpanSettings.max_seq_length)
    values: dict[str, Any] = {"max_seq_length": (longest := min(limits))}
    if MODELS[TASKS[task].network or task].has_labels:
        values["labels"] = labels_of(config)
    if task == "classification" and config.get("problem_type"):
        values["problem_type"] = config["problem_type"]
    if task == "spans":  # as in BERT's code for SQuAD, proportional to its 384 tokens
        values["max_query_length"] = min(SpanSettings.max_query_length, longest // 4)
        values["doc_stride"] = min(SpanSettings.doc_stride, longest // 3)
    return values


def _tokenizer_limit(directory: Path) -> list[int]:
    """Return `model_max_length`, or `max_len` of early files, if present; Hugging Face writes 10^30 for no limit."""
    values = read_optional_json(path := directory / TOKENIZER_CONFIG_FILE)
    limit = values.get("model_max_length", values.get("max_len"))
    if not isinstance(limit, (int, float, NoneType)) or not math.isfinite(limit or 0):
        raise ValueError(f"`{path}`: model_max_length must be a number: `{as_json(limit)}`")
    return [int(limit)] if limit else []


def _check_prompts(directory: Path, task: AnyTask) -> None:
    """Raise if a prompt leaves no room for a text."""
    settings, limit, what = task.settings, task.settings.max_seq_length, "max_seq_length"
    if isinstance(settings, TokenEmbeddingSettings):  # markers take a token
        limit, what = min(settings.length(is_query=kind) for kind in (True, False)) - 1, "room of queries and documents"
    names = list(settings.prompts) if isinstance(settings, PromptSettings) else []
    for name, tokens in zip(names, task.tokenizer.tokenize([settings.prompts[name] for name in names]), strict=True):
        if (length := task.tokenizer.single.length(tokens)) >= limit:
            raise ValueError(
                f"prompt `{name}` of `{directory}` has `{length}` tokens, and leaves no room for a text below the "
                f"{what} `{limit}`; shorten it"
            )


def _check_expansion(family: Family, settings: TokenEmbeddingSettings) -> None:
    """Raise for query expansion in a family whose network gives tokens that no token attends to other states.

    Local attention of ModernBERT must reach words of the query from each of them.
    """
    if not settings.do_query_expansion or settings.attend_to_expansion_tokens:
        return
    shape = family.shape if isinstance(family, KnownFamily) else None
    if isinstance(shape, ModernBertConfig):
        is_supported = settings.length(is_query=True) <= shape.local_attention // 2
    else:
        is_supported = not isinstance(shape, DisentangledConfig | NomicBertConfig | None)
    if not is_supported:
        raise ValueError(
            "unsupported do_query_expansion `true` with attend_to_expansion_tokens `false` for this encoder and "
            f"query_length `{settings.length(is_query=True)}`; use a model that was trained otherwise"
        )
