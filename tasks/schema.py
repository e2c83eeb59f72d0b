"""Check JSON values and numbers against the types of dataclass fields, with one line per mistake.

    @dataclass(frozen=True)
    class Options:
        num_threads: Annotated[int, Bounds(least=1)] = 1

    read_fields(Options, {"num_threads": "2"})  # ValueError: `num_threads` must be a whole number: `'2'`
    check_bounds(Options(num_threads=0))        # ValueError: num_threads must be at least 1: `0`

Manifest, task settings, task cards, recipes and `config.json` are checked here. Unlike pydantic, which `training` and
`export` do not install, this module costs nothing to import and reports one mistake in one line.
"""

from __future__ import annotations

import math
import sys
import types
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from tasks.json_files import as_json


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Limits of a number, as metadata of a field: `Annotated[int, Bounds(least=1)]`. The number must be finite."""

    above: float = -math.inf
    least: float = -math.inf
    below: float = math.inf
    most: float = math.inf

    def allow(self, value: float) -> bool:
        """Return whether a number is within the limits; NaN is not."""
        return self.above < value < self.below and self.least <= value <= self.most

    def __str__(self) -> str:
        parts = {"above": self.above, "at least": self.least, "below": self.below, "at most": self.most}
        return " and ".join(f"{word} {bound}" for word, bound in parts.items() if math.isfinite(bound)) or "finite"


FINITE = Bounds()


class FieldError(ValueError):
    """A wrong value in a record. Its message can be written with other names for the fields, as those of a file.

    Args:
        message: returns the message from a function that names fields.
        named: names fields in `str(error)`.
    """

    def __init__(self, message: Callable[[Callable[[str], str]], str], named: Callable[[str], str] = str) -> None:
        super().__init__(message(named))
        self.message = message


def check_choice(record: Any, name: str, allowed: Collection[str]) -> None:
    """Raise FieldError if a field has a value that is not among the allowed ones."""
    if (value := getattr(record, name)) not in allowed:
        raise FieldError(lambda named: f"unknown {named(name)}: `{value}` (one of: {', '.join(allowed)})")


def check_bounds(record: Any, *, named: Callable[[str], str] = str) -> None:
    """Check the number fields of a dataclass, and numbers in tuples, against their `Bounds`.

    Args:
        named: returns the name of a field for the message.

    Raises:
        FieldError: naming the first field out of bounds.
    """
    for name, bounds in _number_fields(type(record)).items():  # type: ignore[arg-type]
        value = getattr(record, name)
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, int | float) and not bounds.allow(number):
                raise _bounds_error(name, bounds, number, named)


def _bounds_error(name: str, bounds: Bounds, number: float, named: Callable[[str], str]) -> FieldError:
    return FieldError(lambda called: f"{called(name)} must be {bounds}: `{number}`", named)


@cache
def _number_fields(record_type: Any) -> dict[str, Bounds]:
    return {name: _find_bounds(hint) for name, hint in _hints(record_type).items() if _holds_numbers(hint)}


def _find_bounds(hint: Any) -> Bounds:
    """Return the bounds in a type, or in a part of it (as in `... | None`)."""
    for item in (*getattr(hint, "__metadata__", ()), *map(_find_bounds, get_args(hint))):
        if isinstance(item, Bounds) and item != FINITE:
            return item
    return FINITE


def _holds_numbers(hint: Any) -> bool:
    return hint in (int, float) or any(map(_holds_numbers, get_args(hint)))


@cache
def _hints(record_type: Any) -> dict[str, Any]:
    hints = get_type_hints(record_type, include_extras=True)
    return {name: hint for name, hint in hints.items() if get_origin(hint) is not ClassVar}


def read_fields(
    record_type: type, values: Mapping[str, Any], *, prefix: str = "", optional: Collection[str] | None = None
) -> dict[str, Any]:
    """Check the keys and types of a JSON object, and convert it to arguments of a dataclass.

    Lists become tuples and whole numbers floats where the field says so. Nested objects stay as they are.

    Args:
        prefix: put before keys in messages (`execution.`).
        optional: fields that may be missing; None for all with a default.

    Raises:
        ValueError: naming the key that is unknown, missing or of a wrong type.
    """
    known = {item.name: item for item in fields(record_type)}
    if unknown := next((key for key in values if key not in known), None):
        raise ValueError(f"unknown key `{prefix}{unknown}` (known: {', '.join(known)})")
    for name, item in known.items():
        has_default = item.default is not MISSING or item.default_factory is not MISSING
        if name not in values and not (has_default if optional is None else name in optional):
            raise ValueError(f"missing key `{prefix}{name}`")
    hints = _hints(record_type)
    return {key: read_value(value, hints[key], f"{prefix}{key}") for key, value in values.items()}


def check_known_fields(record_type: Any, values: Mapping[str, Any], *, prefix: str = "") -> None:
    """Check the types of the fields that are there, and ignore unknown keys, as of another version.

    Args:
        prefix: put before keys in messages.

    Raises:
        FieldError: naming the key of a wrong type.
    """
    for name, hint in _hints(record_type).items():
        if name in values:
            read_value(values[name], hint, f"{prefix}{name}")


def read_value(value: Any, hint: Any, path: str) -> Any:
    """Check a JSON value against a type, and convert it: lists to tuples, whole numbers to floats.

    Raises:
        FieldError: naming the path, the expected type and the value.
    """
    if not fits(value, hint):
        raise FieldError(lambda named: f"`{named(path)}` must be {describe(hint)}: `{as_json(value)}`")
    if is_dataclass(hint):
        check_known_fields(hint, value, prefix=f"{path}.")
    return _convert(value, hint)


def fits(value: Any, hint: Any) -> bool:
    """Return whether a JSON value is of the type of a field."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin is Annotated:
        return fits(value, arguments[0])
    if origin in (Union, types.UnionType):
        return any(fits(value, item) for item in arguments)
    if origin is Literal:  # any string: which ones are allowed may differ between versions, and is checked later
        return any(isinstance(value, type(item)) for item in arguments)
    if origin in (tuple, list):
        return isinstance(value, list | tuple) and all(fits(item, arguments[0]) for item in value)
    if origin in (dict, Mapping):
        return isinstance(value, Mapping) and all(fits(item, arguments[1]) for item in value.values())
    if is_typeddict(hint):
        return isinstance(value, Mapping) and all(
            key in value and fits(value[key], item) for key, item in _hints(hint).items()
        )
    if is_dataclass(hint):  # `read_value` checks its fields
        return isinstance(value, Mapping)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, str if hint is Path else hint)


