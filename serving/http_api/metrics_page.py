"""`GET /metrics`: the page of the metrics port, for clients with a token."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from serving.core.calls import Call
from serving.core.codec_pool import CodecPool
from serving.http_api.body import Body
from serving.http_api.exchange import Exchange, HttpReply, Operation
from serving.http_api.status import own_error

PAGE_BYTES = 256 * 1024
"""Size of a request that takes as long to encode as the page takes to make."""


def operations(registry: CollectorRegistry, pool: CodecPool) -> Iterator[Operation]:
    """Yield the route.

    Args:
        registry: the metrics.
        pool: threads that make the page.
    """

    async def page(body: Body, call: Call, exchange: Exchange) -> HttpReply:
        try:
            encode, media_type = choose_encoder(call.headers.get("accept", ""))
        except (TypeError, ValueError):  # a version that is no number
            encode, media_type = choose_encoder("")
        return HttpReply(await pool.run(call, PAGE_BYTES, partial(encode, registry)), media_type=media_type)

    yield Operation("GET", "/metrics", page, own_error, summary="Prometheus metrics.", media_type="text/plain")
