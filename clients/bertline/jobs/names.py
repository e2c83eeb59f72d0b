"""Names of what lies in the folder of a job, so that nothing else in it is ever touched."""

from __future__ import annotations

import re
from collections.abc import Iterable

JOB, SCHEMA, SUCCESS, WHOLE, LOCK, REJECTS = "_job.json", "_schema", "_SUCCESS", "_whole", "_lock", "_rejects.jsonl"

_PART = re.compile(r"part-(\d{5,})-(\d{5,})-([0-9a-f]{12})\.\w+")
_REJECTS = re.compile(r"_rejects-(\d{5,})-(\d{5,})\.jsonl")
_UNFINISHED = re.compile(r"\.(part-|_).*\.\d+|_rejects\.jsonl(\.[0-9a-f]{8})?\.tmp")
_OTHERS = {JOB, SCHEMA, SUCCESS, WHOLE, LOCK, REJECTS}


def part_name(file: int, chunk: int, digest: str, suffix: str) -> str:
    """Of the results of a chunk."""
    return f"part-{file:05}-{chunk:05}-{digest}{suffix}"


def rejects_name(file: int, chunk: int) -> str:
    """Of its rows that have none."""
    return f"_rejects-{file:05}-{chunk:05}.jsonl"


def parts_in(names: Iterable[str]) -> dict[tuple[int, int], tuple[str, str]]:
    """Name and digest of the parts, by file and chunk, in the order of the rows: names alone would have 100000 before
    99999."""
    found = [(match, name) for name in names if (match := _PART.fullmatch(name))]
    return dict(sorted(((int(match[1]), int(match[2])), (name, match[3])) for match, name in found))


def rejects_in(names: Iterable[str]) -> list[str]:
    """Those of the rejected rows of chunks, in the order of the rows."""
    found = [(int(match[1]), int(match[2]), name) for name in names if (match := _REJECTS.fullmatch(name))]
    return [name for _, _, name in sorted(found)]


def is_unfinished(name: str) -> bool:
    """Whether a run wrote it that was killed before it was whole."""
    return bool(_UNFINISHED.fullmatch(name))


def is_ours(name: str) -> bool:
    """Whether a job made it."""
    return name in _OTHERS or is_unfinished(name) or bool(_PART.fullmatch(name) or _REJECTS.fullmatch(name))
