"""Bounds of recipe fields, and errors that name the flag.

num_epochs: Annotated[float, EPOCHS] = 3.0
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from tasks.schema import Bounds, check_bounds

COUNT = Bounds(least=1)
NOT_NEGATIVE = Bounds(least=0)
POSITIVE = Bounds(above=0)
FRACTION = Bounds(least=0, most=1)
BELOW_ONE = Bounds(least=0, below=1)
TOKENS = Bounds(least=8)
"""Length of a sequence in tokens, special tokens included."""
EPOCHS = Bounds(above=0, most=1_000_000)
LEARNING_RATE = Bounds(above=0, most=1)
"""AdamW moves each weight by about the learning rate in a step; above 1, one step makes weights non-finite."""


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def check_numbers(recipe: Any) -> None:
    """Raise ValueError, naming the flag, for the first number of a recipe that is out of bounds."""
    check_bounds(recipe, named=_flag, choices=False)


def refuse_unused(recipe: Any, name: str, why: str) -> None:
    """Raise ValueError if a field that has no effect here differs from its default."""
    default = next(item.default for item in fields(recipe) if item.name == name)
    if (value := getattr(recipe, name)) != default:
        shown = " ".join(map(str, value)) if isinstance(value, tuple) else value
        raise ValueError(f"{_flag(name)} `{shown}` has no effect here: it {why}")
