"""Routes of the server itself: `GET /health`, `/metrics`, the page at `/`, and `/openapi.json`, which describes all.

The page to try the models in calls the other routes. Its files, in the folder `playground`, are the same for everyone
and hold nothing of the server, so they need no token; the page asks for one when a route wants it.

The description is for generators of clients and for people, in OpenAPI 3.1. Requests are described by what reads them,
pydantic models and protobuf messages, so it cannot be out of date. Messages follow protobuf's JSON mapping.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from http import HTTPStatus
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from pydantic import BaseModel

from serving.core.errors import UnknownMethodError, shorten
from serving.http_api.exchange import HttpReply, Operation, Request, own_error

METRICS_BYTES = 256 * 1024
"""Size of a request that takes as long to encode as the page of metrics takes to make."""
PAGE = Path(__file__).with_name("playground")
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Content-Security-Policy: only the files of the page run, and no text becomes HTML."""
PAGE_HEADERS = [
    ("content-security-policy", POLICY),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cache-control", "no-cache"),
]
_REF = "#/components/schemas/"
_CONVERTER = re.compile(r"\{(\w+)(?::\w+)?\}")
"""Parameter of a path, which may name how it is read: `{model:path}`."""
_INTEGERS = {
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_FIXED32: (0, 2**32 - 1),
}
_TYPES: Mapping[int, Mapping[str, Any]] = {
    FieldDescriptor.TYPE_STRING: {"type": "string"},
    FieldDescriptor.TYPE_BYTES: {"type": "string", "contentEncoding": "base64"},
    FieldDescriptor.TYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.TYPE_FLOAT: {"type": "number"},
    FieldDescriptor.TYPE_DOUBLE: {"type": "number"},
}


def health_routes(problem: Callable[[], str], run_canaries: Callable[[], Awaitable[None]]) -> Iterator[Operation]:
    """Yield the routes that report whether the server answers requests now.

    Args:
        problem: returns why the server cannot answer; empty if it can.
        run_canaries: runs the canaries of all models.
    """

    async def health(request: Request) -> HttpReply:
        if request.operation.method == "POST":
            await run_canaries()
        if reason := problem():
            return HttpReply(orjson.dumps({"status": reason}), HTTPStatus.SERVICE_UNAVAILABLE)
        return HttpReply(b'{"status":"ok"}')

    about = "Whether the server answers requests now"
    yield Operation("GET", "/health", health, own_error, is_health=True, summary=f"{about}.")
    yield Operation("POST", "/health", health, own_error, summary=f"{about}, after a run of all canaries.")


def metrics_route(registry: CollectorRegistry) -> Operation:
    """Return the route with the page of the metrics port, for clients with a token."""

    async def page(request: Request) -> HttpReply:
        try:
            encode, media_type = choose_encoder(request.call.headers.get("accept", ""))
        except (TypeError, ValueError):  # a version that is no number
            encode, media_type = choose_encoder("")
        data = await request.pool.run(request.call, METRICS_BYTES, partial(encode, registry))
        return HttpReply(data, media_type=media_type)

    return Operation("GET", "/metrics", page, own_error, summary="Prometheus metrics.", media_type="text/plain")


def page_routes(grpc_port: Callable[[], int], *, tls: bool) -> Iterator[Operation]:
    """Yield the routes of the page to try the models in.

    Args:
        grpc_port: returns the gRPC port, for the calls that the page shows.
        tls: True if that port speaks TLS.
    """
    files = {
        path.name: HttpReply(path.read_bytes(), media_type=MEDIA_TYPES[path.suffix], headers=PAGE_HEADERS)
        for path in PAGE.iterdir()
        if path.suffix in MEDIA_TYPES
    }

    async def file(request: Request) -> HttpReply:
        name = request.path_parameters.get("file", "index.html")
        if found := files.get(name):
            return found
        raise UnknownMethodError(shorten(f"the page has no file `{name}`"))

    async def server(request: Request) -> HttpReply:
        return HttpReply(orjson.dumps({"grpc_port": grpc_port(), "tls": tls}))

    yield Operation("GET", "/", file, own_error, is_public=True)
    yield Operation("GET", "/playground/server", server, own_error)
    yield Operation("GET", "/playground/{file}", file, own_error, is_public=True)


def description_route(described: Iterable[Operation]) -> Operation:
    """Return the route of the description.

    Args:
        described: all other routes of the server.
    """
    page = orjson.dumps(describe_routes(described))

    async def answer(request: Request) -> HttpReply:
        return HttpReply(page)

    return Operation("GET", "/openapi.json", answer, own_error, summary="This description.")


def describe_routes(described: Iterable[Operation]) -> dict[str, Any]:
    """Return the description of routes."""
    schemas: dict[str, Any] = {}
    paths: dict[str, dict[str, Any]] = {}
    for item in described:
        path = _CONVERTER.sub(r"{\1}", item.path)
        paths.setdefault(path, {})[item.method.lower()] = _operation(item, path, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Bertline", "version": version("bertline")},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _operation(item: Operation, path: str, schemas: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"summary": item.summary}
    if names := _CONVERTER.findall(path):
        schema = {"type": "string"}
        found["parameters"] = [{"name": name, "in": "path", "required": True, "schema": schema} for name in names]
    if item.requests:
        kinds = [_schema(kind, schemas) for kind in item.requests]
        body = {"schema": kinds[0] if len(kinds) == 1 else {"anyOf": kinds}}
        found["requestBody"] = {"required": True, "content": {"application/json": body}}
    reply = _schema(item.reply, schemas) if item.reply else {}
    found["responses"] = {
        "200": {"description": "Answer.", "content": {item.media_type: {"schema": reply}}},
        "default": {
            "description": "Error: what is wrong, and with which field.",
            "content": {"application/json": {"schema": {"type": "object"}}},
        },
    }
    return found


def _schema(kind: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    """Return a reference to the schema of a pydantic model or a protobuf message, and add it to `schemas`."""
    if issubclass(kind, BaseModel):
        schema = kind.model_json_schema(ref_template=f"{_REF}{{model}}")
        schemas.update(schema.pop("$defs", {}))
        name = f"{kind.__module__.rpartition('.')[2]}.{kind.__name__}"  # two modules may have the same names
        schemas[name] = schema
        return {"$ref": f"{_REF}{name}"}
    return _message(kind.DESCRIPTOR, schemas)


def _message(descriptor: Descriptor, schemas: dict[str, Any]) -> dict[str, Any]:
    name = descriptor.name
    if name not in schemas:
        schemas[name] = {}  # messages may hold themselves
        properties = {field.name: _field(field, schemas) for field in descriptor.fields}
        schemas[name] = {"type": "object", "properties": properties, "additionalProperties": False}
    return {"$ref": f"{_REF}{name}"}


def _field(field: FieldDescriptor, schemas: dict[str, Any]) -> dict[str, Any]:
    if field.message_type:
        schema = _message(field.message_type, schemas)
    elif field.enum_type:
        schema = {"type": "string", "enum": [value.name for value in field.enum_type.values]}
    elif limits := _INTEGERS.get(field.type):
        schema = {"type": "integer", "minimum": limits[0], "maximum": limits[1]}
    else:
        schema = dict(_TYPES[field.type])
    return {"type": "array", "items": schema} if field.is_repeated else schema
