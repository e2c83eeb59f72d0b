"""`GET /health`: whether the server answers requests now."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from http import HTTPStatus

import orjson

from serving.core.calls import Call
from serving.http_api.body import Body
from serving.http_api.exchange import Exchange, HttpReply, Operation
from serving.http_api.status import own_error


def operations(problem: Callable[[], str]) -> Iterator[Operation]:
    """Yield the route.

    Args:
        problem: returns why the server cannot answer; empty if it can.
    """

    async def health(body: Body, call: Call, exchange: Exchange) -> HttpReply:
        if reason := problem():
            return HttpReply(orjson.dumps({"status": reason}), HTTPStatus.SERVICE_UNAVAILABLE)
        return HttpReply(b'{"status":"ok"}')

    yield Operation(
        "GET", "/health", health, own_error, is_health=True, summary="Whether the server answers requests now."
    )
