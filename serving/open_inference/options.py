"""Parameters of a request."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from serving.open_inference.tensors import quoted, wrong

_KINDS = {"truncate": bool, "normalize": bool, "top_k": int}


@dataclass(frozen=True, slots=True)
class Options:
    """What a request may ask for beside its inputs."""

    truncate: bool | None = None
    """Cut what is too long instead of refusing it; None as the manifest says."""
    normalize: bool | None = None
    """Vectors of length 1; None as the model was made."""
    top_k: int | None = None
    """The most results for a text (or a [MASK]); None as the task has it."""


def read_options(parameters: Mapping[str, Any], known: Collection[str]) -> Options:
    """The parameters of a request.

    Raises:
        InvalidRequestError: naming one that is unknown or of the wrong kind.
    """
    for name in parameters:
        if name not in known:
            listed = ", ".join(sorted(known)) or "none"
            raise wrong("parameters", f"unknown: {quoted(name)} (these inputs go with {listed})")
    return Options(**{name: _value(name, parameter) for name, parameter in parameters.items()})


def _value(name: str, parameter: Any) -> Any:
    choice = parameter.WhichOneof("parameter_choice")
    value = getattr(parameter, choice) if choice else None
    if _KINDS[name] is bool:
        if not isinstance(value, bool):
            raise wrong(f"parameters[{name}]", "must be true or false")
    elif type(value) is not int or value < 1:
        raise wrong(f"parameters[{name}]", "must be a whole number from 1")
    return value
