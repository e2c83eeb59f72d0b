"""Operations of the command: input columns, method of the client, and output columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from bertline._models import can_rerank, can_zero_shot
from bertline.results import (
    Answer,
    Choice,
    Classification,
    LabelScore,
    MaskFill,
    Model,
    Ranking,
    Span,
    SparseVector,
    TaggedWord,
    Tagging,
    TokenScore,
    TokenVectors,
)

STRING, LIST, STRINGS = "a string", "a list of strings", "a string or a list of strings"
"""Types of columns, as messages name them."""


class MissingColumn(ValueError):
    """A row lacks a column that the operation needs."""


@dataclass(frozen=True)
class Operation:
    """Operation on each row."""

    method: str
    """Name of the client's method."""
    task: str
    """Task of the models that can do the operation."""
    needed: Mapping[str, str]
    """Required columns and their types."""
    optional: Mapping[str, str]
    """Optional columns and their types; required if the user maps one with --column."""
    input: Callable[[Mapping[str, Any]], Any]
    """Convert these columns to an input of the method."""
    result: Callable[[Any], dict[str, Any]]
    """Convert a result to the columns of JSONL."""
    types: Mapping[str, Any] = field(default_factory=dict)
    """Types of these columns in Parquet, see `tables.arrow_type`."""
    multi_label_types: Mapping[str, Any] = field(default_factory=dict)
    """The same with a multi-label model; empty if there are no such models."""
    can_do: Callable[[Model, bool], bool] | None = None
    """Returns whether a model, named or not, can do it whatever its task; None if its task must be `task`."""

    def fits(self, model: Model, *, is_named: bool) -> bool:
        """Return whether a model can do the operation; `is_named` is False if the server has to choose it."""
        return self.can_do(model, is_named) if self.can_do else model.task == self.task

    def for_job(self, model: Model | None, options: Mapping[str, Any]) -> Operation:
        """Return the operation with the columns that a model gives with some options; None for an unknown model."""
        several = options.get("multi_label", model is not None and model.multi_label)
        return replace(self, types=self.multi_label_types) if several and self.multi_label_types else self

    def columns(self, names: Mapping[str, str]) -> list[str]:
        """Return the input columns that the operation reads.

        Args:
            names: operation column -> input column, where the names differ.
        """
        return [names.get(name, name) for name in (*self.needed, *self.optional)]

    def read(self, row: Mapping[str, Any], names: Mapping[str, str]) -> Any:
        """Convert a row to an input of the method.

        Args:
            row: the columns of the row.
            names: operation column -> input column, where the names differ.

        Raises:
            MissingColumn: when a column is missing.
            ValueError: when a column has another type.
        """
        columns = {}
        for column, kind in {**self.needed, **self.optional}.items():
            name = names.get(column, column)
            if name not in row and (column in self.needed or column in names):
                raise MissingColumn(f"missing key `{name}`")
            value = row.get(name)
            if value is None and column in self.optional:
                continue
            if not _has_type(value, kind):
                raise ValueError(f"`{name}` must be {kind}")
            columns[column] = value
        return self.input(columns)


def _has_type(value: Any, kind: str) -> bool:
    if isinstance(value, str):
        return kind != LIST
    return kind != STRING and isinstance(value, list) and all(isinstance(item, str) for item in value)


def _text_or_pair(columns: Mapping[str, Any]) -> Any:
    """Return a text, or a text and its pair; a table may have both, with empty cells for no pair."""
    pair = columns.get("text_pair")
    return (columns["text"], pair) if pair and not (isinstance(pair, str) and pair.isspace()) else columns["text"]


def _choice_input(columns: Mapping[str, Any]) -> Any:
    return columns.get("context", ""), columns["question"], columns["choices"]


def _classification(result: Classification) -> dict[str, Any]:
    labels = [{"label": item.label, "score": _short(item.score)} for item in result.labels]
    selected = {"selected": list(result.selected)} if result.multi_label else {}
    return {"label": result.label, "score": _short(result.score), **selected, "labels": labels}


def _answer(result: Answer) -> dict[str, Any]:
    return {
        "answer": result.text,
        "score": _short(result.score),
        "has_answer": result.has_answer,
        "no_answer_score": _short(result.no_answer_score),
        "spans": _scored(result.spans),
    }


def _ranking(result: Ranking) -> dict[str, Any]:
    return {"ranking": _scored(result.documents)}


