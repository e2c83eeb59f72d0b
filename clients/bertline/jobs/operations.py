"""Operations of the command: input columns, method of the client, and output columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from bertline._models import can_rerank, can_zero_shot
from bertline.results import Answer, Choice, Classification, Model, SparseVector, Tagging

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
    result: Callable[[Any], dict[str, Any]]
    """Convert a result to the columns of JSONL."""
    types: Mapping[str, Any] = field(default_factory=dict)
    """Types of these columns in Parquet, see `tables.arrow_type`; of VECTOR, the job decides."""
    multi_label_types: Mapping[str, Any] = field(default_factory=dict)
    """The same with a multi-label model; empty if there are no such models."""
    needed: Mapping[str, str] = field(default_factory=lambda: {"text": STRING})
    """Required columns and their types."""
    optional: Mapping[str, str] = field(default_factory=dict)
    """Optional columns and their types; required if the user maps one with --column."""
    input: Callable[[Mapping[str, Any]], Any] = lambda columns: columns["text"]
    """Convert these columns to an input of the method."""
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


def _tagging(result: Tagging) -> dict[str, Any]:
    return {"entities": _scored(result.entities), **({"words": _scored(result.words)} if result.words else {})}


def _choice(result: Choice) -> dict[str, Any]:
    scores = [_short(score) for score in result.scores]
    return {"choice": result.choice, "score": scores[result.choice], "scores": scores}


def _scored(items: Iterable[Any]) -> list[dict[str, Any]]:
    return [asdict(item) | {"score": _short(item.score)} for item in items]


def _short(score: float) -> float:
    """Round a float32 to the fewest digits that identify it."""
    return float(str(np.float32(score)))


def _numbers(vector: np.ndarray) -> list[float]:
    if vector.dtype.kind != "f":
        return vector.tolist()  # type: ignore[no-any-return]
    return [float(number) for number in vector.astype(str).tolist()]


def _sparse_vector(result: SparseVector) -> dict[str, Any]:
    tokens = {"tokens": list(result.tokens)} if result.tokens else {}
    return {"indices": result.indices.tolist(), "values": [_short(value) for value in result.values], **tokens}


VECTOR = "vector"
_LABELS = {"labels": [{"label": str, "score": float}]}
_SPAN = {"start": int, "end": int, "text": str}
_CLASSIFICATION = {"label": str, "score": float, **_LABELS}
_MULTI_LABEL = {"label": str, "score": float, "selected": [str], **_LABELS}

OPERATIONS = {
    operation.method: operation
    for operation in (
        Operation("embed", "embedding", lambda vector: {VECTOR: _numbers(vector)}, {VECTOR: [float]}),
        Operation(
            "embed_sparse",
            "sparse-embedding",
            _sparse_vector,
            {"indices": [int], "values": [float], "tokens": [str]},
        ),
        Operation(
            "embed_tokens",
            "token-embedding",
            lambda result: {"vectors": [_numbers(vector) for vector in result.vectors]},
            {"vectors": [[float]]},
        ),
        Operation(
            "classify",
            "classification",
            _classification,
            _CLASSIFICATION,
            _MULTI_LABEL,
            optional={"text_pair": STRING},
            input=_text_or_pair,
        ),
        Operation(
            "regress",
            "regression",
            lambda result: {"value": _short(result)},
            {"value": float},
            optional={"text_pair": STRING},
            input=_text_or_pair,
        ),
        Operation(
            "answer",
            "spans",
            _answer,
            {
                "answer": str,
                "score": float,
                "has_answer": bool,
                "no_answer_score": float,
                "spans": [{**_SPAN, "score": float, "context": int}],
            },
            needed={"question": STRING, "context": STRINGS},
            input=lambda columns: (columns["question"], columns["context"]),
        ),
        Operation(
            "rerank",
            "rerank",
            lambda result: {"ranking": _scored(result.documents)},
            {"ranking": [{"document": int, "score": float}]},
            needed={"query": STRING, "documents": LIST},
            input=lambda columns: (columns["query"], columns["documents"]),
            can_do=can_rerank,
        ),
        Operation(
            "tag",
            "tagging",
            _tagging,
            {
                "entities": [{**_SPAN, "label": str, "score": float}],
                "words": [{"start": int, "end": int, "tag": str, "score": float}],
            },
            needed={"text": STRINGS},
        ),
        Operation(
            "choose",
            "multiple-choice",
            _choice,
            {"choice": int, "score": float, "scores": [float]},
            needed={"question": STRING, "choices": LIST},
            optional={"context": STRING},
            input=lambda columns: (columns.get("context", ""), columns["question"], columns["choices"]),
        ),
        Operation(
            "zero_shot",
            "zero-shot",
            _classification,
            _CLASSIFICATION,
            _MULTI_LABEL,
            can_do=lambda model, is_named: can_zero_shot(model),
        ),
        Operation(
            "fill_mask",
            "masked-lm",
            lambda result: {"masks": [_scored(mask.tokens) for mask in result]},
            {"masks": [[{"token": str, "score": float}]]},
        ),
    )
}
