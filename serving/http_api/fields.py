"""Fields of JSON requests: checked against a pydantic model, with errors that name them. Null means absent."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from bertline.v1 import encoder_pb2 as pb
from serving.core.errors import InvalidRequestError, UnusableOutputError, Violation, lower_first, shorten
from serving.http_api.json_pieces import path_of

_UNKNOWN = "unknown_field"


def _allow_null(schema: dict[str, Any]) -> None:
    """Describe that a field that may be absent may be null, too."""
    for name, field in schema["properties"].items():
        if name not in schema.get("required", ()):
            about = {key: field.pop(key) for key in ("default", "description", "title") if key in field}
            kinds = [item for item in field.get("anyOf", [field]) if item != {"type": "null"}]
            schema["properties"][name] = {"anyOf": [*kinds, {"type": "null"}], **about}


class Fields(BaseModel):
    """Fields of a request. Unknown ones are refused, as they would have no effect.

    The first error in a list ends its validation, and so does an unknown field: a body may hold a million of them.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, json_schema_extra=_allow_null)

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        if unknown := values.keys() - cls.__pydantic_fields__.keys():
            raise PydanticCustomError(_UNKNOWN, "unknown field", {"field": min(unknown)})
        return {name: value for name, value in values.items() if value is not None}


_ALTERNATIVE = re.compile(r"(list|dict|constrained|function)\b.*\[.*\]")
"""Part of a path with which pydantic names an alternative of a type, such as `list[int]`."""
Dimensions = Annotated[int, Field(ge=1, le=2**31 - 1)]
"""Type of a field with the number of dimensions to keep of a vector."""
FieldsT = TypeVar("FieldsT", bound=Fields)


def validated(values: Mapping[str, Any], fields: type[FieldsT]) -> FieldsT:
    """Return the fields of a request, given its values.

    Raises:
        InvalidRequestError: when fields are missing, unknown or wrong; the error names them.
    """
    try:
        return fields.model_validate(values)
    except ValidationError as error:
        found = {_path_of(item): item for item in error.errors(include_url=False, include_input=False)}
        raise InvalidRequestError(
            violations=[Violation(path, shorten(_reason(item))) for path, item in found.items()]
        ) from None


def _path_of(item: Any) -> str:
    """Return the path of a wrong field: `input[3]`. Parts that only name an alternative of a type are left out."""
    parts = [part for part in item["loc"] if isinstance(part, int) or not _ALTERNATIVE.fullmatch(part)]
    return path_of([*parts, item["ctx"]["field"]] if item["type"] == _UNKNOWN else parts)


def _reason(item: Any) -> str:
    if item["type"] == "missing":
        return "missing"
    if item["type"] == "none_required":
        return "not supported here; leave it out"
    return lower_first(str(item["msg"]).removeprefix("Value error, "))


def texts_or_token_ids(value: Any) -> list[str] | list[list[int]]:
    """Return one text or several, or token ids of one text or several, as a list.

    Raises:
        ValueError: when it is something else.
    """
    items = [value] if isinstance(value, str) or _is_token_ids(value) else value
    if not isinstance(items, list) or not items:
        raise ValueError("must be a text, a list of texts, token ids, or a list of them, and not empty")
    if not (isinstance(items[0], str) or _is_token_ids(items[0])):
        raise ValueError("item 0 is neither a text nor a list of token ids")
    for index, item in enumerate(items):
        if isinstance(items[0], str) and not isinstance(item, str):
            raise ValueError(f"item {index} is not a text, as the first one is")
        if isinstance(items[0], list) and not _is_token_ids(item):
            raise ValueError(f"item {index} is not a list of token ids, as the first one is")
    return items


TokenIds = Annotated[list[int], Field(min_length=1)]
TextsOrTokenIds = Annotated[
    list[str] | list[list[int]],
    PlainValidator(texts_or_token_ids, str | Annotated[list[str], Field(min_length=1)] | TokenIds | list[TokenIds]),
]
"""Type of a field that holds one text or several, or their token ids."""


def text_list(value: Any) -> list[str]:
    """Return a text or several as a list.

    Raises:
        ValueError: when it is something else.
    """
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list):
        raise ValueError("must be a text or a list of texts")
    if not is_texts(items):
        raise ValueError(f"item {[isinstance(item, str) for item in items].index(False)} is not a text")
    return items


def is_texts(value: Any) -> bool:
    """Return whether a value is a list of texts."""
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


Texts = Annotated[list[str], PlainValidator(text_list, str | list[str])]
"""Type of a field that holds one text or several."""


def token_id_rows(value: Any) -> list[list[int]]:
    """Return token ids of one text or several as a list of rows.

    Raises:
        ValueError: when it is something else.
    """
    rows = value if isinstance(value, list) and value and isinstance(value[0], list) else [value]
    for index, row in enumerate(rows):
        if row != [] and not _is_token_ids(row):
            raise ValueError(f"row {index} is not a list of token ids" if rows is value else "must be token ids")
    return rows


TokenIdRows = Annotated[list[list[int]], PlainValidator(token_id_rows, TokenIds | list[TokenIds])]
"""Type of a field that holds token ids of one text or several."""


def _is_token_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)


Rename = Callable[[str], str]
"""Function from the path of a field in the request that the server made to that of the caller's request."""


def renaming(names: Mapping[str, str]) -> Rename:
    """Return a function that renames fields.

    Args:
        names: start of a path -> its new start; the first one that fits counts.
    """

    def rename(path: str) -> str:
        for name, new in names.items():
            if path == name or path.startswith((f"{name}.", f"{name}[")):
                return new + path[len(name) :]
        return path

    return rename


@contextmanager
def named_as(rename: Rename) -> Iterator[None]:
    """Rename the fields in errors, as a route's callers know them."""
    try:
        yield
    except InvalidRequestError as error:
        if not error.violations:
            raise
        violations = [replace(item, field=rename(item.field)) for item in error.violations]
        raise InvalidRequestError(violations=violations) from None
    except UnusableOutputError as error:
        [item] = error.violations
        raise UnusableOutputError(replace(item, field=rename(item.field))) from None


def name_and_version(text: str) -> dict[str, str]:
    """Return `name` or `name/version` as an object with both."""
    name, _, version = text.partition("/")
    return {"name": name, "version": version}


def model_reference(name: str) -> pb.ModelRef:
    """Return the model that a name asks for: `name`, or `name/version`; empty for the default one."""
    return pb.ModelRef(**name_and_version(name))


class ModelFields(Fields):
    """Model of a request, with its version."""

    name: str = ""
    version: str = ""

    @property
    def reference(self) -> pb.ModelRef:
        """The message for it."""
        return pb.ModelRef(name=self.name, version=self.version)


def _model_values(value: Any) -> Any:
    if not isinstance(value, str | dict | ModelFields):
        raise ValueError('must be a name, a name with a version as `name/1`, or {"name": "...", "version": "..."}')
    return name_and_version(value) if isinstance(value, str) else value


ModelName = Annotated[ModelFields, BeforeValidator(_model_values, str | ModelFields)]
"""Type of a field that names a model, by `name`, `name/version`, or an object with both."""
ANY_MODEL = ModelFields()
