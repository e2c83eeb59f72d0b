"""Files that the command reads and writes: texts or JSONL in, JSONL out."""

from __future__ import annotations

import codecs
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

Write = Callable[[Mapping[str, Any]], object]
"""Writes one row."""


class FileError(Exception):
    """A file cannot be used; the message names the file, and the line where one is to blame."""


@dataclass(frozen=True, slots=True)
class Record:
    """One input of the server, and where it came from."""

    input: Any
    place: str
    """For messages."""
    keep: Mapping[str, Any]
    """What goes into the row of the result unchanged: the `id`, if it came with one."""


@contextmanager
def open_input(path: str) -> Iterator[tuple[BinaryIO, str]]:
    """Open a file, or standard input for `-`; with its name for messages."""
    if path == "-":
        if sys.stdin is None:
            raise FileError("cannot read standard input: it is closed")
        yield sys.stdin.buffer, "standard input"
        return
    try:
        file = open(path, "rb")  # noqa: SIM115
    except OSError as error:
        raise FileError(f"cannot read `{path}`: {error.strerror}") from error
    with file:
        yield file, f"`{path}`"


def read_records(
    file: BinaryIO, name: str, read_row: Callable[[Any], Any] | None, *, skip_empty: bool
) -> Iterator[Record]:
    """Read one record a line.

    Args:
        name: of the file, for messages.
        read_row: makes an input out of an object of JSONL, or raises ValueError; None reads each line as a text.
        skip_empty: pass over lines without text.

    Raises:
        FileError: naming the line that is empty, not UTF-8, not JSON, or refused by `read_row`.
    """
    for number, line in enumerate(file, start=1):
        place = f"{name}, line {number}"
        try:
            text = (line.removeprefix(codecs.BOM_UTF8) if number == 1 else line).decode().rstrip("\r\n")
            if text.strip():
                yield _record(text, read_row, place)
            elif not skip_empty:
                raise ValueError("the line is empty; mend it, or leave such lines out with --skip-empty")
        except UnicodeDecodeError as error:
            raise FileError(f"{place}: not UTF-8 (byte 0x{line[error.start]:02x}); convert the file") from error
        except ValueError as error:
            raise FileError(f"{place}: {error}") from error


def _record(text: str, read_row: Callable[[Any], Any] | None, place: str) -> Record:
    if read_row is None:
        return Record(text, place, {})
    row = _parse(text)
    return Record(read_row(row), place, {"id": row["id"]} if "id" in row else {})


def _parse(text: str) -> dict[str, Any]:
    try:
        row = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg} at column {error.colno})") from error
    except RecursionError as error:
        raise ValueError("JSON that is nested too deeply") from error
    if not isinstance(row, dict):
        raise ValueError(f"a JSON object is needed, a {type(row).__name__} came")
    return row


def read_string(row: Mapping[str, Any], key: str) -> str:
    """The string of a key.

    Raises:
        ValueError: when the key is missing or holds something else.
    """
    if key not in row:
        raise ValueError(f"missing key `{key}`")
    if not isinstance(row[key], str):
        raise ValueError(f"`{key}` must be a string")
    return row[key]


@contextmanager
def open_output(path: str | None, *, force: bool) -> Iterator[Write]:
    """Write rows as JSONL to standard output, or to a file that is whole or as it was before.

    Args:
        path: None for standard output.
        force: replace a file that exists.

    Raises:
        FileError: when the file exists, or cannot be written.
    """
    if path is None:
        with _standard_output() as file:
            yield lambda row: _write(file, row)
        return
    target = Path(path).resolve()  # a link stays, the file that it names is replaced
    if target.exists() and not target.is_file():
        raise FileError(f"not a regular file: `{path}`; leave out --output to write to standard output")
    if target.exists() and not force:
        raise FileError(f"already exists: `{path}`; choose another file, or replace it with --force")
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise FileError(f"cannot write `{path}`: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield lambda row: _write(file, row)
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@contextmanager
def _standard_output() -> Iterator[BinaryIO]:
    if sys.stdout is None:
        raise FileError("cannot write standard output: it is closed; give a file with --output")
    try:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    except BrokenPipeError:  # the reader has seen enough, as `head` does: what is still buffered goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _write(file: BinaryIO, row: Mapping[str, Any]) -> None:
    """A lone surrogate, possible in an `id`, is written as the JSON escape that it came as."""
    file.write(json.dumps(row, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n")
