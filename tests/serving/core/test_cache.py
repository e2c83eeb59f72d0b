"""Cache of replies."""

import asyncio
from collections import OrderedDict

import grpc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertline.v1 import encoder_pb2 as pb
from serving.core.cache import OVERHEAD_BYTES, CachedReply, ReplyCache
from tests.serving.conftest import serve
from tests.serving.http_api.requests import post
from tests.serving.models import write_model
from tests.serving.open_inference.messages import infer_request, stub

EMBED = {"model": "embedder", "version": "1", "task": "embedding"}


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.integers(0, 1000))))
def test_least_recently_used_go_first(steps):
    """The cache holds the last used replies that fit, and knows their size, after random puts and gets."""
    capacity = 3 * OVERHEAD_BYTES + 300
    cache, expected = ReplyCache(capacity), OrderedDict()
    for is_put, number, size in steps:
        key = bytes([number])
        if is_put:
            cache.put(key, CachedReply(None, 1, 1, bytes(size)))
            if OVERHEAD_BYTES + size <= capacity:  # else it is not stored
                expected.pop(key, None)
                expected[key] = bytes(size)
                while sum(OVERHEAD_BYTES + len(reply) for reply in expected.values()) > capacity:
                    expected.popitem(last=False)
        else:
            cached = cache.get(key)
            assert (cached and cached.data) == expected.get(key)
            if cached:
                expected.move_to_end(key)
        assert len(cache) == len(expected)
        assert cache.num_bytes == sum(OVERHEAD_BYTES + len(reply) for reply in expected.values()) <= capacity


@pytest.fixture(scope="module")
def cached(embedder):
    """Server with a cache."""
    with serve(embedder, http_port=0, cache_bytes=100_000) as running:
        yield running


@pytest.fixture
def counted(cached):
    """Function that returns the number of hits and misses since the test began."""

    def count():
        return [cached.total("bertline_cache_requests_total", result=result, **EMBED) for result in ("hit", "miss")]

    before = count()
    return lambda: [after - number for after, number in zip(count(), before, strict=True)]


def test_the_same_request_is_computed_once(cached, counted):
    """A repeated request gets the first reply without durations, and the counters count one computation."""
    request = pb.EmbedRequest(texts=["the cat", "dog " * 40], truncate=True)
    rows, replies = (cached.total(name) for name in ("bertline_batch_rows_sum", "bertline_cache_replies"))

    first, second = cached.stub.Embed(request), cached.stub.Embed(request)

    assert first.timings.inference_s > 0
    assert not second.HasField("timings")
    first.ClearField("timings")
    assert second == first
    assert cached.total("bertline_batch_rows_sum", **EMBED) == rows + 2
    assert counted() == [1, 1]
    assert cached.total("bertline_cache_replies") == replies + 1
    assert OVERHEAD_BYTES < cached.total("bertline_cache_bytes") <= 100_000


def test_different_requests_are_computed(cached, counted):
    """A request with another option, letter or method is computed."""
    for request in (
        pb.EmbedRequest(texts=["a dog"]),
        pb.EmbedRequest(texts=["a dog"], truncate=True),
        pb.EmbedRequest(texts=["a dog", "dog"]),
        pb.EmbedRequest(texts=["a Dog"]),
    ):
        cached.stub.Embed(request)

    assert counted() == [0, 4]


def test_errors_are_not_kept(cached, counted):
    """Errors are not cached."""
    replies = cached.total("bertline_cache_replies")
    for _ in range(2):
        with pytest.raises(grpc.RpcError, match="empty text"):
            cached.stub.Embed(pb.EmbedRequest(texts=[""]))

    assert counted() == [0, 0]
    assert cached.total("bertline_cache_replies") == replies


def test_all_fronts_use_the_cache(cached, counted):
    """Equal requests of the Open Inference Protocol and over HTTP are computed once, also those of token ids."""
    request, infer = infer_request("embedder", text=["the river"]), stub(cached, "ModelInfer")
    bodies = [{"input": "the river"}, {"input": [[2, 8, 3]]}, {"input": [[2, 9, 3]]}]

    found = [[post(cached, "/v1/embeddings", body).data for _ in range(2)] for body in bodies]

    assert infer(request) == infer(request)
    assert all(first == second for first, second in found)
    assert len({first for first, _ in found}) == len(bodies)
    assert counted() == [1 + len(bodies)] * 2


def test_a_scan_without_changes_keeps_the_cache(cached, counted):
    """A scan without changes keeps the cache."""
    request = pb.EmbedRequest(texts=["a scan"])
    cached.stub.Embed(request)
    asyncio.run_coroutine_threadsafe(cached.server._repository.refresh(), cached.loop).result(10)
    cached.stub.Embed(request)

    assert counted() == [1, 1]


def test_old_replies_are_evicted_and_counted(embedder):
    """The cache stays within its memory, and evictions are counted."""
    with serve(embedder, cache_bytes=2000) as running:
        for number in range(20):
            running.stub.Embed(pb.EmbedRequest(texts=["cat " * (number + 1)]))
        replies = running.total("bertline_cache_replies")

        assert 0 < replies < 20
        assert running.total("bertline_cache_evicted_total") == 20 - replies
        assert running.total("bertline_cache_bytes") <= 2000


def test_a_change_of_the_models_empties_the_cache(tmp_path):
    """Loading or unloading a version empties the cache."""
    before = write_model(tmp_path, "tiny", "1", task="embedding")
    request = pb.EmbedRequest(texts=["the cat"])
    with serve(tmp_path, cache_bytes=10_000, poll_s=0.02) as server:
        old = server.stub.Embed(request)
        after = write_model(tmp_path, "tiny", "2", task="embedding", seed=9)
        server.wait_for("bertline_model_loads_total", 1, version="2", result="loaded")
        new = server.stub.Embed(request)

    for reply, reference, version in ((old, before, "1"), (new, after, "2")):
        assert reply.model.version == version
        assert np.allclose(np.frombuffer(reply.vectors, "<f4"), reference.predict(["the cat"])[0], atol=1e-5)
