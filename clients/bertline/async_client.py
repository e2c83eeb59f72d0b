"""The client for asyncio: the methods of Client, to be awaited.

from bertline import AsyncClient
async with AsyncClient("127.0.0.1:50051") as client:
    vectors = await client.embed(["one text", "another text"])
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, TypeVar

import grpc
import grpc.aio
import numpy as np

from bertline._calls import (
    Pooling,
    answer_call,
    choose_call,
    classify_call,
    embed_call,
    fill_mask_call,
    model_call,
    models_call,
    regress_call,
    tag_call,
    tokenize_call,
)
from bertline._connection import Connection
from bertline._convert import Answered, Call, Request
from bertline.results import Answer, Choice, Classification, MaskFill, Model, Tagging, Tokenized, Usage
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
        token: str | None = None,
    ) -> None:
        self._connection = Connection(
            target=target,
            timeout=timeout,
            batch_size=batch_size,
            num_in_flight=num_in_flight,
            credentials=credentials,
            token=token,
        )
        self._channel: Any = None  # belongs to the event loop that runs when it is opened, hence not opened here
        self._closed = False

    async def embed(
        self,
        texts: Iterable[str],
        *,
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        dimensions: int | None = None,
        windows: bool = False,
        window_stride: int | None = None,
        model: str = "",
        version: str = "",
        truncate: bool = False,
        timeout: float | None = None,
        usage: Usage | None = None,
    ) -> np.ndarray:
        """See `Client.embed`."""
        call = embed_call(
            texts,
            model,
            version,
            truncate,
            pooling=pooling,
            normalize=normalize,
            dimensions=dimensions,
            windows=windows,
            window_stride=window_stride,
        )
        return await self._run(call, timeout, usage)

    async def classify(
        self,
        inputs: Iterable[str | tuple[str, str]],
        *,
        top_k: int | None = None,
        model: str = "",
        version: str = "",
        truncate: bool = False,
        timeout: float | None = None,
        usage: Usage | None = None,
    ) -> list[Classification]:
        """See `Client.classify`."""
        call = classify_call(inputs, model, version, truncate, top_k=top_k)
        return await self._run(call, timeout, usage)

    async def regress(
        self,
        inputs: Iterable[str | tuple[str, str]],
        *,
        model: str = "",
        version: str = "",
        truncate: bool = False,
        timeout: float | None = None,
        usage: Usage | None = None,
    ) -> list[float]:
        """See `Client.regress`."""
        call = regress_call(inputs, model, version, truncate)
        return await self._run(call, timeout, usage)

    async def choose(
        self,
        inputs: Iterable[tuple[str, Sequence[str]] | tuple[str, str, Sequence[str]]],
        *,
        model: str = "",
        version: str = "",
        truncate: bool = False,
        timeout: float | None = None,
        usage: Usage | None = None,
    ) -> list[Choice]:
        """See `Client.choose`."""
        call = choose_call(inputs, model, version, truncate)
        return await self._run(call, timeout, usage)

    async def answer(
        self,
        inputs: Iterable[tuple[str, str | Sequence[str]]],
        *,
        top_k: int = 1,
        model: str = "",
        version: str = "",
        truncate: bool = False,
        timeout: float | None = None,
        usage: Usage | None = None,
    ) -> list[Answer]:
        """See `Client.answer`."""
        call = answer_call(inputs, model, version, truncate, top_k=top_k)
        return await self._run(call, timeout, usage)

    async def tag(
        self,
        inputs: Iterable[str | Sequence[str]],
        *,
        return_words: bool = False,
        model: str = "",
        version: str = "",
        truncate: bool = False,
        timeout: float | None = None,
        usage: Usage | None = None,
    ) -> list[Tagging]:
        """See `Client.tag`."""
        call = tag_call(inputs, model, version, truncate, return_words=return_words)
        return await self._run(call, timeout, usage)

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
        usage: Usage | None = None,
    ) -> list[tuple[MaskFill, ...]]:
        """See `Client.fill_mask`."""
        call = fill_mask_call(texts, model, version, truncate, top_k=top_k, targets=targets)
        return await self._run(call, timeout, usage)

    async def tokenize(
        self,
        inputs: Iterable[str | tuple[str, str]],
        *,
        model: str = "",
        version: str = "",
        timeout: float | None = None,
    ) -> list[Tokenized]:
        """See `Client.tokenize`."""
        return await self._run(tokenize_call(inputs, model, version), timeout)

    async def models(self, *, timeout: float | None = None) -> list[Model]:
        """All versions that the server has, those that it cannot load included: `state` and `error` tell."""
        return await self._run(models_call(), timeout)

    async def model(self, name: str = "", version: str = "", *, timeout: float | None = None) -> Model:
        """One loaded model: its highest version unless another is named; without a name, the only one."""
        return await self._run(model_call(name, version), timeout)

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

    async def _run(self, call: Call[ResultT], timeout: float | None, usage: Usage | None = None) -> ResultT:
        answered = await self._send(call, self._connection.timeout if timeout is None else timeout)
        return call.result(answered, usage)

    async def _send(self, call: Call[Any], timeout: float) -> list[Answered]:
        method = getattr(self._open(), call.method)
        answered: list[Answered] = []
        metadata = self._connection.metadata
        in_flight: deque[tuple[Request, Any]] = deque()
        try:
            for request in call.requests(self._connection.batch_size):
                if len(in_flight) == self._connection.num_in_flight:
                    answered.append(await self._wait(*in_flight[0], timeout))
                    in_flight.popleft()
                in_flight.append((request, method(request.message, timeout=timeout, metadata=metadata)))
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
