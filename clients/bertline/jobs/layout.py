"""Names of what lies in the folder of a job, and where its files lie."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable

from bertline.jobs.storage import File, FileError

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


def parts_of(output: File) -> File:
    """The folder where the parts of an output lie: the output itself, if it is one."""
    return output if output.url.endswith("/") else output.beside(".job")


def rejects_of(output: File) -> File:
    """Where the rejected rows of an output are told, unless another file is named."""
    return output.within(REJECTS) if output.url.endswith("/") else output.beside(".rejects.jsonl")


def refuse_clashes(inputs: Iterable[File], output: File | None, rejects: File | None) -> None:
    """Let neither the output nor the rejected rows replace a file that is read, each other, or what is no file. Rows
    that are told elsewhere need a folder there from the start, not in the end.

    Raises:
        FileError: when they would.
    """
    places = {_place(file): file for file in inputs}
    replaced = [_place(output), _place(parts_of(output))] if output else []
    for place, file in places.items():
        if any(_is_in(place, other) for other in replaced):
            raise FileError(f"is read and would be replaced: `{file.url}`; choose another output")
    if not rejects:
        return
    if _place(rejects) in places:
        raise FileError(f"is read and would be replaced by rejected rows: `{rejects.url}`; name another with --rejects")
    if output and _place(output) == _place(rejects):
        raise FileError(f"--rejects and --output are the same: `{rejects.url}`; name two files")
    is_named = not output or _place(rejects) != _place(rejects_of(output))
    if output and is_named and _is_in(_place(rejects), replaced[1]):
        raise FileError(f"lies among the parts of `{output.url}`: `{rejects.url}`; name another with --rejects")
    if is_named and rejects.is_local and not os.path.isdir(os.path.dirname(rejects.path)):
        raise FileError(f"cannot write `{rejects.url}`: {os.strerror(errno.ENOENT)}")
    if rejects.url.endswith("/") or (rejects.exists() and not rejects.system.isfile(rejects.path)):
        raise FileError(f"not a regular file: `{rejects.url}`; name another with --rejects")


def _is_in(place: tuple[str, str], folder: tuple[str, str]) -> bool:
    """Whether it is a folder, or lies in it."""
    return place[0] == folder[0] and f"{place[1]}/".startswith(f"{folder[1]}/")


def _place(file: File) -> tuple[str, str]:
    path = os.path.realpath(file.path) if file.is_local else file.path.rstrip("/")
    return str(file.system.protocol), path
