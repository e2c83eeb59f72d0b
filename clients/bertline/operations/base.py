"""Parts that several operations share: their description, options of requests, checks of replies."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Literal, get_args

import numpy as np

from bertline._convert import Call
from bertline._inputs import read_flag, read_model, read_option
from bertline.errors import InvalidItem, ServerError
from bertline.results import Model

InputType = Literal["query", "document"]
DTYPES = {"float32": "<f4", "float16": "<f2", "int8": "i1", "binary": "u1"}
"""Types of the numbers of vectors by format."""
STRING, LIST, STRINGS = "a string", "a list of strings", "a string or a list of strings"
"""Types of columns, as messages name them."""
SPAN = {"start": int, "end": int, "text": str}
"""Types of the fields that every span has, in Parquet."""


class MissingColumn(ValueError):
    """A row lacks a column that the operation needs."""


@dataclass(frozen=True, kw_only=True)
class Operation:
    """Operation on rows, as commands, jobs and `bertline bench` use it."""

    call: Callable[..., Call[Any]]
    """Function that describes the client's method, see `Call`."""
    task: str
    """Task of the models that can do the operation."""
    result: Callable[[Any], dict[str, Any]]
    """Converts a result to the columns of JSONL."""
    types: Mapping[str, Any]
    """Types of these columns in Parquet, see `tables.arrow_type`. `selected` is of multi-label models only."""
    needed: Mapping[str, str] = field(default_factory=lambda: {"text": STRING})
    """Required columns and their types."""
    optional: Mapping[str, str] = field(default_factory=dict)
    """Optional columns and their types; required if the user maps one with --column."""
    input: Callable[[Mapping[str, Any]], Any] = lambda columns: columns["text"]
    """Converts these columns to an input of the method."""
    of_text: Callable[[str], Any] = lambda text: text
    """Makes an input of the method from a text, for `bertline bench`."""
    can_do: Callable[[Model, bool], bool] | None = None
    """Returns whether a model, named or not, can do it whatever its task; None if its task must be `task`."""

    @property
    def method(self) -> str:
        """Name of the client's method."""
        return self.call.__name__

    def fits(self, model: Model, *, is_named: bool) -> bool:
        """Return whether a model can do the operation; `is_named` is False if the server has to choose it."""
        return self.can_do(model, is_named) if self.can_do else model.task == self.task

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


def text_or_pair(columns: Mapping[str, Any]) -> Any:
    """Return a text, or a text and its pair; a table may have both, with empty cells for no pair."""
    pair = columns.get("text_pair", "")
    return (columns["text"], pair) if pair.strip() else columns["text"]


def short(score: float) -> float:
    """Round a float32 to the fewest digits that identify it."""
    return float(str(np.float32(score)))


def numbers(vector: np.ndarray) -> list[float]:
    """Return the numbers of a vector, with as few digits as possible."""
    if vector.dtype.kind != "f":
        return vector.tolist()  # type: ignore[no-any-return]
    return [float(number) for number in vector.astype(str).tolist()]


def scored(items: Iterable[Any]) -> list[dict[str, Any]]:
    """Return results with a score as JSON objects."""
    return [asdict(item) | {"score": short(item.score)} for item in items]


def request_of(message: Any, model: str, version: str, truncate: bool | None, **fields: Any) -> Callable[..., Any]:
    """Return a function that makes the request of an operation, given the field of its inputs."""
    ref = read_model(model, version)
    return partial(message, model=ref, truncate=read_flag("truncate", truncate), **fields)


def prompt_fields(prompt_name: str | None, input_type: InputType | None) -> dict[str, Any]:
    """Return the fields of a request that choose a prompt."""
    if input_type is not None:
        check_choice("input_type", input_type, InputType)
    return {
        "prompt_name": None if prompt_name is None else read_option("prompt_name", prompt_name),
        "input_type": f"INPUT_TYPE_{input_type.upper()}" if input_type else None,
    }


def format_field(format: str, allowed: Any) -> str | None:
    """Return the field of a request for vectors of a format, one of a Literal."""
    check_choice("format", format, allowed)
    return None if format == "float32" else f"VECTOR_FORMAT_{format.upper()}"


def check_choice(name: str, value: Any, allowed: Any) -> None:
    """Raise ValueError if a value is none of a Literal."""
    if value not in get_args(allowed):
        raise ValueError(f"unknown {name}: `{value}` (one of: {', '.join(get_args(allowed))})")


def sum_of_scores(items: Iterable[Any]) -> float:
    """Return the sum of scores, which is finite if they are."""
    return sum(item.score for item in items)


def check_finite(sums: Iterable[float]) -> None:
    """Raise ServerError if a sum of scores is not finite. Each input has one sum."""
    if bad := [index for index, value in enumerate(sums) if not math.isfinite(value)]:
        raise reply_error(bad, "a score is not finite")


def reply_error(indices: Iterable[int], reason: str) -> ServerError:
    """Return the error for inputs without a usable reply."""
    return ServerError.of([InvalidItem(index, "reply", reason) for index in indices])
