"""Examples with their locations in the data, for messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from tasks import AnyTask, InvalidExamplesError


class Examples(list[Any]):
    """Examples of one task.

    Args:
        located: pairs of location and example; the location is written as messages show it: "`a.tsv`, line 3".
    """

    def __init__(self, located: Iterable[tuple[str, Any]] = ()) -> None:
        super().__init__()
        self.locations: list[str] = []
        for location, example in located:
            self.add(location, example)

    def add(self, location: str, example: Any) -> None:
        """Append an example."""
        self.append(example)
        self.locations.append(location)

    def located(self) -> Iterator[tuple[str, Any]]:
        """Yield the location of each example with the example."""
        return zip(self.locations, self, strict=True)

    def map(self, function: Callable[[Any], Any]) -> Examples:
        """Return the result of a function for each example, with its location."""
        return Examples(zip(self.locations, map(function, self), strict=True))

    def sample(self, count: int) -> Examples:
        """Return a random sample of at most `count` examples, as `sample_indices` draws it."""
        located = list(self.located())
        return Examples(located[index] for index in sample_indices(len(self), count))


def sample_indices(size: int, count: int) -> list[int]:
    """Return at most `count` random indices below `size`, sorted; the same ones at each call.

    The first lines of a file, or every second one, may all be of one kind.
    """
    return sorted(np.random.default_rng(0).permutation(size)[:count].tolist())


def encode_examples(task: AnyTask, examples: Examples) -> list[list[Any]]:
    """Return the features of each example, as `Task.encode`.

    Raises:
        ValueError: naming the location of the first invalid example, and the number of others.
    """
    try:
        return task.encode(examples)
    except InvalidExamplesError as error:
        first, count = error.invalid[0], len({item.index for item in error.invalid})
        more = f" (and {count - 1:,} more invalid examples)" if count > 1 else ""
        raise ValueError(f"{examples.locations[first.index]}, {first.field}: {first.reason}{more}") from error
