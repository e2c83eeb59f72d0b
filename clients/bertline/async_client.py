"""The client for asyncio: the methods of Client, to be awaited.

from bertline import AsyncClient
async with AsyncClient("127.0.0.1:50051") as client:
    vectors = await client.embed(["one text", "another text"])
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import Any, TypeVar

import grpc
import grpc.aio
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


class AsyncClient:
    """Client of one server for one event loop. Arguments, results and errors are those of `Client`."""

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
        self._channel: Any = None  # belongs to the event loop that runs when it is opened, hence not opened here
        self._closed = False

    async def embed(
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
        """See `Client.embed`."""
        return await self._run(embed_call(texts, model, version, pooling, normalize, truncate), timeout)

    async def classify(
        self,
        inputs: Iterable[str | tuple[str, str]],
        *,
        model: str = "",
        version: str = "",
        truncate: bool = False,
        timeout: float | None = None,
    ) -> list[Classification]:
        """See `Client.classify`."""
        return await self._run(classify_call(inputs, model, version, truncate), timeout)

    async def answer(
        self,
        inputs: Iterable[tuple[str, str]],
        *,
        top_k: int = 1,
        model: str = "",
        version: str = "",
        truncate: bool = False,
        timeout: float | None = None,
    ) -> list[Answer]:
        """See `Client.answer`."""
        return await self._run(answer_call(inputs, model, version, top_k, truncate), timeout)

    async def fill_mask(
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
        """See `Client.fill_mask`."""
        return await self._run(fill_mask_call(texts, model, version, top_k, targets, truncate), timeout)

    async def models(self, *, timeout: float | None = None) -> list[Model]:
        """What is loaded."""
        return await self._run(models_call(), timeout)

    async def close(self) -> None:
        """Close the connection; calls under way fail."""
        self._closed = True
        if self._channel is not None:
            await self._channel.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _run(self, call: Call[ResultT], timeout: float | None) -> ResultT:
        return call.collect(await self._send(call, self._connection.timeout if timeout is None else timeout))

    async def _send(self, call: Call[Any], timeout: float) -> list[Answered]:
        method = getattr(self._open(), call.method)
        answered: list[Answered] = []
        in_flight: deque[tuple[Request, Any]] = deque()
        try:
            for request in call.requests(self._connection.batch_size):
                if len(in_flight) == self._connection.num_in_flight:
                    answered.append(await self._wait(*in_flight[0], timeout))
                    in_flight.popleft()
                in_flight.append((request, method(request.message, timeout=timeout)))
            while in_flight:
                answered.append(await self._wait(*in_flight[0], timeout))
                in_flight.popleft()
        finally:
            for _, rpc in in_flight:
                rpc.cancel()
        return answered

    def _open(self) -> EncoderStub:
        if self._closed:
            raise ValueError("the client is closed")
        if self._channel is None:
            self._channel = self._connection.open(grpc.aio)
            self._stub = EncoderStub(self._channel)
        return self._stub

    async def _wait(self, request: Request, rpc: Any, timeout: float) -> Answered:
        try:
            return request, await rpc
        except grpc.RpcError as error:
            raise self._connection.error(error, request, timeout) from error
