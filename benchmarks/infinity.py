"""Peer: a running infinity server, its vectors and its throughput."""

from __future__ import annotations

import http.client
import itertools
import json
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import numpy as np

from benchmarks.embed_load import EmbedLoad


class Infinity:
    """Client of POST /embeddings with one connection per thread.

    Args:
        url: of the server.
        texts: to embed.

    Raises:
        SystemExit: if no server with one model answers.
    """

    def __init__(self, url: str, texts: Sequence[str]) -> None:
        parts = urlsplit(url)
        self._address, self._path = parts.netloc, parts.path.rstrip("/") + "/embeddings"
        self._texts = texts
        try:
            (model,) = self._ask("GET", parts.path.rstrip("/") + "/models")["data"]
        except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
            raise SystemExit(
                f"error: no infinity server with one model at `{url}` ({error}); start one: infinity_emb v2 --model-id "
                "CHECKPOINT --engine torch --device cpu --port 7997"
            ) from None
        self._model = model["id"]

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Return the vectors of texts, [texts, hidden] float32."""
        reply = self._ask("POST", self._path, self._body(texts, "float"))
        return np.array([item["embedding"] for item in reply["data"]], dtype=np.float32)

    def texts_per_s(self, load: EmbedLoad) -> float:
        """Measure the throughput with a load's calls in flight, until the last reply.

        Replies come as base64, the smaller format, and are not parsed.
        """
        chunks, lock, count = self._chunks(load.num_texts), threading.Lock(), [0]
        started = time.perf_counter()

        def work(_: int) -> None:
            connection = http.client.HTTPConnection(self._address)
            while time.perf_counter() - started < load.seconds:
                with lock:
                    body = self._body(next(chunks), "base64")
                _request(connection, "POST", self._path, body)
                with lock:
                    count[0] += load.num_texts
            connection.close()

        with ThreadPoolExecutor(load.num_in_flight) as threads:
            list(threads.map(work, range(load.num_in_flight)))
        return count[0] / (time.perf_counter() - started)

    def _chunks(self, size: int) -> itertools.cycle[list[str]]:
        return itertools.cycle([list(self._texts[i : i + size]) for i in range(0, len(self._texts) - size + 1, size)])

    def _body(self, texts: Sequence[str], encoding: str) -> bytes:
        return json.dumps({"model": self._model, "input": texts, "encoding_format": encoding}).encode()

    def _ask(self, method: str, path: str, body: bytes | None = None) -> dict:
        connection = http.client.HTTPConnection(self._address, timeout=60)
        try:
            return json.loads(_request(connection, method, path, body))
        finally:
            connection.close()


def _request(connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None) -> bytes:
    connection.request(method, path, body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    reply = response.read()
    if response.status != 200:
        raise ValueError(f"{response.status} of {path}: {reply[:200]!r}")
    return reply
