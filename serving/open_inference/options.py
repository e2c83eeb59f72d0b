"""Parameters of a request."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from serving.open_inference.tensors import invalid_field, quoted

_KINDS = {"truncate": bool, "normalize": bool, "prompt_name": str, "input_type": str, "top_k": int}


@dataclass(frozen=True, slots=True)
class Options:
    """Options that a request may set besides its inputs."""

    truncate: bool | None = None
    """Cut texts that are too long instead of refusing them; None for the default of the manifest."""
    normalize: bool | None = None
    """Return vectors of length 1; None for the default of the model."""
    prompt_name: str | None = None
    """Name of the model's prompt before each text; None for the model's default prompt, empty for none."""
    input_type: str | None = None
    """`query` or `document`, for the model's prompt for them; not together with `prompt_name`."""
    top_k: int | None = None
    """Maximum number of results for a text or a mask; None for the default of the task."""


def read_options(parameters: Mapping[str, Any], known: Collection[str]) -> Options:
    """Read the parameters of a request.

    Args:
        parameters: parameters by name.
        known: names of the options that the inputs allow.

    Raises:
        InvalidRequestError: naming a parameter that is unknown or of the wrong type.
    """
    for name in parameters:
        if name not in known:
            listed = ", ".join(sorted(known)) or "none"
            raise invalid_field("parameters", f"unknown: {quoted(name)} (parameters for these inputs: {listed})")
    return Options(**{name: _value(name, parameter) for name, parameter in parameters.items()})


def _value(name: str, parameter: Any) -> Any:
    choice = parameter.WhichOneof("parameter_choice")
    value = getattr(parameter, choice) if choice else None
    if _KINDS[name] is bool:
        if not isinstance(value, bool):
            raise invalid_field(f"parameters[{name}]", "must be true or false")
    elif _KINDS[name] is str:
        if not isinstance(value, str):
            raise invalid_field(f"parameters[{name}]", "must be a string")
    elif type(value) is not int or value < 1:
        raise invalid_field(f"parameters[{name}]", "must be a whole number from 1")
    return value
