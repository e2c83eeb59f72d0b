"""Tensors of a request -> numpy arrays, and numpy arrays -> tensors of a response."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from serving.core.errors import InvalidRequestError, Violation
from serving.core.models import Model
from serving.core.service import Reply
from serving.endpoints.wire import header
from serving.open_inference.v2 import service_pb2 as pb

BYTES = "BYTES"
DTYPES = {"BOOL": "?", "INT32": "<i4", "INT64": "<i8", "FP32": "<f4", BYTES: "O"}
"""Elements as they travel; those of BYTES are `bytes`, each with its length before it."""
MAX_RANK = 2
"""Of an input."""
MAX_TENSORS = 32
"""Inputs of a request, and outputs: more than any model has."""
MAX_AXIS = 2**31 - 1
"""An array without elements may have one axis of any size to whoever sends it, but not to numpy."""
RAW_OUTPUT = pb.ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER
COPIED = 2**20
"""Elements of an output that are copied at once; a millisecond."""
CONVERTED = 8192
"""Numbers that become part of an array at once; a millisecond."""
_ACCEPTED = {BYTES: (BYTES,), "INT64": ("INT64", "INT32")}
_CONTENTS = {BYTES: "bytes_contents", "INT64": "int64_contents", "INT32": "int_contents"}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor that a model takes or gives."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    """-1 where it varies."""
    optional: bool = False


def wrong(field: str, reason: str) -> InvalidRequestError:
    """The error that says what is wrong with one field."""
    return InvalidRequestError(violations=[Violation(field, reason)])


def quoted(name: str) -> str:
    """A name that a caller chose, on one line and not too long."""
    return f"`{repr(name)[1:-1][:80]}`"


def check_shapes(request: pb.ModelInferRequest) -> None:
    """Refuse more tensors than any model takes, and shapes that no input has: the product of very many axes, or of huge
    ones, is work of its own.

    Raises:
        InvalidRequestError: naming the first of them.
    """
    for field in ("inputs", "outputs", "raw_input_contents"):
        if (count := len(getattr(request, field))) > MAX_TENSORS:
            raise wrong(field, f"{count} came, a request has at most {MAX_TENSORS}")
    for index, item in enumerate(request.inputs):
        if len(item.shape) > MAX_RANK:
            raise wrong(f"inputs[{index}].shape", f"{len(item.shape)} axes came, an input has at most {MAX_RANK}")
        if any(not 0 <= size <= MAX_AXIS for size in item.shape):
            raise wrong(f"inputs[{index}].shape", f"{list(item.shape)} came, an axis is from 0 to {MAX_AXIS}")


def read_inputs(request: pb.ModelInferRequest, specs: Sequence[TensorSpec]) -> dict[str, np.ndarray]:
    """The inputs of a request that `check_shapes` lets pass by name, in the shapes that they came in.

    Raises:
        InvalidRequestError: naming the first field that does not fit.
    """
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise wrong("raw_input_contents", f"{len(raw)} came for {len(request.inputs)} inputs; send one each, or none")
    known = {spec.name: spec for spec in specs}
    arrays: dict[str, np.ndarray] = {}
    for index, item in enumerate(request.inputs):
        if item.name not in known:
            raise wrong(f"inputs[{index}].name", f"unknown: {quoted(item.name)} (this model takes {', '.join(known)})")
        if item.name in arrays:
            raise wrong(f"inputs[{index}].name", f"`{item.name}` came before")
        no_parameters(item.parameters, f"inputs[{index}]")
        arrays[item.name] = _Reader(item, index, raw[index] if raw else None).read(known[item.name])
    if missing := [spec.name for spec in specs if not spec.optional and spec.name not in arrays]:
        raise wrong("inputs", f"`{missing[0]}` is missing (this model takes {', '.join(known)})")
    return arrays


def no_parameters(parameters: Mapping[str, Any], path: str) -> None:
    """Refuse the parameters of a tensor: there are none."""
    for name in parameters:
        raise wrong(f"{path}.parameters", f"unknown: {quoted(name)} (tensors have none)")


@dataclass(frozen=True, slots=True)
class _Reader:
    item: Any
    index: int
    raw: bytes | None

    @property
    def path(self) -> str:
        return f"inputs[{self.index}]"

    def read(self, spec: TensorSpec) -> np.ndarray:
        if self.item.datatype not in (accepted := _ACCEPTED[spec.datatype]):
            came = quoted(self.item.datatype)
            raise wrong(f"{self.path}.datatype", f"{came} came, `{spec.name}` takes {' or '.join(accepted)}")
        self._check_shape(spec)
        count = math.prod(self.item.shape)
        if self.raw is None:
            elements = self._typed(count)
        elif self.item.contents.ListFields():
            raise wrong(f"{self.path}.contents", "not together with raw_input_contents; send one of them")
        elif self.item.datatype == BYTES:
            elements = _array(self._split(self.raw, count))
        else:
            elements = self._fixed(self.raw, count)
        return elements.reshape(self.item.shape)

    def _check_shape(self, spec: TensorSpec) -> None:
        shape, rank = list(self.item.shape), len(spec.shape)
        single_column = rank == 1 and len(shape) == 2 and shape[1] == 1  # as models of Triton with a batch axis have it
        if len(shape) != rank and not single_column:
            axes = ", ".join(["n", "m"][:rank])
            raise wrong(f"{self.path}.shape", f"{shape} came, `{spec.name}` takes [{axes}]")

    def _typed(self, count: int) -> np.ndarray:
        name = _CONTENTS[self.item.datatype]
        for field, _ in self.item.contents.ListFields():
            if field.name != name:
                raise wrong(f"{self.path}.contents", f"{self.item.datatype} goes into {name}, not {field.name}")
        values = getattr(self.item.contents, name)
        self._check_count(len(values), count, "elements")
        return _array(values) if self.item.datatype == BYTES else _numbers(values, DTYPES[self.item.datatype])

    def _fixed(self, raw: bytes, count: int) -> np.ndarray:
        dtype = np.dtype(DTYPES[self.item.datatype])
        self._check_count(len(raw), count * dtype.itemsize, "bytes")
        return np.frombuffer(raw, dtype)

    def _split(self, raw: bytes, count: int) -> list[bytes]:
        elements: list[bytes] = []
        place = 0
        while place < len(raw):
            size = int.from_bytes(raw[place : place + 4], "little")
            place += 4 + size
            if place > len(raw):
                raise wrong(f"raw_input_contents[{self.index}]", f"element {len(elements)} is cut off")
            elements.append(raw[place - size : place])
            if len(elements) > count + CONVERTED:
                break  # whatever else there is
        self._check_count(len(elements), count, "elements")
        return elements

    def _check_count(self, came: int, count: int, unit: str) -> None:
        if came != count:
            field = f"{self.path}.contents" if self.raw is None else f"raw_input_contents[{self.index}]"
            raise wrong(field, f"{came} {unit} came, the shape {list(self.item.shape)} has {count}")


def _numbers(values: Sequence[int], dtype: str) -> np.ndarray:
    """Make an array of numbers, in parts: numpy holds the interpreter lock until a part is done."""
    array = np.empty(len(values), dtype)
    for first in range(0, len(values), CONVERTED):
        array[first : first + CONVERTED] = values[first : first + CONVERTED]
    return array


def _array(values: Sequence[bytes]) -> np.ndarray:
    array = np.empty(len(values), object)
    array[:] = values
    return array


def requested(request: pb.ModelInferRequest, specs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """The outputs to send: those that the request names, in its order, or all.

    Raises:
        InvalidRequestError: naming an output that there is not.
    """
    known = {spec.name: spec for spec in specs}
    chosen: dict[str, TensorSpec] = {}
    for index, item in enumerate(request.outputs):
        if item.name not in known:
            reason = f"unknown: {quoted(item.name)} (these inputs give {', '.join(known)})"
            raise wrong(f"outputs[{index}].name", reason)
        if item.name in chosen:
            raise wrong(f"outputs[{index}].name", f"`{item.name}` came before")
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
    """The response with these outputs, serialised; a parameter says how many tokens were cut, if any were."""
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
    serialised = b"".join([reply.SerializeToString(), *contents])  # releases the interpreter lock, unlike protobuf
    return Reply(serialised)


def _raw(array: np.ndarray, datatype: str) -> Iterator[bytes]:
    """Yield the serialised elements, in parts: numpy holds the interpreter lock while it copies."""
    if datatype == BYTES:
        yield from _with_lengths(array)
        return
    flat = np.ascontiguousarray(array, dtype=DTYPES[datatype]).reshape(-1)
    for first in range(0, len(flat), COPIED):
        yield flat[first : first + COPIED].tobytes()


def _with_lengths(array: np.ndarray) -> Iterator[bytes]:
    for element in array.flat:
        yield struct.pack("<I", len(element))
        yield element
