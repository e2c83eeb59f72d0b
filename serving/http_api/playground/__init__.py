"""`GET /`: a page to try the models in. Its files are in this folder; it calls the other routes.

The files are the same for everyone and hold nothing of the server, so they need no token. The page asks for one when a
route wants it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import resources

import orjson

from serving.core.calls import Call
from serving.core.errors import UnknownMethodError, shorten
from serving.http_api.exchange import Body, Exchange, HttpReply, Operation, own_error

PAGE = "index.html"
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
"""Content-Security-Policy: only the files of this folder run, and no text becomes HTML."""
HEADERS = [
    ("content-security-policy", POLICY),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cache-control", "no-cache"),
]


def operations(grpc_port: Callable[[], int], *, tls: bool) -> Iterator[Operation]:
    """Yield the routes of the page.

    Args:
        grpc_port: returns the gRPC port, for the calls that the page shows.
        tls: True if that port speaks TLS.
    """
    files = read_files()

    async def page(body: Body, call: Call, exchange: Exchange) -> HttpReply:
        return files[PAGE]

    async def file(body: Body, call: Call, exchange: Exchange) -> HttpReply:
        if found := files.get(name := exchange.path_parameters["file"]):
            return found
        raise UnknownMethodError(shorten(f"the page has no file `{name}`"))

    async def server(body: Body, call: Call, exchange: Exchange) -> HttpReply:
        return HttpReply(orjson.dumps({"grpc_port": grpc_port(), "tls": tls}))

    yield Operation("GET", "/", page, own_error, is_public=True)
    yield Operation("GET", "/playground/server", server, own_error)
    yield Operation("GET", "/playground/{file}", file, own_error, is_public=True)


def read_files() -> Mapping[str, HttpReply]:
    """Return the files of the page by name, as replies."""
    return {
        path.name: HttpReply(path.read_bytes(), media_type=media_type, headers=HEADERS)
        for path in resources.files(__package__).iterdir()
        for suffix, media_type in MEDIA_TYPES.items()
        if path.name.endswith(suffix)
    }
