"""Conversion of tensors and options: from requests to numpy arrays, and from numpy arrays to responses."""

from __future__ import annotations

import math
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from serving.core.endpoint import Reply
from serving.core.errors import InvalidRequestError, Violation
from serving.core.models import Model
from serving.endpoints.wire import header
from serving.open_inference.v2 import service_pb2 as pb

BYTES = "BYTES"
DTYPES = {"BOOL": "?", "INT32": "<i4", "INT64": "<i8", "FP32": "<f4", BYTES: "O"}
"""numpy types of the elements on the wire. Elements of BYTES are `bytes`, each after its length."""
MAX_RANK = 2
"""Maximum number of axes of an input."""
MAX_TENSORS = 32
"""Maximum number of inputs of a request, and of outputs: more than any model has."""
MAX_AXIS = 2**31 - 1
"""Maximum size of an axis. In a request, an empty array may have an axis of any size; numpy does not accept that."""
RAW_OUTPUT = pb.ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER
COPIED_ELEMENTS = 2**20
"""Number of elements of an output to copy in one step, which takes a millisecond."""
CONVERTED_ELEMENTS = 8192
"""Number of elements to convert to an array in one step, which takes a millisecond."""
_ACCEPTED = {BYTES: (BYTES,), "INT64": ("INT64", "INT32")}
_CONTENTS = {BYTES: "bytes_contents", "INT64": "int64_contents", "INT32": "int_contents"}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Input or output tensor of a model."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    """Size of each axis; -1 if it varies."""
    optional: bool = False


def invalid_field(field: str, reason: str) -> InvalidRequestError:
    """Return the error for one field."""
    return InvalidRequestError(violations=[Violation(field, reason)])


def quoted(name: str) -> str:
    """Quote a name that a caller chose, on one line and cut to 80 characters."""
    return f"`{repr(name)[1:-1][:80]}`"


_KINDS = {
    "truncate": (bool, "true or false"),
    "normalize": (bool, "true or false"),
    "prompt_name": (str, "a string"),
    "input_type": (str, "a string"),
    "top_k": (int, "a whole number from 1"),
}
"""Type of each option, and its name in errors."""
_IGNORED = {"priority", "sequence_id", "sequence_start", "sequence_end"}
"""Parameters of Triton's clients that change no answer here: no model keeps anything between requests."""


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
    values: dict[str, Any] = {}
    for name, parameter in parameters.items():
        if name in _IGNORED:
            continue
        if name not in known:
            listed = ", ".join(sorted(known)) or "none"
            raise invalid_field("parameters", f"unknown: {quoted(name)} (parameters for these inputs: {listed})")
        choice, (kind, wanted) = parameter.WhichOneof("parameter_choice"), _KINDS[name]
        value: Any = getattr(parameter, choice) if choice else None
        fits = type(value) is kind
        if not fits or (kind is int and value < 1):
            raise invalid_field(f"parameters[{name}]", f"must be {wanted}")
        values[name] = value
    return Options(**values)


def check_shapes(request: pb.ModelInferRequest) -> None:
    """Check the number of tensors, and their shapes.

    Multiplying very many or huge axes would take long.

    Raises:
        InvalidRequestError: naming the first invalid tensor.
    """
    for field in ("inputs", "outputs", "raw_input_contents"):
        if (count := len(getattr(request, field))) > MAX_TENSORS:
            raise invalid_field(field, f"too many tensors: `{count}` (maximum `{MAX_TENSORS}`)")
    for index, item in enumerate(request.inputs):
        if len(item.shape) > MAX_RANK:
            raise invalid_field(f"inputs[{index}].shape", f"too many axes: `{len(item.shape)}` (maximum `{MAX_RANK}`)")
        if any(not 0 <= size <= MAX_AXIS for size in item.shape):
            raise invalid_field(f"inputs[{index}].shape", f"an axis must be from 0 to {MAX_AXIS}: `{list(item.shape)}`")


def read_inputs(request: pb.ModelInferRequest, specs: Sequence[TensorSpec]) -> dict[str, np.ndarray]:
    """Return the inputs of a request by name, in the shapes of the request, which `check_shapes` has checked.

    Args:
        request: the request.
        specs: inputs of the model.

    Raises:
        InvalidRequestError: naming the first field that does not fit.
    """
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise invalid_field(
            "raw_input_contents",
            f"`{len(raw)}` entries for {len(request.inputs)} inputs; send one for each input, or none",
        )
    known = {spec.name: spec for spec in specs}
    arrays: dict[str, np.ndarray] = {}
    for index, item in enumerate(request.inputs):
        if item.name not in known:
            raise invalid_field(
                f"inputs[{index}].name", f"unknown: {quoted(item.name)} (this model takes {', '.join(known)})"
            )
        if item.name in arrays:
            raise invalid_field(f"inputs[{index}].name", f"`{item.name}` is listed twice")
        no_parameters(item.parameters, f"inputs[{index}]")
        arrays[item.name] = _Reader(item, index, raw[index] if raw else None).read(known[item.name])
    if missing := [spec.name for spec in specs if not spec.optional and spec.name not in arrays]:
        raise invalid_field("inputs", f"`{missing[0]}` is missing (this model takes {', '.join(known)})")
    return arrays


def no_parameters(parameters: Mapping[str, Any], path: str) -> None:
    """Raise InvalidRequestError if a tensor has parameters, since none are known."""
    for name in parameters:
        raise invalid_field(f"{path}.parameters", f"unknown: {quoted(name)} (tensors have none)")


