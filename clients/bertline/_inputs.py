"""Checks of arguments and inputs before anything is sent."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, MappingView, Sequence, Set
from numbers import Integral, Real
from typing import Any, TypeVar

import numpy as np

from bertline.errors import InvalidInput, InvalidItem
from bertline.v1 import encoder_pb2 as pb

MAX_COUNT = (1 << 32) - 1
"""Maximum count in a message. Larger counts are sent as this one."""
MAX_TIMEOUT_S = 1e9
"""Maximum timeout: 30 years. gRPC's deadlines overflow slightly above."""
_NOT_UNICODE = "contains a lone surrogate, which UTF-8 cannot express"
MAX_PORT = 65535
_SPACE = re.compile(r"[0-9a-f]{16}")
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_RESOLVERS = {"dns", "ipv4", "ipv6", "unix", "unix-abstract", "vsock", "xds", "google-c2p"}
"""Schemes that gRPC resolves."""
_WITH_TLS = {"https", "grpcs", "grpc+tls", "grpc+ssl"}
_WITHOUT_PORTS = ("unix:", "unix-abstract:", "vsock:")
_PORT = re.compile(r"(?:(?:dns|ipv4|ipv6|xds):)?(?:.*/)?(?:\[[^]]*\]|[^:[\]]*):(\d+)/?", re.ASCII)
"""Host and port; an IPv6 address is in brackets."""

ItemT = TypeVar("ItemT")


def read_items(values: Iterable[ItemT], name: str) -> list[ItemT]:
    """Return inputs as a list.

    Raises:
        TypeError: for a single string, a set, and a mapping or table, which would give only its keys.
    """
    if isinstance(values, str):
        raise TypeError(f"`{name}` must be a list, not one string; write `[text]`")
    is_frame = hasattr(values, "columns") and hasattr(values, "keys")  # of pandas: iterates over its column names
    if isinstance(values, Mapping) or is_frame:
        raise TypeError(f"`{name}` must be a list, not {type(values).__name__}, whose keys alone would be sent")
    if isinstance(values, Set) and not isinstance(values, MappingView):
        raise TypeError(f"`{name}` must be a list, not {type(values).__name__}, which has no order; sort it")
    return list(values)


def read_texts(values: Iterable[str]) -> list[str]:
    """Return texts as a list of strings that UTF-8 can encode."""
    texts = read_items(values, "texts")
    try:
        "".join(texts).encode()  # joined: ten times as fast as one by one
    except (TypeError, UnicodeEncodeError):
        check_texts([{"text": text} for text in texts])
    return texts


def read_texts_or_pairs(values: Iterable[str | tuple[str, str]]) -> list[pb.TextInput]:
    """Return texts and pairs of texts as messages."""
    rows = []
    for index, item in enumerate(read_items(values, "inputs")):
        fields = ("text", "text_pair") if isinstance(item, tuple | list) else ("text",)
        rows.append(dict(zip(fields, as_tuple(index, item, (2,)) if len(fields) > 1 else (item,), strict=True)))
    check_texts(rows)
    return [pb.TextInput(**row) for row in rows]


def as_tuple(index: int, item: Any, counts: Sequence[int]) -> Sequence[Any]:
    """Return an input that has one of some numbers of parts."""
    if isinstance(item, tuple | list) and len(item) in counts:
        return item
    got = f"{len(item)} values" if isinstance(item, tuple | list) else type(item).__name__
    wanted = "a pair" if counts == (2,) else "a question with choices"
    raise TypeError(f"input {index}: expected {wanted}, got {got}; for a single input write `[(a, b)]`")


def as_list(index: int, field: str, values: Any) -> list[Any]:
    """Return the texts of a field as a list."""
    if not isinstance(values, tuple | list):
        raise TypeError(f"input {index}, {field}: expected a list of strings, got {type(values).__name__}")
    return list(values)


def by_path(field: str, values: Sequence[Any]) -> dict[str, Any]:
    """Return texts by their path in the input."""
    return {f"{field}[{number}]": value for number, value in enumerate(values)}


