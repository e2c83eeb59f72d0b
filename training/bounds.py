"""What the fields of a recipe may hold: of numbers said in their types, checked in one place.

num_epochs: Annotated[float, Bounds(above=0)] = 3.0
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, get_args, get_type_hints


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The numbers that a field may hold, all of them finite."""

    above: float = -math.inf
    least: float = -math.inf
    below: float = math.inf
    most: float = math.inf

    def allow(self, value: float) -> bool:
        """Whether a value lies within; what is no number does not."""
        return self.above < value < self.below and self.least <= value <= self.most

    def __str__(self) -> str:
        parts = {"above": self.above, "at least": self.least, "below": self.below, "at most": self.most}
        return " and ".join(f"{word} {bound}" for word, bound in parts.items() if math.isfinite(bound)) or "finite"


COUNT = Bounds(least=1)
NOT_NEGATIVE = Bounds(least=0)
POSITIVE = Bounds(above=0)
FRACTION = Bounds(least=0, most=1)
BELOW_ONE = Bounds(least=0, below=1)
TOKENS = Bounds(least=8)
"""Length of a sequence, special tokens included."""
EPOCHS = Bounds(above=0, most=1_000_000)
LEARNING_RATE = Bounds(above=0, most=1)
"""Learning rate: about as far AdamW moves each weight in a step; far beyond, a single one leaves no numbers."""


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def check_numbers(recipe: Any, *, named: Callable[[str], str] = _flag) -> None:
    """Look at every field that holds a number, or some in a tuple.

    Args:
        named: how the message calls a field.

    Raises:
        ValueError: naming the flag, what it may be and what came, for the first that is beyond its limits.
    """
    for name, hint in get_type_hints(type(recipe), include_extras=True).items():
        value, limits = getattr(recipe, name), _limits(hint)
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, int | float) and not limits.allow(number):
                raise ValueError(f"{named(name)} must be {limits}: `{number}`")


def _limits(hint: Any) -> Bounds:
    """What the metadata of a type say, or those of a part of it (as in `... | None`)."""
    for item in (*getattr(hint, "__metadata__", ()), *map(_limits, get_args(hint))):
        if isinstance(item, Bounds) and item != Bounds():
            return item
    return Bounds()


def refuse_unused(recipe: Any, name: str, why: str) -> None:
    """Raise ValueError where a field that would have no effect is not as it is by default."""
    default = next(item.default for item in fields(recipe) if item.name == name)
    if getattr(recipe, name) != default:
        raise ValueError(f"{_flag(name)} `{getattr(recipe, name)}` has no effect here: it {why}")
