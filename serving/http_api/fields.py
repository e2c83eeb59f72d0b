"""Fields of JSON requests: checked against a pydantic model, with errors that name them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError, WithJsonSchema

from bertline.v1 import encoder_pb2 as pb
from serving.core.errors import InvalidRequestError, UnusableOutputError, Violation, lower_first, shorten
from serving.http_api.json_body import parse_object, path_of


class Fields(BaseModel):
    """Fields of a request. Unknown ones are refused, as they would have no effect."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


_ALTERNATIVE = re.compile(r"(list|dict|constrained|function)\b.*\[.*\]")
"""Part of a path with which pydantic names an alternative of a type, such as `list[int]`."""
Dimensions = Annotated[int, Field(ge=1, le=2**31 - 1)]
"""Type of a field with the number of dimensions to keep of a vector."""
FieldsT = TypeVar("FieldsT", bound=Fields)


def read_fields(data: bytes, fields: type[FieldsT]) -> FieldsT:
    """Read a JSON request.

    Raises:
        InvalidRequestError: when it is not JSON, or fields are missing, unknown or wrong; the error names them.
    """
    return validated(parse_object(data), fields)


def validated(values: Mapping[str, Any], fields: type[FieldsT]) -> FieldsT:
    """Return the fields of a request, given its values.

    Raises:
        InvalidRequestError: when fields are missing, unknown or wrong; the error names them.
    """
    try:
        return fields.model_validate(values)
    except ValidationError as error:
        found = {_path_of(item["loc"]): item for item in error.errors(include_url=False, include_input=False)}
        raise InvalidRequestError(
            violations=[Violation(path, shorten(_reason(item))) for path, item in found.items()]
        ) from None


def _path_of(location: Iterable[str | int]) -> str:
    """Return the path of a field: `input[3]`. Parts that only name an alternative of a type are left out."""
    return path_of(part for part in location if isinstance(part, int) or not _ALTERNATIVE.fullmatch(part))


def texts_or_token_ids(value: Any) -> list[str] | list[list[int]]:
    """Return one text or several, or token ids of one text or several, as a list.

    Raises:
        ValueError: when it is something else.
    """
    items = [value] if isinstance(value, str) or _is_token_ids(value) else value
    if not isinstance(items, list) or not items:
        raise ValueError("must be a text, a list of texts, token ids, or a list of them, and not empty")
    fits, what = (_is_text, "a text") if isinstance(items[0], str) else (_is_token_ids, "a list of token ids")
    if not fits(items[0]):
        raise ValueError("item 0 is neither a text nor a list of token ids")
    for index, item in enumerate(items):
        if not fits(item):
            raise ValueError(f"item {index} is not {what}, as the first one is")
    return items


_TOKEN_IDS = {"type": "array", "minItems": 1, "items": {"type": "integer"}}
TextsOrTokenIds = Annotated[
    list[str] | list[list[int]],
    PlainValidator(texts_or_token_ids),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "minItems": 1, "items": {"type": "string"}},
                _TOKEN_IDS,
                {"type": "array", "minItems": 1, "items": _TOKEN_IDS},
            ]
        }
    ),
]
"""Type of a field that holds one text or several, or their token ids."""


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_token_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)


@contextmanager
def named_as(names: Mapping[str, str]) -> Iterator[None]:
    """Rename the fields in errors, as a route's callers know them.

    Args:
        names: start of a path in the request that the server made -> that of the caller's request; the first one that
            fits counts.
    """
    try:
        yield
    except InvalidRequestError as error:
        if not error.violations:
            raise
        raise InvalidRequestError(violations=[_renamed(item, names) for item in error.violations]) from None
    except UnusableOutputError as error:
        raise UnusableOutputError(_renamed(error.violations[0], names)) from None


def _renamed(violation: Violation, names: Mapping[str, str]) -> Violation:
    path = violation.field
    for name, new in names.items():
        if path == name or path.startswith((f"{name}.", f"{name}[")):
            return replace(violation, field=new + path[len(name) :])
    return violation


def model_reference(name: str) -> pb.ModelRef:
    """Return the model that a name asks for: `name`, or `name/version`; empty for the only one."""
    before, _, version = name.partition("/")
    return pb.ModelRef(name=before, version=version)


def _reason(item: Any) -> str:
    known = {
        "missing": "missing",
        "extra_forbidden": "unknown field",
        "none_required": "not supported here; leave it out",
    }
    message = str(item["msg"]).removeprefix("Value error, ")
    return known.get(item["type"], lower_first(message))
