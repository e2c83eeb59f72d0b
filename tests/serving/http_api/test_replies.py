"""Compressed replies, and the page of metrics."""

import gzip

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.serving.conftest import serve
from tests.serving.http_api.requests import post, send

TEXTS = ["the cat sees the old dog"] * 100


@pytest.fixture(scope="module")
def packed(embedder):
    """Server that compresses replies."""
    with serve(embedder, http_port=0, http_gzip=True) as running:
        yield running


@pytest.mark.parametrize(
    ("header", "is_packed"),
    [("gzip", True), ("deflate, GZIP;q=0.5", True), ("", False), ("identity", False), ("gzip; q=0.000, *", False)],
)
def test_large_replies_are_compressed(packed, header, is_packed):
    """A large reply is compressed for clients that accept it, and holds the same."""
    body = {"model": "embedder", "input": TEXTS}
    plain = post(packed, "/v1/embeddings", body)
    small = post(packed, "/v1/embeddings", body | {"input": TEXTS[:1]}, accept_encoding=header)

    found = post(packed, "/v1/embeddings", body, accept_encoding=header)

    assert "content-encoding" not in plain.headers | small.headers
    assert found.headers.get("content-encoding") == ("gzip" if is_packed else None)
    assert {reply.headers["vary"] for reply in (plain, small, found)} == {"accept-encoding"}
    assert int(found.headers["content-length"]) == len(found.data)
    assert (gzip.decompress(found.data) if is_packed else found.data) == plain.data


@pytest.mark.parametrize(
    ("accept", "media_type"),
    [
        ("application/openmetrics-text;version=1.0.0", "application/openmetrics-text"),
        ("text/plain;version=abc", "text/plain"),
        ("image/png", "text/plain"),
    ],
)
def test_formats_of_the_metrics_page(server, accept, media_type):
    """Scrapers choose the format, and get the plain one for what the server does not know."""
    reply = send(server, "GET", "/metrics", accept=accept)

    assert reply.status == 200
    assert reply.headers["content-type"].startswith(media_type)


def test_metrics_page(server, embedder):
    """The page has the metrics of the metrics port, unless that has a separate address."""
    post(server, "/v1/embed", {"texts": ["a"]}, accept_encoding="gzip")

    page = send(server, "GET", "/metrics", accept_encoding="gzip")
    with serve(embedder, http_port=0, metrics_host="127.0.0.1") as running:
        assert send(running, "GET", "/metrics").status == 404

    names = {family.name for family in text_string_to_metric_families(page.data.decode())}
    assert {"http_server_handled", "grpc_server_handled", "bertline_batch_rows"} <= names
    assert page.headers["content-type"].startswith("text/plain")
    assert "content-encoding" not in page.headers  # by default, no reply is compressed