@dataclass(frozen=True, slots=True)
class _Reader:
    """Converter of one input tensor to an array."""

    item: Any
    index: int
    raw: bytes | None

    @property
    def path(self) -> str:
        return f"inputs[{self.index}]"

    def read(self, spec: TensorSpec) -> np.ndarray:
        if self.item.datatype not in (accepted := _ACCEPTED[spec.datatype]):
            sent = quoted(self.item.datatype)
            raise invalid_field(f"{self.path}.datatype", f"`{spec.name}` must be {' or '.join(accepted)}: {sent}")
        shape, rank = list(self.item.shape), len(spec.shape)
        single_column = rank == 1 and len(shape) == 2 and shape[1] == 1  # as models of Triton with a batch axis have it
        if len(shape) != rank and not single_column:
            axes = ", ".join(["n", "m"][:rank])
            raise invalid_field(f"{self.path}.shape", f"`{spec.name}` must have the shape [{axes}]: `{shape}`")
        count = math.prod(shape)
        if self.raw is None:
            elements = self._typed(count)
        elif self.item.contents.ListFields():
            raise invalid_field(f"{self.path}.contents", "not together with raw_input_contents; send one of them")
        elif self.item.datatype == BYTES:
            elements = _array(self._split(self.raw, count))
        else:
            dtype = np.dtype(DTYPES[self.item.datatype])
            self._check_count(len(self.raw), count * dtype.itemsize, "bytes")
            elements = np.frombuffer(self.raw, dtype)
        return elements.reshape(shape)

    def _typed(self, count: int) -> np.ndarray:
        name = _CONTENTS[self.item.datatype]
        for field, _ in self.item.contents.ListFields():
            if field.name != name:
                raise invalid_field(f"{self.path}.contents", f"{self.item.datatype} goes into {name}, not {field.name}")
        values = getattr(self.item.contents, name)
        self._check_count(len(values), count, "elements")
        if self.item.datatype == BYTES:
            return _array(values)
        array = np.empty(len(values), DTYPES[self.item.datatype])
        for first in range(0, len(values), CONVERTED_ELEMENTS):  # numpy holds the interpreter lock during each
            array[first : first + CONVERTED_ELEMENTS] = values[first : first + CONVERTED_ELEMENTS]
        return array

    def _split(self, raw: bytes, count: int) -> list[bytes]:
        elements: list[bytes] = []
        place = 0
        while place < len(raw) and len(elements) <= count + CONVERTED_ELEMENTS:  # more fail anyway
            size = int.from_bytes(raw[place : place + 4], "little")
            place += 4 + size
            if place > len(raw):
                raise invalid_field(f"raw_input_contents[{self.index}]", f"element {len(elements)} is cut off")
            elements.append(raw[place - size : place])
        self._check_count(len(elements), count, "elements")
        return elements

    def _check_count(self, found: int, count: int, unit: str) -> None:
        if found != count:
            field = f"{self.path}.contents" if self.raw is None else f"raw_input_contents[{self.index}]"
            raise invalid_field(field, f"`{found}` {unit}, but the shape {list(self.item.shape)} needs {count}")


def _array(values: Sequence[bytes]) -> np.ndarray:
    array = np.empty(len(values), object)
    array[:] = values
    return array


def requested_outputs(request: pb.ModelInferRequest, specs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """Return the outputs to send: the requested ones in their order, or all.

    Args:
        request: the request.
        specs: outputs of the model.

    Raises:
        InvalidRequestError: naming an unknown output.
    """
    known = {spec.name: spec for spec in specs}
    chosen: dict[str, TensorSpec] = {}
    for index, item in enumerate(request.outputs):
        if item.name not in known:
            reason = f"unknown: {quoted(item.name)} (these inputs give {', '.join(known)})"
            raise invalid_field(f"outputs[{index}].name", reason)
        if item.name in chosen:
            raise invalid_field(f"outputs[{index}].name", f"`{item.name}` is listed twice")
        no_parameters(item.parameters, f"outputs[{index}]")
        chosen[item.name] = known[item.name]
    return list(chosen.values() or specs)


def response(
    request: pb.ModelInferRequest,
    model: Model,
    specs: Sequence[TensorSpec],
    arrays: Mapping[str, np.ndarray],
    num_truncated: int = 0,
) -> Reply:
    """Serialise the response.

    Args:
        request: request that is answered.
        model: model that answered.
        specs: outputs to send, in order.
        arrays: outputs by name.
        num_truncated: number of tokens that were cut; sent as a parameter unless it is 0.
    """
    manifest = model.manifest
    reply = pb.ModelInferResponse(model_name=manifest.name, model_version=manifest.version, id=request.id)
    contents: list[bytes] = []
    for spec in specs:
        array = arrays[spec.name]
        reply.outputs.add(name=spec.name, datatype=spec.datatype, shape=array.shape)
        raw = list(_raw(array, spec.datatype))
        contents += [header(RAW_OUTPUT, sum(map(len, raw))), *raw]
    if num_truncated:
        reply.parameters["num_truncated"].int64_param = num_truncated
    return Reply(b"".join([reply.SerializeToString(), *contents]))  # joining releases the interpreter lock


def _raw(array: np.ndarray, datatype: str) -> Iterator[bytes]:
    """Yield the serialised elements in parts, since numpy holds the interpreter lock while it copies."""
    if datatype == BYTES:
        for element in array.flat:
            yield struct.pack("<I", len(element))
            yield element
        return
    flat = np.ascontiguousarray(array, dtype=DTYPES[datatype]).reshape(-1)
    for first in range(0, len(flat), COPIED_ELEMENTS):
        yield flat[first : first + COPIED_ELEMENTS].tobytes()
