"""Sending of requests in an event loop. Base of `AsyncClient`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from itertools import islice
from types import TracebackType
from typing import Any, Concatenate, Self

import grpc
import grpc.aio

from bertline._coalescing import Member, SharedRequest
from bertline._connection import CLOSED, Health, Stubs, health_of_error, health_of_reply
from bertline._convert import Call, ReplyCollector, Request
from bertline._sender import ParametersT, ResultT, Sender, described_by
from bertline._status import may_be_unhealthy, timeout_error
from bertline.errors import Overloaded, ServerError


def coroutine(
    operation: Callable[ParametersT, Call[ResultT]],
) -> Callable[Concatenate[AsyncSender, ParametersT], Coroutine[Any, Any, ResultT]]:
    """Return the method of an `AsyncClient` that sends an operation's call, and returns its result."""

    @described_by(operation)
    async def method(self: AsyncSender, *arguments: ParametersT.args, **options: ParametersT.kwargs) -> ResultT:
        return await self._run(operation(*arguments, **options))

    return method


class AsyncSender(Sender):
    """Sender for one event loop."""

    def _set_up(self) -> None:
        self._stubs: Stubs | None = None  # opened by the first call, in its event loop
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sending: set[asyncio.Task[None]] = set()
        """Tasks that send shared requests; asyncio itself keeps no reference to them."""

    async def close(self) -> None:
        """Close the connection. Calls that are under way fail with ServerError."""
        self._closed = True
        for member in self._coalescer.clear() if self._coalescer else ():
            member.end(ServerError(CLOSED))
        for channel in self._stubs.channels if self._stubs else ():
            await channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _run(self, call: Call[ResultT]) -> ResultT:
        replies, limit, lane = self._begin(call)
        if lane is None:
            await self._send(call, replies, limit)
        else:
            await self._send_with_others(lane, call, replies, limit)
        return replies.result()

    async def _send_with_others(
        self, lane: Hashable, call: Call[ResultT], replies: ReplyCollector[ResultT], timeout: float
    ) -> None:
        """Send a small call at once or, if enough requests of its lane are in flight, together with others."""
        assert self._coalescer
        member = Member(call, replies, timeout, self._check_loop().create_future())
        self._coalescer.max_in_flight = self._open().num_in_flight
        if self._coalescer.enter(lane, member):
            try:
                await self._send(call, replies, timeout)
            finally:
                self._send_waiting(lane, [member])
            return
        try:
            async with asyncio.timeout(timeout):
                await member.waiter
        except TimeoutError:
            raise timeout_error(self._connection.target, timeout) from None

    def _send_waiting(self, lane: Hashable, ended: Sequence[Member]) -> None:
        """Send calls that wait, in a separate task, now that the request of others has ended."""
        assert self._coalescer
        if members := self._coalescer.leave(lane, ended):
            task = asyncio.get_running_loop().create_task(self._send_shared(lane, members))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _send_shared(self, lane: Hashable, members: Sequence[Member]) -> None:
        try:
            await self._send_together(members)
        finally:
            for member in members:  # those that stay unanswered, as this task was cancelled
                member.end(ServerError(CLOSED))
            self._send_waiting(lane, members)

    async def _send_together(self, members: Sequence[Member]) -> None:
        """Send calls as one request or, if one of them may be wrong, each alone."""
        waiting = [member for member in members if not member.waiter.done()]
        try:
            if waiting:
                shared = SharedRequest(waiting)
                await self._send(shared.call, shared, shared.timeout)
        except Exception as error:
            await asyncio.gather(*(self._send_together([member]) for member in self._end(waiting, error)))
        else:
            self._end(waiting, None)

    async def _send(self, call: Call[Any], replies: ReplyCollector[Any] | SharedRequest, timeout: float) -> None:
        """Send the requests of a call, and add their replies in order."""
        in_flight: deque[tuple[Request, Any, bool]] = deque()
        num_sent = 0
        try:
            for request in call.requests(self._connection.batch_size):
                num_sent += 1
                if len(in_flight) >= self._open().num_in_flight:
                    replies.add(*await self._first(call.method, in_flight, timeout))
                in_flight.append((request, *self._start(call.method, request, timeout)))
            while in_flight:
                replies.add(*await self._first(call.method, in_flight, timeout, is_only=num_sent == 1))
        finally:
            for _, sent, _ in in_flight:
                sent.cancel()

    def _check_loop(self) -> asyncio.AbstractEventLoop:
        """Return the running event loop, which must be that of the first call."""
        loop = asyncio.get_running_loop()
        self._loop = self._loop or loop
        if self._loop is not loop:
            raise ValueError("an AsyncClient belongs to the event loop of its first call; make one for each loop")
        return loop

    def _open(self) -> Stubs:
        self._check_loop()
        if self._stubs is None:
            self._stubs = Stubs(self._connection, grpc.aio)
        return self._stubs

    def _start(self, method: str, request: Request, timeout: float) -> tuple[Any, bool]:
        """Send a request; return its call, and whether the server's health is checked."""
        stubs = self._open()
        is_checked = stubs.is_checked(method)
        return self._connection.send(stubs.method(method, is_checked=is_checked), request, timeout), is_checked

    async def _first(
        self, method: str, in_flight: deque[tuple[Request, Any, bool]], timeout: float, *, is_only: bool = False
    ) -> tuple[Request, Any]:
        """Wait for the first reply. If the queue is full, which this call's own requests may fill, send it alone.

        Args:
            is_only: the call has no other request.
        """
        request, sent, is_checked = in_flight[0]
        try:
            reply = await self._wait(method, request, timeout, sent, is_checked=is_checked)
        except Overloaded as error:
            if error.is_final or is_only:
                raise
            for _, other, _ in islice(in_flight, 1, None):
                await other.code()  # waits until it has ended
            again, is_checked = self._start(method, request, timeout)
            reply = await self._wait(method, request, timeout, again, is_checked=is_checked)
        in_flight.popleft()
        return request, reply

    async def _wait(
        self, method: str, request: Request, timeout: float, sent: Awaitable[Any], *, is_checked: bool
    ) -> Any:
        """Wait for a reply. Send the request again if it failed only because the server refuses health checks."""
        stubs = self._stubs
        assert stubs is not None  # opened before anything was sent
        try:
            reply = await sent
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if self._closed and not (task and task.cancelling()):  # closing the channel cancels the call, not the task
                raise ServerError(CLOSED) from error
            raise
        except grpc.RpcError as error:
            health = await self._health(timeout) if is_checked and may_be_unhealthy(error) else None
            if health is not Health.REFUSED:
                raise stubs.error(error, request, timeout, health) from error
        else:
            if reply is None:  # grpc.aio returns None for bytes that it cannot parse
                raise ServerError("the server sent a reply that cannot be read")
            stubs.was_connected = True
            return reply
        again = self._connection.send(stubs.method(method), request, timeout)
        reply = await self._wait(method, request, timeout, again, is_checked=False)
        stubs.give_up_health()
        return reply

    async def _health(self, timeout: float) -> Health:
        watch = self._open().watch_health(timeout)
        try:
            reply = await watch.read()
            return health_of_reply(None if reply is grpc.aio.EOF else reply)
        except grpc.RpcError as error:
            return health_of_error(error)
        finally:
            watch.cancel()