def check_texts(rows: Sequence[dict[str, Any]]) -> None:
    """Check that all values are strings that UTF-8 can encode.

    Args:
        rows: strings of each input by field.

    Raises:
        TypeError: for another type.
        InvalidInput: for lone surrogates.
    """
    invalid = []
    for index, row in enumerate(rows):
        for field, value in row.items():
            if not isinstance(value, str):
                raise TypeError(f"input {index}, {field}: expected a string, got {type(value).__name__}")
            if not _is_unicode(value):
                invalid.append(InvalidItem(index, field, _NOT_UNICODE))
    if invalid:
        raise InvalidInput.of(invalid)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_option(name: str, value: Any) -> str:
    """Check a string option."""
    if not isinstance(value, str):
        raise TypeError(f"`{name}` must be a string: `{value!r}`")
    if not _is_unicode(value):
        raise InvalidInput.of([InvalidItem(None, name, _NOT_UNICODE)])
    return value


def read_model(model: str, version: str) -> pb.ModelRef:
    """Return name and version of a model as a message."""
    return pb.ModelRef(name=read_option("model", model), version=read_option("version", version))


def read_timeout(value: float) -> float:
    """Check a timeout in seconds."""
    if not isinstance(value, Real):
        raise TypeError(f"`timeout` must be a number of seconds: `{value!r}`")
    if not 0 < value <= MAX_TIMEOUT_S:
        raise ValueError(f"`timeout` must be above 0 seconds, and at most {MAX_TIMEOUT_S:g}: `{value}`")
    return float(value)  # Event.wait, unlike gRPC, refuses Fraction and most numbers of NumPy


def read_number(name: str, value: int) -> int:
    """Check a whole number of at least 1."""
    if not isinstance(value, Integral):
        raise TypeError(f"`{name}` must be a whole number: `{value!r}`")
    if value < 1:
        raise ValueError(f"`{name}` must be at least 1: `{value}`")
    return int(value)


def read_count(name: str, value: int | None) -> int:
    """Check a number of at least 1. Return 0, the server's default, for None."""
    return 0 if value is None else min(read_number(name, value), MAX_COUNT)


def read_flag(name: str, value: bool | None) -> bool | None:
    """Check True, False or None."""
    if not (value is None or isinstance(value, (bool, np.bool_)) or (isinstance(value, int) and value in (0, 1))):
        raise TypeError(f"`{name}` must be True or False: `{value!r}`")
    return value


def check_space(space: Any) -> None:
    """Check a space of vectors; None stands for any.

    Raises:
        TypeError: if it is no string.
        ValueError: if it does not have 16 hexadecimal digits.
    """
    if space is not None and not _SPACE.fullmatch(read_option("space", space)):
        raise ValueError(f"`space` must be 16 hexadecimal digits, as `Model.space`: `{space}`")


def check_target(target: Any) -> None:
    """Check a target.

    Raises:
        TypeError: if it is no string.
        ValueError: for an empty target, the URL of another protocol, and an invalid port.
    """
    if not isinstance(target, str):
        raise TypeError(f"`target` must be a string, `host:port`: `{target!r}`")
    if not target.strip():
        raise ValueError(f"a target must be `host:port`: `{target}`")
    if (found := _SCHEME.match(target)) and found[1].lower() not in _RESOLVERS:
        address = target[found.end() :].partition("/")[0] or "host"
        address += "" if re.search(r":\d+$", address) else ":port"
        tls = "; for TLS give `credentials` (the command: --tls-ca FILE)" if found[1].lower() in _WITH_TLS else ""
        raise ValueError(f"a target must be `host:port`, without `{found[0]}`: write `{address}`, not `{target}`{tls}")
    if not target.startswith(_WITHOUT_PORTS):
        for address in target.split(","):
            port = _PORT.fullmatch(address)
            if port and not 1 <= int(port[1][:20]) <= MAX_PORT:
                raise ValueError(f"the port of a target must be 1 to {MAX_PORT}, not {port[1]}: `{target}`")
