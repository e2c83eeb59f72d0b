"""Understand a checkpoint, ours or foreign: its task, its settings, its tokenizer, its network.

Ours say it in `task.json`. Of foreign ones the architecture in `config.json` tells the task, and the settings come from
`config.json`, `tokenizer_config.json` and the files of sentence-transformers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypedDict, get_args

from export.sentence_transformers import checkpoint_directory, embedding_settings
from tasks import TASKS, AnyTask, create_task, settings_from_dict, settings_to_dict
from tasks.json_files import read_json
from tasks.spans import SpanSettings
from training.ablations.model import AblationConfig, direction_of
from training.checkpoint import MODELS, labels_of, load_model, load_tokenizer, read_config, read_shape
from training.model.heads import BertModel
from training.provenance import checkpoint_name
from training.task_card import TASK_FILE, TaskCard, read_task_card

TaskName = Literal["embedding", "classification", "regression", "multiple-choice", "tagging", "spans", "masked-lm"]

_TASK_OF_ARCHITECTURE: dict[str, TaskName] = {
    "BertModel": "embedding",
    "BertForPreTraining": "embedding",
    "BertForMaskedLM": "embedding",
    "BertForSequenceClassification": "classification",
    "BertForMultipleChoice": "multiple-choice",
    "BertForTokenClassification": "tagging",
    "BertForQuestionAnswering": "spans",
}

_OWN_HEADS = {
    task: MODELS[task].architecture for task in ("classification", "regression", "multiple-choice", "tagging", "spans")
}
"""Tasks that no checkpoint of another of them can do, and their architectures."""


class SettingsChanges(TypedDict, total=False):
    """Settings to use instead of what the checkpoint says; each belongs to some of the tasks."""

    max_seq_length: int
    """Longest sequence, in tokens, specials included."""
    pooling: Literal["cls", "mean"]
    """embedding: the last hidden state of [CLS], or the mean over tokens."""
    normalize: bool
    """embedding: divide each vector by its Euclidean norm."""
    labels: tuple[str, ...]
    """classification, tagging: names of the labels, in the order of the logits."""
    doc_stride: int
    """spans, tagging: tokens from the start of one window to the start of the next."""
    max_query_length: int
    """spans: longest question, in tokens."""
    max_answer_length: int
    """spans: longest answer, in tokens."""
    n_best_size: int
    """spans: candidates kept."""
    unanswerable: bool
    """spans: the model knows questions without an answer (SQuAD v2.0)."""
    null_threshold: float
    """spans: predict "no answer" when null score minus best span is above this."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A checkpoint and how it is to be served."""

    name: str
    """Last part of the path that the user gave; of a run, its name."""
    directory: Path
    """Where the weights lie; a subfolder in some sentence-transformers layouts."""
    task: AnyTask
    card: TaskCard | None
    """None for a foreign checkpoint."""

    def load_model(self) -> BertModel:
        """The network of the task.

        Raises:
            ValueError: naming what the checkpoint lacks.
        """
        labels = tuple(getattr(self.task.settings, "labels", ()))
        try:
            return load_model(self.directory, self.task.name, num_labels=len(labels) or None)
        except ValueError as error:
            if not str(error).endswith("are named"):
                raise
            raise ValueError(f"{error} ({self._source_of_labels(labels)})") from error

    def _source_of_labels(self, labels: tuple[str, ...]) -> str:
        named = {
            f"labels of `{self.directory / TASK_FILE}`": getattr(self.card and self.card.settings, "labels", ()),
            f"id2label of `{self.directory / 'config.json'}`": labels_of(read_config(self.directory)),
        }
        found = next((source for source, known in named.items() if tuple(known) == labels), None)
        return f"{found}: `{', '.join(labels)[:60]}`; others with --labels" if found else "--labels"


def read_source(checkpoint: str | Path, *, task: str | None = None, settings: SettingsChanges | None = None) -> Source:
    """Find out what a checkpoint does and how it treats text.

    Args:
        checkpoint: a BERT directory in Hugging Face's layout, or a sentence-transformers folder of one.
        task: None for the task that the checkpoint was trained for.
        settings: settings to use instead of what the checkpoint says.

    Raises:
        ValueError: naming the file or setting that is missing, unknown or wrong.
    """
    checkpoint = Path(checkpoint)
    directory = checkpoint_directory(checkpoint)
    config, card = read_config(directory), read_task_card(directory)
    _refuse_ablations(directory)
    task = task or (card.task if card else _infer_task(directory, config))
    if task not in TASKS:
        raise ValueError(f"unknown task: `{task}` (one of: {', '.join(get_args(TaskName))})")
    _refuse_other_heads(directory, config, card, task)
    tokenizer = load_tokenizer(directory)
    if card and card.task == task:
        values = settings_to_dict(card.settings)
    else:
        values = _foreign_settings(directory, config, card, task)
        if task == "embedding":
            values |= embedding_settings(checkpoint, tokenizer)
    known_task = create_task(task, tokenizer, settings_from_dict(task, values | dict(settings or {})))
    _check_sizes(directory, known_task)
    return Source(name=checkpoint_name(checkpoint.resolve()), directory=directory, task=known_task, card=card)


