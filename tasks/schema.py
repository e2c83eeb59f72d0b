"""Check JSON values and numbers against the types of dataclass fields with pydantic, with one line per mistake.

    @dataclass(frozen=True)
    class Options:
        num_threads: Annotated[int, Bounds(least=1)] = 1

    read_fields(Options, {"num_threads": "2"})  # ValueError: `num_threads` must be a whole number: `"2"`
    check_bounds(Options(num_threads=0))        # ValueError: num_threads must be at least 1: `0`

Manifest, task settings, task cards, recipes and `config.json` are checked here.
"""

from __future__ import annotations

import functools
import json
import operator
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from annotated_types import GroupedMetadata, Interval
from pydantic import ConfigDict, TypeAdapter, ValidationError
from typing_extensions import is_typeddict

from tasks.text.json_files import as_json

_CONFIG = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)
_EXPECTED = {
    "bool_type": "true or false",
    "int_type": "a whole number",
    "float_type": "a finite number",
    "finite_number": "a finite number",
    "string_type": "a string",
    "path_type": "a string",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "an object",
    "mapping_type": "an object",
    "missing": "present",
    "greater_than": "above {gt:.15g}",
    "greater_than_equal": "at least {ge:.15g}",
    "less_than": "below {lt:.15g}",
    "less_than_equal": "at most {le:.15g}",
}
"""Type of pydantic's error -> what is allowed, in words; pydantic's own words for other types."""


@dataclass(frozen=True, kw_only=True)
class Bounds(GroupedMetadata):
    """Limits of a number, as metadata of a field: `Annotated[int, Bounds(least=1)]`. The number must be finite."""

    above: float | None = None
    least: float | None = None
    below: float | None = None
    most: float | None = None

    def __iter__(self) -> Iterator[Any]:
        return iter(Interval(gt=self.above, ge=self.least, lt=self.below, le=self.most))


class FieldError(ValueError):
    """A wrong value in a record. Its message can be written with other names for the fields, as those of a file.

    Args:
        message: returns the message from a function that names fields.
        named: names fields in `str(error)`.
    """

    def __init__(self, message: Callable[[Callable[[str], str]], str], named: Callable[[str], str] = str) -> None:
        super().__init__(message(named))
        self.message = message


def _expected(error: ValidationError, value: Any) -> tuple[str, str, Any]:
    """Return the path below a value, what is allowed there, and what was found, of the first mistake."""
    first, *others = error.errors(include_url=False)
    path, found = "", value
    for key in first["loc"]:
        if isinstance(found, Mapping) and (key in found or first["type"] == "missing"):
            path, found = f"{path}.{key}", found.get(str(key), found)
        elif isinstance(found, list | tuple) and isinstance(key, int):  # other keys name a type in a union
            path, found = f"{path}[{key}]", found[key]
    same = [first, *(item for item in others if item["input"] == first["input"])]  # one for each type of a union
    words = [_EXPECTED.get(item["type"], item["msg"].removeprefix("Input should be ")) for item in same]
    allowed = (word.format_map(item.get("ctx", {})) for word, item in zip(words, same, strict=True))
    return path, " or ".join(dict.fromkeys(allowed)), found


def check_choice(record: Any, name: str, allowed: Collection[str]) -> None:
    """Raise FieldError if a field has a value that is not among the allowed ones."""
    if (value := getattr(record, name)) not in allowed:
        raise FieldError(lambda named: f"unknown {named(name)}: `{value}` (one of: {', '.join(allowed)})")


def check_bounds(record: Any, *, named: Callable[[str], str] = str, choices: bool = True) -> None:
    """Check the numbers of a dataclass against their `Bounds`, and the choices against their `Literal`, also in tuples.

    Args:
        named: returns the name of a field for the message.
        choices: False for numbers alone, as of recipes, whose tasks may be registered from outside.

    Raises:
        FieldError: naming the first field out of bounds.
    """
    for name, adapter in _bounded_fields(type(record), choices).items():  # type: ignore[arg-type]
        try:
            adapter.validate_python(getattr(record, name), strict=False)
        except ValidationError as error:
            raise _bounds_error(record, name, error, named) from None


def _bounds_error(record: Any, name: str, error: ValidationError, named: Callable[[str], str]) -> FieldError:
    _, expected, found = _expected(error, getattr(record, name))
    return FieldError(lambda called: f"{called(name)} must be {expected}: `{found}`", named)


@functools.cache
def _bounded_fields(record_type: Any, choices: bool) -> dict[str, TypeAdapter[Any]]:
    hints = get_type_hints(record_type, include_extras=True)
    return {name: TypeAdapter(hint, config=_CONFIG) for name, hint in hints.items() if _is_bounded(hint, choices)}


def _is_bounded(hint: Any, choices: bool) -> bool:
    origin = get_origin(hint)
    if origin in (ClassVar, Literal):
        return choices and origin is Literal
    return hint in (int, float) or any(_is_bounded(item, choices) for item in get_args(hint))


@functools.cache
def _hints(record_type: Any) -> dict[str, Any]:
    hints = get_type_hints(record_type)
    return {name: hint for name, hint in hints.items() if get_origin(hint) is not ClassVar}


def read_fields(
    record_type: type, values: Mapping[str, Any], *, prefix: str = "", optional: Collection[str] | None = None
) -> dict[str, Any]:
    """Check the keys and types of a JSON object, and convert it to arguments of a dataclass.

    Lists become tuples and whole numbers floats where the field requires it. Nested objects stay as they are.

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
    try:
        found = _adapter(hint).validate_json(json.dumps(value, default=str))
    except ValidationError as error:
        below, expected, wrong = _expected(error, value)
        raise FieldError(lambda named: f"`{named(path)}{below}` must be {expected}: `{as_json(wrong)}`") from None
    if is_dataclass(hint):
        check_known_fields(hint, value, prefix=f"{path}.")
    return found


@functools.cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(_json_type(hint), config=None if is_typeddict(hint) else _CONFIG)


def _json_type(hint: Any) -> Any:
    """Return a type with objects in place of dataclasses, whose fields are read by themselves."""
    if get_origin(hint) in (Union, types.UnionType):
        return functools.reduce(operator.or_, map(_json_type, get_args(hint)))
    return dict[str, Any] if is_dataclass(hint) else hint
