"""Text and JSONL -> rows."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from bertline.jobs.blocks import Row


def read_lines(
    stream: BinaryIO, read: Callable[[str], dict[str, Any]], *, skip_empty: bool
) -> Iterator[tuple[Row, bytes]]:
    """A row a line, with the bytes of the line.

    Args:
        read: makes the row's columns out of a line, or raises ValueError; `text_columns` or `json_columns`.
        skip_empty: pass over lines without text.
    """
    for number, line in enumerate(stream, start=1):
        text = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        if not (skip_empty and not text.decode(errors="replace").strip()):
            yield _row(f"line {number}", text, read), line


def _row(place: str, line: bytes, read: Callable[[str], dict[str, Any]]) -> Row:
    try:
        text = line.decode().rstrip("\r\n")
        if not text.strip():
            raise ValueError("the line is empty; mend it, or leave such lines out with --skip-empty")
        if "\0" in text:
            raise ValueError("a NUL byte; the file is damaged, or UTF-16: convert it")
        return Row(place, read(text))
    except UnicodeDecodeError as error:
        reason = f"not UTF-8 (byte 0x{line[error.start]:02x}); convert the file"
    except ValueError as error:
        reason = str(error)
    return Row(place, {"line": line.decode(errors="backslashreplace").rstrip("\r\n")}, reason)


def text_columns(text: str) -> dict[str, Any]:
    """`text`."""
    return {"text": text}


def json_columns(text: str) -> dict[str, Any]:
    """Those of an object."""
    try:
        row = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg} at column {error.colno})") from error
    except RecursionError as error:
        raise ValueError("JSON that is nested too deeply") from error
    if not isinstance(row, dict):
        raise ValueError(f"a JSON object is needed, a {type(row).__name__} came")
    return row