_NOUNS = {
    bool: ("true or false", "booleans"),
    int: ("a whole number", "whole numbers"),
    float: ("a finite number", "finite numbers"),
    str: ("a string", "strings"),
    Path: ("a string", "strings"),
    type(None): ("null", "nulls"),
}
"""Type -> description of one value, and of several."""


def describe(hint: Any) -> str:
    """Return what JSON must hold for the type of a field, in words."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return describe(arguments[0])
    if origin in (Union, types.UnionType):
        return " or ".join(map(describe, arguments))
    if origin is Literal:
        return describe(type(arguments[0]))
    if origin in (tuple, list):
        return f"a list of {_describe_several(arguments[0])}"
    if origin in (dict, Mapping):
        return "an object" if arguments[1] is Any else f"an object of {_describe_several(arguments[1])}"
    if is_typeddict(hint):
        return f"an object with {', '.join(f'`{key}`' for key in hint.__annotations__)}"
    return _NOUNS.get(hint, ("an object", ""))[0]


def _describe_several(hint: Any) -> str:
    return _NOUNS.get(get_args(hint)[0] if get_origin(hint) is Annotated else hint, ("", "values"))[1]


def _convert(value: Any, hint: Any) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _convert(value, arguments[0])
    if origin is tuple:
        return tuple(_convert(item, arguments[0]) for item in value)
    if hint is float:
        return float(value)
    return value
