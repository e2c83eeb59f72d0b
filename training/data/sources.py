"""Digests and names of data files, for records and model cards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tasks.bundle.files import sha256
from training.data.hub import hub_digest, is_hub


def source_digest(path: Path) -> str:
    """Return the SHA-256 of a file, or of the rows of a data set of the hub."""
    return hub_digest(path) if is_hub(path) else sha256(path)


def source_names(paths: Sequence[Path]) -> list[str]:
    """Return a short name for each file or data set: the file name, with parent folders if two files share it."""
    return [_short_name(path, paths) for path in paths]


def _short_name(path: Path, paths: Sequence[Path]) -> str:
    others = [other for other in paths if other != path]
    sizes = () if is_hub(path) else range(1, len(path.parts))
    tails = (path.parts[-size:] for size in sizes)
    unique = (tail for tail in tails if all(other.parts[-len(tail) :] != tail for other in others))
    return str(Path(*next(unique, (path,))))
