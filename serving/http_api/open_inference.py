"""Open Inference Protocol over REST: `/v2/...`, as KServe and Triton have it, with Triton's binary tensors.

Requests become messages of the protocol over gRPC, and its replies JSON, so both have the same checks.

Source: Open Inference Protocol, REST (kserve/open-inference-protocol); Triton's extensions "binary tensor data" and
"model configuration".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any

import numpy as np
import orjson
from google.protobuf.message import Message
from pydantic import BeforeValidator, FailFast, Field, PlainValidator

from serving.core.calls import num_bytes
from serving.core.errors import InvalidRequestError, UnknownMethodError
from serving.endpoints.methods import Method
from serving.endpoints.wire import BuiltRequest
from serving.http_api.exchange import HEADER_LENGTH, HttpReply, Operation, Request, message_of
from serving.http_api.fields import Fields, validated
from serving.http_api.json_pieces import array_parts, join, list_parts, message_values, nested_parts, object_parts
from serving.open_inference.service import OpenInference
from serving.open_inference.tensors import BYTES, DTYPES, invalid_field
from serving.open_inference.v2 import service_pb2 as pb

BINARY = "application/octet-stream"
_SIZE = "binary_data_size"
_WANTED, _WANTED_ALL = "binary_data", "binary_data_output"
MAX_AXES = 8
"""Maximum number of axes of a tensor."""
PART_ELEMENTS = 8192
"""Elements of a tensor that are converted in one step, which holds the interpreter lock."""


def _elements_of(value: Any) -> list[Any]:
    """Return the elements of a tensor as they are."""
    if not isinstance(value, list):
        raise ValueError("must be a list")
    return value


def _without_nulls(value: Any) -> Any:
    """Return parameters without those that are null."""
    return {name: item for name, item in value.items() if item is not None} if isinstance(value, dict) else value


Parameters = Annotated[dict[str, Any], BeforeValidator(_without_nulls)]
Axis = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]


class Tensor(Fields):
    """Input of a request."""

    name: str
    shape: Annotated[list[Axis], FailFast(), Field(max_length=MAX_AXES)]
    datatype: str
    parameters: Parameters = Field(default_factory=dict)
    data: Annotated[list[Any], PlainValidator(_elements_of, list[Any])] | None = None


class Wanted(Fields):
    """Output that a request asks for."""

    name: str
    parameters: Parameters = Field(default_factory=dict)


class InferFields(Fields):
    """Request of `POST /v2/models/{name}/infer`."""

    id: str = ""
    model_name: str | None = None
    """Name of the path, repeated by KServe's client."""
    parameters: Parameters = Field(default_factory=dict)
    inputs: Annotated[list[Tensor], FailFast()]
    outputs: Annotated[list[Wanted], FailFast()] = Field(default_factory=list)


def oip_error(status: HTTPStatus, error: Exception) -> Mapping[str, Any]:
    """Return an error in the protocol's shape."""
    return {"error": message_of(error)}


def operations(protocol: OpenInference) -> Iterator[Operation]:
    """Yield the routes, which the protocol's methods over gRPC answer."""
    methods = protocol.methods()

    async def index(request: Request) -> HttpReply:
        reply = await methods["RepositoryIndex"](BuiltRequest(pb.RepositoryIndexRequest()), request.call)
        return HttpReply(orjson.dumps(_plain(pb.RepositoryIndexResponse.FromString(reply)).get("models", [])))

    async def infer(request: Request) -> HttpReply:
        model, length = request.path_parameters, request.call.headers.get(HEADER_LENGTH)
        end = len(request.data) if length is None else num_bytes(length)
        if end is None or end > len(request.data):
            raise InvalidRequestError(f"`{HEADER_LENGTH}` must be a number of bytes of the body")
        build = partial(_request, memoryview(request.data)[end:], model["name"], model.get("version", ""))
        built, wants_binary = await request.read(build, end)
        reply = await methods["ModelInfer"](built, request.call)
        write = partial(_response, reply, wants_binary)
        data, json_bytes = await request.pool.run(request.call, len(reply), write)
        if json_bytes == len(data):
            return HttpReply(data)
        return HttpReply(data, media_type=BINARY, headers=[(HEADER_LENGTH, str(json_bytes))])

    async def refuse(request: Request) -> HttpReply:
        raise UnknownMethodError("statistics of models are not kept here; read GET /metrics")

    yield _get(methods, "/v2", "ServerMetadata")
    yield _get(methods, "/v2/health/live", "ServerLive", is_health=True)
    yield _get(methods, "/v2/health/ready", "ServerReady", is_health=True)
    for path in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
        yield _get(methods, path, "ModelMetadata")
        yield _get(methods, f"{path}/ready", "ModelReady", is_health=True)
        yield _get(methods, f"{path}/config", "ModelConfig")
        yield Operation("POST", f"{path}/infer", infer, oip_error, summary="Run a model.", requests=(InferFields,))
        yield Operation("GET", f"{path}/stats", refuse, oip_error, summary="Refused: statistics are not kept.")
    yield Operation("GET", "/v2/models/stats", refuse, oip_error, summary="Refused: statistics are not kept.")
    yield Operation("POST", "/v2/repository/index", index, oip_error, summary="All versions of models.")


