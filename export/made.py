"""What an export came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from export.quality import Quality
from export.tune import Choice, Trial
from export.variant import Numbers


@dataclass(frozen=True)
class Made:
    """A graph that was chosen and checked."""

    numbers: Numbers
    choice: Choice
    trials: list[Trial]
    judged_on: str
    """In words."""
    data: Mapping[str, Any]
    """What `Data.record` gives."""
    qualities: Mapping[str, Quality]
    """Of PyTorch and all numbers that were tried, by name."""
    differences: Mapping[str, float]
    """Largest difference of each output of the fp32 graph from PyTorch's."""