def _refuse_ablations(directory: Path) -> None:
    """The graph is that of a plain BERT, which would compute something else with these weights."""
    shape = read_shape(directory)
    if direction_of(shape) != "both":
        remedy = "pretrain it with --direction both"
    elif isinstance(shape, AblationConfig):
        remedy = "fine-tune it without --layers, --combine and --bilstm"
    else:
        return
    raise ValueError(f"`{directory}` is no BERT but an ablation of it and cannot be exported; to export it, {remedy}")


def _infer_task(directory: Path, config: Mapping[str, Any]) -> TaskName:
    architecture = _architecture(config)
    if architecture not in _TASK_OF_ARCHITECTURE:
        raise ValueError(
            f"`{directory / 'config.json'}` names architecture `{architecture}`, which tells no task; "
            f"give --task (one of: {', '.join(get_args(TaskName))})"
        )
    task = _TASK_OF_ARCHITECTURE[architecture]
    return "regression" if task == "classification" and _is_regression(config) else task


def _architecture(config: Mapping[str, Any]) -> str:
    named = config.get("architectures")
    return str(named[0]) if isinstance(named, list) and named else "none"


def _is_regression(config: Mapping[str, Any]) -> bool:
    """To Hugging Face, a classifier with one label."""
    return config.get("problem_type") == "regression" or len(labels_of(config)) == 1


def _refuse_other_heads(directory: Path, config: Mapping[str, Any], card: TaskCard | None, task: str) -> None:
    """Heads whose weights may fit, but which compute something else."""
    named = [_architecture(config), *([MODELS[card.task].architecture] if card else [])]
    others = [name for name in named if name in _OWN_HEADS.values() and name != _OWN_HEADS.get(task)]
    if task in _OWN_HEADS and others:
        raise ValueError(
            f"checkpoint `{directory}` does not fit `{task}`: it has the head of a `{others[0]}`; "
            "fine-tune it for that first"
        )
    problem = config.get("problem_type") or "single_label_classification"
    if task == "classification" and problem != "single_label_classification":
        raise ValueError(f"`{directory / 'config.json'}` has problem_type `{problem}`; one label a text is supported")


def _foreign_settings(directory: Path, config: Mapping[str, Any], card: TaskCard | None, task: str) -> dict[str, Any]:
    """Settings for a checkpoint without a task card, or one that was trained for another task."""
    limits = [read_shape(directory).max_position_embeddings, *_tokenizer_limit(directory)]
    if card:
        limits.append(card.settings.max_seq_length)
    if task == "spans":
        limits.append(SpanSettings.max_seq_length)
    values: dict[str, Any] = {"max_seq_length": (longest := min(limits))}
    if task in ("classification", "tagging"):
        values["labels"] = labels_of(config)
    if task == "spans":  # questions and strides of the reference code take a sixth and a third of its 384 tokens
        values["max_query_length"] = min(SpanSettings.max_query_length, longest // 4)
        values["doc_stride"] = min(SpanSettings.doc_stride, longest // 3)
    return values


def _tokenizer_limit(directory: Path) -> list[int]:
    """`model_max_length`, where it is there; 10^30 stands for "no limit"."""
    path = directory / "tokenizer_config.json"
    limit = read_json(path).get("model_max_length") if path.is_file() else None
    is_number = isinstance(limit, (int, float, NoneType)) and not isinstance(limit, bool)
    if not is_number or not -math.inf < (limit or 0) < math.inf:
        raise ValueError(f"`{path}`: model_max_length must be a number: `{limit!r}`")
    return [int(limit)] if limit else []


def _check_sizes(directory: Path, task: AnyTask) -> None:
    """Whatever the task encodes, the network must have embeddings for."""
    shape = read_shape(directory)
    if task.settings.max_seq_length > shape.max_position_embeddings:
        raise ValueError(
            f"max_seq_length `{task.settings.max_seq_length}` is more than the {shape.max_position_embeddings} "
            f"positions of `{directory}`"
        )
    if shape.type_vocab_size < 2:
        raise ValueError(f"the network of `{directory}` has type_vocab_size `{shape.type_vocab_size}`; 2 are needed")
