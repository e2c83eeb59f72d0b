"""Choice of the input's columns for the output."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Selection:
    """The columns that were named to be kept, or all of them; without those that were named to be dropped.

    Raises:
        ValueError: when a column is named for both.
    """

    keep: Sequence[str] = ()
    """None of them: all."""
    drop: Sequence[str] = ()

    def __post_init__(self) -> None:
        if both := [name for name in self.keep if name in self.drop]:
            raise ValueError(f"--keep and --drop both name `{both[0]}`; name it for one of them")

    def of(self, names: Iterable[str]) -> list[str]:
        """The columns that are kept among those that are there."""
        return [name for name in self.without_dropped(names) if name in self.keep or not self.keep]

    def without_dropped(self, names: Iterable[str]) -> list[str]:
        """All of them but those that were named to be dropped."""
        return [name for name in names if name not in self.drop]


ALL_COLUMNS = Selection()