def _get(methods: Mapping[str, Method], path: str, name: str, *, is_health: bool = False) -> Operation:
    """Return a route for a method, which is about the model that the path names, if it names one.

    Args:
        methods: methods of the protocol by name.
        path: path of the route.
        name: name of the method.
        is_health: True if the reply reports whether something is ready; its status says so, too.
    """
    request_type, reply_type = getattr(pb, f"{name}Request"), getattr(pb, f"{name}Response")

    async def answer(request: Request) -> HttpReply:
        built = BuiltRequest(request_type(**request.path_parameters))
        values = _plain(reply_type.FromString(await methods[name](built, request.call)))
        is_ready = not is_health or all(values.values())
        status = HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE
        return HttpReply(orjson.dumps(values.get("config", values)), status)

    about = f"{name} of the Open Inference Protocol."
    return Operation("GET", path, answer, oip_error, is_health=is_health, summary=about)


def _plain(message: Message) -> dict[str, Any]:
    """Return a message as JSON values; numbers of 64 bits are numbers."""
    values = message_values(message)
    for tensor in (*values.get("inputs", ()), *values.get("outputs", ())):
        tensor["shape"] = [int(size) for size in tensor["shape"]]
    return values


WantsBinary = Callable[[str], bool]
"""Function that returns whether an output is wanted in binary."""


def _request(tensors: memoryview, name: str, version: str, values: dict[str, Any]) -> tuple[BuiltRequest, WantsBinary]:
    """Return a request, and which outputs are wanted in binary.

    Args:
        tensors: tensors in binary, after the JSON of the body.
        name: name of the model.
        version: its version, or empty.
        values: values of the JSON.
    """
    fields = validated(values, InferFields)
    if fields.model_name not in (None, name):
        raise invalid_field("model_name", f"the path names `{name[:80]}`; leave it out")
    message = pb.ModelInferRequest(model_name=name, model_version=version, id=fields.id)
    all_binary = bool(fields.parameters.get(_WANTED_ALL, False))
    _add_parameters(message.parameters, fields.parameters, "parameters", _WANTED_ALL)
    place = 0
    for index, tensor in enumerate(fields.inputs):
        path = f"inputs[{index}]"
        item = message.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        _add_parameters(item.parameters, tensor.parameters, f"{path}.parameters", _SIZE)
        size = tensor.parameters.get(_SIZE)
        if (size is None) == (tensor.data is None):
            raise invalid_field(path, f"needs either `data` or the parameter `{_SIZE}`")
        if size is None:
            message.raw_input_contents.append(_raw(tensor, path))
            continue
        if type(size) is not int or not 0 <= size <= len(tensors) - place:
            raise invalid_field(f"{path}.parameters", f"`{_SIZE}` must be the bytes of the tensor in the body")
        message.raw_input_contents.append(bytes(tensors[place : place + size]))
        place += size
    if place != len(tensors):
        raise InvalidRequestError(f"the body has {len(tensors) - place} bytes that belong to no tensor")
    chosen = {}
    for index, wanted in enumerate(fields.outputs):
        item = message.outputs.add(name=wanted.name)
        _add_parameters(item.parameters, wanted.parameters, f"outputs[{index}].parameters", _WANTED)
        chosen[wanted.name] = bool(wanted.parameters.get(_WANTED, all_binary))
    return BuiltRequest(message), lambda output: chosen.get(output, all_binary)


