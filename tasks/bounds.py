"""Bounds of the numbers in settings and manifests: values beyond them are mistakes, which cost memory before they
show."""

from __future__ import annotations

from collections.abc import Mapping

MAX_SEQ_LENGTH = 65_536
"""Tokens of a sequence."""
MAX_BATCH_TOKENS = 2**20
MAX_THREADS = 1024
MAX_LABELS = 65_536
MAX_LABEL_CHARS = 1024
MAX_STRICT_LABELS = 2048
"""Labels of strict tagging, which needs a table of all pairs of tags."""

Bounds = Mapping[str, tuple[int, int]]
"""Least and most that fields may hold."""


def check_bounds(record: object, bounds: Bounds, *, prefix: str = "") -> None:
    """Check fields of a record.

    Args:
        prefix: of a field's name in the message.

    Raises:
        ValueError: naming the first field that lies beyond, and the bound.
    """
    for name, (least, most) in bounds.items():
        value = getattr(record, name)
        if value < least:
            raise ValueError(f"{prefix}{name} must be at least {least}: `{value}`")
        if value > most:
            raise ValueError(f"{prefix}{name} must be at most {most}: `{value}`")
