"""The client that waits for replies.

from bertline import Client
with Client("127.0.0.1:50051") as client:
    vectors = client.embed(["one text", "another text"])
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, TypeVar

import grpc
import numpy as np

from bertline._connection import Connection
from bertline._convert import (
    Answered,
    Call,
    Pooling,
    Request,
    answer_call,
    classify_call,
    embed_call,
    fill_mask_call,
    models_call,
)
from bertline.results import Answer, Classification, MaskFill, Model
from bertline.v1.encoder_pb2_grpc import EncoderStub

ResultT = TypeVar("ResultT")


class Client:
    """Client of one server. Threads may share it; close it, or use it in `with`.

    A list of any length is sent as several requests, some of them at one time; results come in the order of the list.
    When one request fails, its error is raised and the others are cancelled. What the methods raise is told in
    `bertline.errors`.

    Args:
        target: `host:port`, or another address that gRPC understands (`unix:/path`).
        timeout: seconds that each request may take.
        batch_size: most inputs in one request.
        num_in_flight: most requests of one call that are under way at one time.
        credentials: of a server that speaks TLS, see `grpc.ssl_channel_credentials`.

    Raises:
        ValueError: when an argument is out of range.
    """

    def __init__(
        self,
        target: str = "127.0.0.1:50051",
        *,
        timeout: float = 30.0,
        batch_size: int = 64,
        num_in_flight: int = 4,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        self._connection = Connection(
            target=target,
            timeout=timeout,
            batch_size=batch_size,
            num_in_flight=num_in_flight,
            credentials=credentials,
        )
        self._channel = self._connection.open(grpc)
        self._stub = EncoderStub(self._channel)

    def embed(
        self,
        texts: Iterable[str],
        *,
        model: str = "",
        version: str = "",
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        truncate: bool = False,
        timeout: float | None = None,
    ) -> np.ndarray:
        """One vector for each text.

        Args:
            texts: a list; a single string is refused.
            model: its name; empty for the only loaded model of this task.
            version: empty for the highest loaded one.
            pooling: `cls` or `mean`, to make sure of it: another than the model's is refused.
            normalize: divide each vector by its Euclidean norm; None for what the model was made for.
            truncate: cut texts that are too long instead of raising InvalidInput.
            timeout: seconds that each request may take; None for the client's.

        Returns:
            [texts, dim] float32; [0, 0] for no texts.
        """
        return self._run(embed_call(texts, model, version, pooling, normalize, truncate), timeout)

    def classify(
        self,
        inputs: Iterable[str | tuple[str, str]],
        *,
        model: str = "",
        version: str = "",
        truncate: bool = False,
        timeout: float | None = None,
    ) -> list[Classification]:
        """All labels with their probabilities, for each text or pair of texts.

        Args:
            inputs: a list of texts, of pairs, or of both.
            model: its name; empty for the only loaded model of this task.
            version: empty for the highest loaded one.
            truncate: cut inputs that are too long, from the end of the longer text, instead of raising InvalidInput.
            timeout: seconds that each request may take; None for the client's.

        Returns:
            One for each input; `.label` and `.score` are the likeliest.
        """
        return self._run(classify_call(inputs, model, version, truncate), timeout)

    def answer(
        self,
        inputs: Iterable[tuple[str, str]],
        *,
        top_k: int = 1,
        model: str = "",
        version: str = "",
        truncate: bool = False,
        timeout: float | None = None,
    ) -> list[Answer]:
        """The spans of a context that answer a question.

        Args:
            inputs: a list of pairs (question, context). Contexts may be of any length.
            top_k: most spans for each input.
            model: its name; empty for the only loaded model of this task.
            version: empty for the highest loaded one.
            truncate: cut questions that are too long instead of raising InvalidInput.
            timeout: seconds that each request may take; None for the client's.

        Returns:
            One for each input; `.text` is the best answer, empty for none.
        """
        return self._run(answer_call(inputs, model, version, top_k, truncate), timeout)

    def fill_mask(
        self,
        texts: Iterable[str],
        *,
        top_k: int = 5,
        targets: Iterable[str] = (),
        model: str = "",
        version: str = "",
        truncate: bool = False,
        timeout: float | None = None,
    ) -> list[tuple[MaskFill, ...]]:
        """The likeliest tokens at each [MASK].

        Args:
            texts: a list of texts, each with at least one [MASK].
            top_k: most tokens for each [MASK].
            targets: tokens of the vocabulary to score too, whatever their rank.
            model: its name; empty for the only loaded model of this task.
            version: empty for the highest loaded one.
            truncate: cut texts that are too long instead of raising InvalidInput.
            timeout: seconds that each request may take; None for the client's.

        Returns:
            For each text, one MaskFill for each [MASK] in the order of the text.
        """
        return self._run(fill_mask_call(texts, model, version, top_k, targets, truncate), timeout)

    def models(self, *, timeout: float | None = None) -> list[Model]:
        """What is loaded."""
        return self._run(models_call(), timeout)

    def close(self) -> None:
        """Close the connection; calls under way fail."""
        self._channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, call: Call[ResultT], timeout: float | None) -> ResultT:
        return call.collect(self._send(call, self._connection.timeout if timeout is None else timeout))

    def _send(self, call: Call[Any], timeout: float) -> Iterator[Answered]:
        method = getattr(self._stub, call.method)
        in_flight: deque[tuple[Request, Any]] = deque()
        try:
            for request in call.requests(self._connection.batch_size):
                if len(in_flight) == self._connection.num_in_flight:
                    yield self._wait(*in_flight[0], timeout)
                    in_flight.popleft()
                in_flight.append((request, method.future(request.message, timeout=timeout)))
            while in_flight:
                yield self._wait(*in_flight[0], timeout)
                in_flight.popleft()
        finally:
            for _, rpc in in_flight:
                rpc.cancel()

    def _wait(self, request: Request, rpc: Any, timeout: float) -> Answered:
        try:
            return request, rpc.result()
        except grpc.RpcError as error:
            raise self._connection.error(error, request, timeout) from error