def _add_parameters(target: Any, parameters: Mapping[str, Any], path: str, *own: str) -> None:
    """Add the parameters of a request, except those of the binary extension."""
    kinds = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}
    for name, value in parameters.items():
        if name in own:
            continue
        if type(value) not in kinds:
            raise invalid_field(f"{path}[{name[:80]}]", "must be a text, a number, true or false")
        try:
            setattr(target[name], kinds[type(value)], value)
        except ValueError:
            raise invalid_field(f"{path}[{name[:80]}]", "the number is too large") from None


def _raw(tensor: Tensor, path: str) -> bytes:
    """Return the elements of a JSON tensor, nested or flat, as the protocol's binary form."""
    flat = list(_flat(tensor.data or [], 0, path))
    if tensor.datatype == BYTES:
        for index, item in enumerate(flat):
            if not isinstance(item, str):
                raise invalid_field(f"{path}.data", f"element {index} is no text")
        return b"".join(len(text).to_bytes(4, "little") + text for text in (item.encode() for item in flat))
    if tensor.datatype not in DTYPES:
        raise invalid_field(f"{path}.datatype", f"unknown: `{tensor.datatype[:40]}` (one of: {', '.join(DTYPES)})")
    kinds = (bool,) if tensor.datatype == "BOOL" else (int,) if "INT" in tensor.datatype else (int, float)
    for index, item in enumerate(flat):
        if type(item) not in kinds:
            raise invalid_field(f"{path}.data", f"element {index} is no {tensor.datatype}")
    parts = (flat[start : start + PART_ELEMENTS] for start in range(0, len(flat), PART_ELEMENTS))
    try:
        return b"".join(np.array(part, DTYPES[tensor.datatype]).tobytes() for part in parts)
    except OverflowError:
        raise invalid_field(f"{path}.data", f"a number is too large for {tensor.datatype}") from None


def _flat(values: list[Any], depth: int, path: str) -> Iterator[Any]:
    if depth > 2:
        raise invalid_field(f"{path}.data", "lists are nested too deeply")
    for item in values:
        if isinstance(item, list):
            yield from _flat(item, depth + 1, path)
        else:
            yield item


def _response(data: bytes, wants_binary: WantsBinary) -> tuple[bytes, int]:
    """Return a reply as JSON with binary tensors after it, and the bytes of the JSON."""
    reply = pb.ModelInferResponse.FromString(data)
    values: dict[str, Any] = {"model_name": reply.model_name, "model_version": reply.model_version}
    if reply.id:
        values["id"] = reply.id
    if reply.parameters:
        values["parameters"] = {name: item.int64_param for name, item in reply.parameters.items()}
    outputs = [
        (item, raw, wants_binary(item.name)) for item, raw in zip(reply.outputs, reply.raw_output_contents, strict=True)
    ]
    parts = (_output_parts(item, raw, is_binary=is_binary) for item, raw, is_binary in outputs)
    header = join(object_parts(values, outputs=nested_parts(parts)))
    return b"".join([header, *(raw for _, raw, is_binary in outputs if is_binary)]), len(header)


def _output_parts(item: Any, raw: bytes, *, is_binary: bool) -> Iterator[bytes]:
    """Yield an output as JSON in parts."""
    output: dict[str, Any] = {"name": item.name, "datatype": item.datatype, "shape": list(item.shape)}
    if is_binary:
        return object_parts(output | {"parameters": {_SIZE: len(raw)}})
    if item.datatype == BYTES:
        return object_parts(output, data=list_parts(_texts(raw), 1024))
    return object_parts(output, data=array_parts(np.frombuffer(raw, DTYPES[item.datatype])))


def _texts(raw: bytes) -> Iterator[str]:
    """Yield the texts of a tensor."""
    place = 0
    while place < len(raw):
        size = int.from_bytes(raw[place : place + 4], "little")
        yield raw[place + 4 : place + 4 + size].decode()
        place += 4 + size
