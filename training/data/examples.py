"""Examples with their locations in the data, and the rows that cannot be used, for messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from tasks import AnyTask, InvalidExamplesError

MAX_PLACES = 5
"""Rows with one problem that are named; others are counted."""
_LABELS = ("label", "labels", "tags", "answers", "answer_start", "id", "offsets")
"""Fields of examples that networks do not read."""


class RowError(ValueError):
    """Row that cannot be used.

    Args:
        location: file and line, as messages show them.
        problem: what is wrong, by which rows are counted.
        value: the wrong value.
        is_empty: True if the row has no text or no label.
        message: the message, if it is not made of these.
    """

    def __init__(
        self, location: str, problem: str, value: object = None, *, is_empty: bool = False, message: str = ""
    ) -> None:
        shown = "" if value is None else f": `{str(value)[:60]}`"
        super().__init__(message or f"{location}: {problem}{shown}")
        self.location, self.problem, self.is_empty = location, problem, is_empty


class BadRows:
    """Rows that cannot be used, for one message."""

    def __init__(self, errors: Iterable[RowError] = ()) -> None:
        self._counts = Counter[str]()
        self._first: dict[str, list[RowError]] = {}
        for error in errors:
            self.add(error)

    def add(self, error: RowError) -> None:
        """Count a row; the first ones of each problem are kept."""
        self._counts[error.problem] += 1
        first = self._first.setdefault(error.problem, [])
        if len(first) <= MAX_PLACES:
            first.append(error)

    @property
    def has_empty(self) -> bool:
        """True if rows have no text or no label."""
        return any(first.is_empty for first, *_ in self._first.values())

    def __len__(self) -> int:
        return self._counts.total()

    def __str__(self) -> str:
        """Return the first row of each problem, with the places and the number of others."""
        shown = [(first, self._counts[problem] - 1) for problem, (first, *_) in self._first.items()]
        lines = [
            str(first) + (f" (and {more:,} more: {_places(self._first[first.problem][1:], more)})" if more else "")
            for first, more in shown[:MAX_PLACES]
        ]
        others = len(shown) - MAX_PLACES
        return "; ".join(lines) + (f"; and {others} other problems" if others > 0 else "")


def _places(errors: Sequence[RowError], count: int) -> str:
    """Return places such as "lines 3, 5, 8, …"."""
    places = [error.location.rpartition("`, ")[2].split(",")[0] for error in errors[:MAX_PLACES]]  # `line 3`
    numbers = ", ".join(place.partition(" ")[2] for place in places)
    word = places[0].partition(" ")[0] + "s" * (count > 1)
    return f"{word} {numbers}" + (", …" if count > len(places) else "")


class Examples(list[Any]):
    """Examples of one task.

    Args:
        located: pairs of location and example; the location is written as messages show it: "`a.tsv`, line 3".
        notes: lines for the user on how the data were read.
    """

    def __init__(self, located: Iterable[tuple[str, Any]] = (), notes: Iterable[str] = ()) -> None:
        super().__init__()
        self.locations: list[str] = []
        self.notes = list(notes)
        for location, example in located:
            self.add(location, example)

    def add(self, location: str, example: Any) -> None:
        """Append an example."""
        self.append(example)
        self.locations.append(location)

    def join(self, others: Examples) -> None:
        """Append examples with their locations and notes."""
        self.extend(others)
        self.locations += others.locations
        self.notes += others.notes

    def located(self) -> Iterator[tuple[str, Any]]:
        """Yield the location of each example with the example."""
        return zip(self.locations, self, strict=True)

    def map(self, function: Callable[[Any], Any]) -> Examples:
        """Return the result of a function for each example, with its location."""
        return Examples(zip(self.locations, map(function, self), strict=True), self.notes)

    def select(self, indices: Iterable[int]) -> Examples:
        """Return some of the examples."""
        return Examples(((self.locations[index], self[index]) for index in indices), self.notes)

    def sample(self, count: int) -> Examples:
        """Return a random sample of at most `count` examples, as `sample_indices` draws it."""
        return self.select(sample_indices(len(self), count))


def inputs_of(example: Any) -> list[Any]:
    """Return what a network reads of an example: its fields without label and id."""
    return [getattr(example, item.name) for item in fields(example) if item.name not in _LABELS]


def labels_of(example: Any) -> tuple[str, ...]:
    """Return the labels of an example: one, any number of them, a number as text, or one for each word."""
    several = getattr(example, "labels", None)
    if several is None:
        several = getattr(example, "tags", None)
    if several is not None:
        return tuple(several)
    label = getattr(example, "label", None)
    return () if label is None else (f"{label:.15g}" if isinstance(label, float) else str(label),)


def hold_out(examples: Examples, fraction: float) -> tuple[Examples, Examples]:
    """Split examples at random, the same way at each call, into those to train on and a fraction to score on.

    Both parts have the same proportions of labels. Examples with a label that no other example has are trained on.
    """
    order = np.random.default_rng(0).permutation(len(examples)).tolist()
    order.sort(key=lambda index: _stratum(examples[index]))
    # every nth of the sorted ones, with n = 1 / fraction
    chosen = {index for n, index in enumerate(order) if int((n + 1) * fraction + 0.5) > int(n * fraction + 0.5)}
    classes = [() if isinstance(getattr(item, "label", None), float) else labels_of(item) for item in examples]
    known = {label for index in order if index not in chosen for label in classes[index]}
    chosen = {index for index in chosen if known.issuperset(classes[index])}
    return examples.select(n for n in range(len(examples)) if n not in chosen), examples.select(sorted(chosen))


def _stratum(example: Any) -> Any:
    """Return what orders examples so that similar labels are neighbours."""
    label = getattr(example, "label", None)
    return label if isinstance(label, float) else (sorted({*labels_of(example)}), bool(getattr(example, "answers", ())))


def sample_indices(size: int, count: int) -> list[int]:
    """Return at most `count` random indices below `size`, sorted; the same ones at each call.

    The first lines of a file, or every second one, may all be of one kind.
    """
    return sorted(np.random.default_rng(0).permutation(size)[:count].tolist())


def encode_examples(task: AnyTask, examples: Examples) -> list[list[Any]]:
    """Return the features of each example, as `Task.encode`.

    Raises:
        ValueError: naming the location of the first invalid example, and places and number of others.
    """
    try:
        return task.encode(examples)
    except InvalidExamplesError as error:
        invalid = {item.index: item for item in reversed(error.invalid)}
        bad = ((examples.locations[index], invalid[index]) for index in sorted(invalid))
        errors = [RowError(f"{place}, {item.field}", item.reason) for place, item in bad]
        raise ValueError(str(BadRows(errors))) from error
