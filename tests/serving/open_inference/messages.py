"""Requests of the Open Inference Protocol, and responses as numpy arrays."""

import struct

import numpy as np

from serving.open_inference.service import SERVICE
from serving.open_inference.v2 import service_pb2 as pb

DTYPES = {"INT32": "<i4", "INT64": "<i8", "FP32": "<f4", "BOOL": "?"}


def stub(server, method):
    """Return a callable for a method of the service."""
    return server.channel.unary_unary(
        f"/{SERVICE}/{method}",
        request_serializer=lambda request: request if isinstance(request, bytes) else request.SerializeToString(),
        response_deserializer=getattr(pb, f"{method}Response").FromString,
    )


def call(server, method, **fields):
    """Call a method with the fields of its request."""
    return stub(server, method)(getattr(pb, f"{method}Request")(**fields), timeout=20)


def with_lengths(values):
    """Serialise elements of BYTES."""
    return b"".join(struct.pack("<I", len(value)) + value for value in values)


def infer_request(model="", outputs=(), typed=False, parameters=None, **inputs):
    """Return a ModelInferRequest: lists of strings become BYTES, arrays keep their type."""
    request = pb.ModelInferRequest(model_name=model, outputs=[{"name": name} for name in outputs])
    for name, value in (parameters or {}).items():
        kind = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}[type(value)]
        setattr(request.parameters[name], kind, value)
    for name, values in inputs.items():
        _add_input(request, name, np.asarray(values), typed)
    return request


def _add_input(request, name, array, typed):
    numbers = array.dtype.kind == "i"
    datatype = {4: "INT32", 8: "INT64"}[array.itemsize] if numbers else "BYTES"
    item = request.inputs.add(name=name, datatype=datatype, shape=array.shape)
    elements = array.ravel().tolist() if numbers else [str(value).encode() for value in array.flat]
    if typed:
        field = {"INT32": "int_contents", "INT64": "int64_contents", "BYTES": "bytes_contents"}[datatype]
        getattr(item.contents, field).extend(elements)
    else:
        request.raw_input_contents.append(array.tobytes() if numbers else with_lengths(elements))


def arrays(reply):
    """Return the outputs of a response by name; BYTES become lists of strings."""
    found = {}
    for item, raw in zip(reply.outputs, reply.raw_output_contents, strict=True):
        values = _strings(raw) if item.datatype == "BYTES" else np.frombuffer(raw, DTYPES[item.datatype])
        found[item.name] = np.array(values).reshape(list(item.shape))
    return found


def _strings(raw):
    values = []
    while raw:
        (size,) = struct.unpack_from("<I", raw)
        values.append(raw[4 : 4 + size].decode())
        raw = raw[4 + size :]
    return values


def infer(server, model, **fields):
    """Call ModelInfer and return its outputs."""
    return arrays(stub(server, "ModelInfer")(infer_request(model, **fields), timeout=20))
