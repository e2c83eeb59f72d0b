"""JSON bodies -> plain values, strictly: a body that two parsers read differently is refused."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import jiter

from serving.core.errors import InvalidRequestError, Violation, lower_first, shorten

PIECE_BYTES = 2**18
"""Bytes of a body that are searched at a time, in 2 ms at most."""
_PAIR_BYTES = len(rb"\ud83d\ude00")
_FIRST, _SECOND = rb"\\u[dD][89abAB][\da-fA-F]{2}", rb"[c-fC-F][\da-fA-F]{2}"
_HALF = re.compile(rb"\\u[dD](?:[89abAB][\da-fA-F]{2}(?!\\u[dD]%b)|(?<![^\\]%b\\u[dD])%b)" % (_SECOND, _FIRST, _SECOND))
"""Escape of half of a surrogate pair, `\\ud800`. Also matches behind an escaped backslash; `_is_half` decides."""
_MARK = "half"
"""Text in place of such an escape, at the end of the body before it."""


def parse_json(data: bytes) -> Any:
    """Parse a JSON body.

    Raises:
        InvalidRequestError: when it is not JSON in UTF-8, nests too deeply, repeats a key, or holds NaN, infinity or
            half of a surrogate pair.
    """
    if not data.strip():
        raise InvalidRequestError("the body is empty; send JSON")
    try:
        return jiter.from_json(data, allow_inf_nan=False, catch_duplicate_keys=True)
    except ValueError as error:
        if found := _half_of_pair(data):
            raise InvalidRequestError(violations=[found]) from None
        raise InvalidRequestError(f"the body is not JSON: {lower_first(str(error))}") from None


def parse_object(data: bytes) -> dict[str, Any]:
    """Parse a JSON body that must be an object.

    Raises:
        InvalidRequestError: as `parse_json`, or when it is something else.
    """
    found = parse_json(data)
    if not isinstance(found, dict):
        raise InvalidRequestError("the body must be a JSON object: `{...}`")
    return found


def path_of(parts: Iterable[str | int]) -> str:
    """Return the path of a field: `inputs[3].text`; `body` for the whole body."""
    path = ""
    for part in parts:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path or "body"


def _half_of_pair(data: bytes) -> Violation | None:
    """Return where a body that is not JSON holds half of a surrogate pair; None if no string does."""
    escape = next((item for item in _halves(data) if _is_half(data, item.start())), None)
    if escape is None:
        return None
    before = data[: escape.start()]
    try:
        value: Any = jiter.from_json(before + _MARK.encode(), partial_mode="trailing-strings")
    except ValueError:  # something before it is wrong, too
        return None
    path: list[str | int] = []
    while isinstance(value, dict | list) and value:
        key = next(reversed(value)) if isinstance(value, dict) else len(value) - 1
        path.append(key)
        value = value[key]
    what = f"half of a surrogate pair, which is no character: `{escape[0].decode()}`; remove it"
    if isinstance(value, str) and value.endswith(_MARK):
        return Violation(shorten(path_of(path)), f"character {len(value) - len(_MARK) + 1} is {what}")
    return Violation("body", f"a key holds {what}")  # the parser leaves out keys without a value


def _halves(data: bytes) -> Iterator[re.Match[bytes]]:
    """Yield what looks like half of a surrogate pair. Each search holds the interpreter lock, so it has an end."""
    for start in range(0, len(data), PIECE_BYTES):
        end = start + PIECE_BYTES
        yield from (item for item in _HALF.finditer(data, start, end + _PAIR_BYTES) if item.start() < end)


def _is_half(data: bytes, start: int) -> bool:
    """Return whether an escape that looks like half of a surrogate pair is one."""
    before = start - _PAIR_BYTES // 2
    is_second = re.fullmatch(_FIRST, data[before:start]) and _is_escape(data, before)
    return _is_escape(data, start) and not is_second


def _is_escape(data: bytes, start: int) -> bool:
    """Return whether the backslash at a place is not itself escaped."""
    first = start
    while first and data[first - 1] == ord("\\"):
        first -= 1
    return (start - first) % 2 == 0
