"""Constructor and first step of both clients."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeVar

import grpc

from bertline._coalescing import Coalescer
from bertline._connection import Connection, Priority
from bertline._convert import Call, ReplyCollector
from bertline._inputs import read_flag, read_timeout
from bertline.results import Usage

ResultT = TypeVar("ResultT")


class Sender:
    """Connection of a client, and the calls that wait for others. Base of `Client` and `AsyncClient`."""

    def __init__(
        self,
        target: str = "127.0.0.1:50051",
        *,
        timeout: float = 30.0,
        batch_size: int = 64,
        num_in_flight: int = 4,
        credentials: grpc.ChannelCredentials | None = None,
        token: str | None = None,
        check_health: bool | None = None,
        priority: Priority = "interactive",
        coalesce: bool = True,
    ) -> None:
        self._connection = Connection(
            target=target,
            timeout=timeout,
            batch_size=batch_size,
            num_in_flight=num_in_flight,
            credentials=credentials,
            token=token,
            check_health=check_health,
            priority=priority,
        )
        self._closed = False
        self._coalescer = (
            Coalescer(self._connection.num_in_flight, self._connection.batch_size)
            if read_flag("coalesce", coalesce)
            else None
        )
        self._set_up()

    def _set_up(self) -> None:
        """Prepare what one of the clients needs besides."""
        raise NotImplementedError

    def _begin(
        self, call: Call[ResultT], timeout: float | None, usage: Usage | None
    ) -> tuple[ReplyCollector[ResultT], float, Hashable | None]:
        """Return the collector of a call's replies, its timeout, and its lane; None if it is sent by itself."""
        if self._closed:
            raise ValueError("the client is closed")
        limit = self._connection.timeout if timeout is None else read_timeout(timeout)
        return ReplyCollector(call, usage), limit, self._coalescer.lane(call) if self._coalescer else None