def _tagging(result: Tagging) -> dict[str, Any]:
    return {"entities": _scored(result.entities), **({"words": _scored(result.words)} if result.words else {})}


def _choice(result: Choice) -> dict[str, Any]:
    scores = [_short(score) for score in result.scores]
    return {"choice": result.choice, "score": scores[result.choice], "scores": scores}


def _value(result: float) -> dict[str, Any]:
    return {"value": _short(result)}


def _masks(result: tuple[MaskFill, ...]) -> dict[str, Any]:
    return {"masks": [_scored(mask.tokens) for mask in result]}


def _scored(items: Iterable[LabelScore | Span | TokenScore | TaggedWord | Any]) -> list[dict[str, Any]]:
    return [asdict(item) | {"score": _short(item.score)} for item in items]


def _short(score: float) -> float:
    """Round a float32 to the fewest digits that identify it."""
    return float(str(np.float32(score)))


def _vector(vector: np.ndarray) -> dict[str, Any]:
    if vector.dtype.kind != "f":
        return {"vector": vector.tolist()}
    return {"vector": [float(number) for number in vector.astype(str).tolist()]}


def _sparse_vector(result: SparseVector) -> dict[str, Any]:
    tokens = {"tokens": list(result.tokens)} if result.tokens else {}
    return {"indices": result.indices.tolist(), "values": [_short(value) for value in result.values], **tokens}


def _token_vectors(result: TokenVectors) -> dict[str, Any]:
    return {"vectors": [_vector(vector)[VECTOR] for vector in result.vectors]}


VECTOR = "vector"
_LABELS = [{"label": str, "score": float}]
_SPANS = [{"start": int, "end": int, "text": str, "score": float, "context": int}]
_ENTITIES = [{"start": int, "end": int, "text": str, "label": str, "score": float}]
_WORDS = [{"start": int, "end": int, "tag": str, "score": float}]
_TEXT, _PAIR = {"text": STRING}, {"text_pair": STRING}

OPERATIONS = {
    operation.method: operation
    for operation in (
        Operation("embed", "embedding", _TEXT, {}, lambda columns: columns["text"], _vector),
        Operation(
            "embed_sparse",
            "sparse-embedding",
            _TEXT,
            {},
            lambda columns: columns["text"],
            _sparse_vector,
            {"indices": [int], "values": [float], "tokens": [str]},
        ),
        Operation(
            "embed_tokens",
            "token-embedding",
            _TEXT,
            {},
            lambda columns: columns["text"],
            _token_vectors,
            {"vectors": [[float]]},
        ),
        Operation(
            "classify",
            "classification",
            _TEXT,
            _PAIR,
            _text_or_pair,
            _classification,
            {"label": str, "score": float, "labels": _LABELS},
            {"label": str, "score": float, "selected": [str], "labels": _LABELS},
        ),
        Operation(
            "regress",
            "regression",
            _TEXT,
            _PAIR,
            _text_or_pair,
            _value,
            {"value": float},
        ),
        Operation(
            "answer",
            "spans",
            {"question": STRING, "context": STRINGS},
            {},
            lambda columns: (columns["question"], columns["context"]),
            _answer,
            {"answer": str, "score": float, "has_answer": bool, "no_answer_score": float, "spans": _SPANS},
        ),
        Operation(
            "rerank",
            "rerank",
            {"query": STRING, "documents": LIST},
            {},
            lambda columns: (columns["query"], columns["documents"]),
            _ranking,
            {"ranking": [{"document": int, "score": float}]},
            can_do=can_rerank,
        ),
        Operation(
            "tag",
            "tagging",
            {"text": STRINGS},
            {},
            lambda columns: columns["text"],
            _tagging,
            {"entities": _ENTITIES, "words": _WORDS},
        ),
        Operation(
            "choose",
            "multiple-choice",
            {"question": STRING, "choices": LIST},
            {"context": STRING},
            _choice_input,
            _choice,
            {"choice": int, "score": float, "scores": [float]},
        ),
        Operation(
            "zero_shot",
            "zero-shot",
            _TEXT,
            {},
            lambda columns: columns["text"],
            _classification,
            {"label": str, "score": float, "labels": _LABELS},
            {"label": str, "score": float, "selected": [str], "labels": _LABELS},
            can_do=lambda model, is_named: can_zero_shot(model),
        ),
        Operation(
            "fill_mask",
            "masked-lm",
            _TEXT,
            {},
            lambda columns: columns["text"],
            _masks,
            {"masks": [[{"token": str, "score": float}]]},
        ),
    )
}
