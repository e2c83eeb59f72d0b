"""Examples that know where they stand in the data, so that a message about one can say so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from tasks import AnyTask, InvalidExamplesError


class Examples(list[Any]):
    """Examples of one task, with where each stands in the data.

    Args:
        placed: (place, example), the place as messages name it.
    """

    def __init__(self, placed: Iterable[tuple[str, Any]] = ()) -> None:
        super().__init__()
        self.places: list[str] = []
        for place, example in placed:
            self.add(place, example)

    def add(self, place: str, example: Any) -> None:
        """Append an example."""
        self.append(example)
        self.places.append(place)

    def placed(self) -> Iterator[tuple[str, Any]]:
        """(place, example) of each."""
        return zip(self.places, self, strict=True)

    def some(self, count: int) -> Examples:
        """At most so many, as `drawn` has them."""
        placed = list(self.placed())
        return Examples(placed[number] for number in drawn(len(self), count))


def drawn(size: int, count: int) -> list[int]:
    """At most so many of the numbers below `size`, in order; always the same ones, and at random: the first lines of a
    file, or every second one, may be of one kind."""
    return sorted(np.random.default_rng(0).permutation(size)[:count].tolist())


def encode_examples(task: AnyTask, examples: Examples) -> list[list[Any]]:
    """The features of each example, as `Task.encode`.

    Raises:
        ValueError: naming where the first example stands that cannot be used, and how many more there are.
    """
    try:
        return task.encode(examples)
    except InvalidExamplesError as error:
        first, count = error.invalid[0], len({item.index for item in error.invalid})
        more = f" (and {count - 1:,} more that cannot be used)" if count > 1 else ""
        raise ValueError(f"{examples.places[first.index]}, {first.field}: {first.reason}{more}") from error
