"""Names and paths of a job's files.

    vectors.parquet                            output
    vectors.parquet.rejects.jsonl              rejected rows
    vectors.parquet.job/                       job directory, removed at the end
        _job.json                              identity of the job; at the end also the file of rejected rows
        _schema                                pass-through columns and their types, for Parquet
        _lock                                  locked while a run works here
        part-00000-00000-1f2e3d4c5b6a.parquet  results of a chunk: file, chunk, digest of the rows
        _rejects-00000-00000.jsonl             rejected rows of that chunk, if any
        _truncated-00000-00000.json            number of its truncated rows, if any
        _whole                                 all parts joined
        _SUCCESS                               the job is complete, with its totals

An output that is a folder (`vectors/`) is its own job directory, and stays.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Sequence

from bertline.jobs.storage import File, FileError

JOB, SCHEMA, SUCCESS, WHOLE, LOCK, REJECTS = "_job.json", "_schema", "_SUCCESS", "_whole", "_lock", "_rejects.jsonl"

_PART = re.compile(r"part-(\d{5,})-(\d{5,})-([0-9a-f]{12})\.\w+")
_REJECTS = re.compile(r"_rejects-(\d{5,})-(\d{5,})\.jsonl")
_TRUNCATED = re.compile(r"_truncated-(\d{5,})-(\d{5,})\.json")
_UNFINISHED = re.compile(r"\.(part-|_).*\.\d+|_rejects\.jsonl(\.[0-9a-f]{8})?\.tmp")
_SINGLE = {JOB, SCHEMA, SUCCESS, WHOLE, LOCK, REJECTS}


def part_name(file: int, chunk: int, digest: str, suffix: str) -> str:
    """Return the name of a chunk's results."""
    return f"part-{file:05}-{chunk:05}-{digest}{suffix}"


def rejects_name(file: int, chunk: int) -> str:
    """Return the name of a chunk's rejected rows."""
    return f"_rejects-{file:05}-{chunk:05}.jsonl"


def truncated_name(file: int, chunk: int) -> str:
    """Return the name of the count of a chunk's truncated rows."""
    return f"_truncated-{file:05}-{chunk:05}.json"


def parts_in(names: Iterable[str]) -> dict[tuple[int, int], tuple[str, str]]:
    """Return name and digest of the parts by (file, chunk), in the order of the rows."""
    found = [(match, name) for name in names if (match := _PART.fullmatch(name))]
    return dict(sorted(((int(match[1]), int(match[2])), (name, match[3])) for match, name in found))


def rejects_in(names: Iterable[str]) -> list[str]:
    """Return the files of chunks' rejected rows, in the order of the rows."""
    return _in_order(names, _REJECTS)


def truncated_in(names: Iterable[str]) -> list[str]:
    """Return the files that count chunks' truncated rows, in the order of the rows."""
    return _in_order(names, _TRUNCATED)


def _in_order(names: Iterable[str], pattern: re.Pattern[str]) -> list[str]:
    """Sort by numbers: as text, 100000 comes before 99999."""
    found = [(int(match[1]), int(match[2]), name) for name in names if (match := pattern.fullmatch(name))]
    return [name for _, _, name in sorted(found)]


def is_unfinished(name: str) -> bool:
    """Return True if a run was killed while it wrote this file."""
    return bool(_UNFINISHED.fullmatch(name))


def is_job_file(name: str) -> bool:
    """Return True if a job wrote this file."""
    patterns = (_PART, _REJECTS, _TRUNCATED, _UNFINISHED)
    return name in _SINGLE or any(pattern.fullmatch(name) for pattern in patterns)


def job_directory_of(output: File) -> File:
    """Return the job directory of an output."""
    return output if output.url.endswith("/") else output.beside(".job")


def rejects_of(output: File) -> File:
    """Return the default file of an output's rejected rows."""
    return output.within(REJECTS) if output.url.endswith("/") else output.beside(".rejects.jsonl")


def refuse_conflicts(inputs: Sequence[File], output: File | None, rejects: File | None) -> None:
    """Check that neither the output nor the rejected rows would replace an input, each other, or a special file.

    Raises:
        FileError: when they would, or the folder of a file given with --rejects does not exist.
    """
    _refuse_replaced_inputs(inputs, output)
    if rejects:
        _refuse_rejects(inputs, output, rejects)


def _refuse_replaced_inputs(inputs: Iterable[File], output: File | None) -> None:
    replaced = [_resolved(output), _resolved(job_directory_of(output))] if output else []
    for file in inputs:
        if any(_is_in(_resolved(file), place) for place in replaced):
            raise FileError(f"the output would replace an input: `{file.url}`; choose another output")


def _refuse_rejects(inputs: Iterable[File], output: File | None, rejects: File) -> None:
    hint = f"`{rejects.url}`; name another file with --rejects"
    place = _resolved(rejects)
    if place in map(_resolved, inputs):
        raise FileError(f"the rejected rows would replace an input: {hint}")
    if output and place == _resolved(output):
        raise FileError(f"--rejects and --output are the same: `{rejects.url}`; name two files")
    is_named = not output or place != _resolved(rejects_of(output))
    if output and is_named and _is_in(place, _resolved(job_directory_of(output))):
        raise FileError(f"--rejects lies in the job directory of `{output.url}`: {hint}")
    if is_named and rejects.is_local and not os.path.isdir(os.path.dirname(rejects.path)):
        raise FileError(f"cannot write `{rejects.url}`: {os.strerror(errno.ENOENT)}")
    if rejects.url.endswith("/") or (rejects.exists() and not rejects.system.isfile(rejects.path)):
        raise FileError(f"not a regular file: {hint}")


def _is_in(place: tuple[str, str], folder: tuple[str, str]) -> bool:
    """Return True if a path is the folder, or lies in it."""
    return place[0] == folder[0] and f"{place[1]}/".startswith(f"{folder[1]}/")


def _resolved(file: File) -> tuple[str, str]:
    """Return file system and path without links, to compare files."""
    path = os.path.realpath(file.path) if file.is_local else file.path.rstrip("/")
    return str(file.system.protocol), path
