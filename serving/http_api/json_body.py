"""JSON bodies -> plain values, strictly: a body that two parsers read differently is refused."""

from __future__ import annotations

from typing import Any

import jiter

from serving.core.errors import InvalidRequestError, lower_first


def parse_json(data: bytes) -> Any:
    """Parse a JSON body.

    Raises:
        InvalidRequestError: when it is not JSON in UTF-8, nests too deeply, repeats a key, or holds NaN or infinity.
    """
    if not data.strip():
        raise InvalidRequestError("the body is empty; send JSON")
    try:
        return jiter.from_json(data, allow_inf_nan=False, catch_duplicate_keys=True)
    except ValueError as error:
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
