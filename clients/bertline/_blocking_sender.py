"""Sending of requests by threads that wait. Base of `Client`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import chain, islice
from threading import Lock
from types import TracebackType
from typing import Any, Concatenate, Self

import grpc

from bertline._coalescing import Member, SharedRequest
from bertline._connection import CLOSED, Health, Stubs, health_of_error, health_of_reply
from bertline._convert import Call, ReplyCollector, Request
from bertline._sender import ParametersT, ResultT, Sender, described_by
from bertline._status import may_be_unhealthy, timeout_error
from bertline.errors import Overloaded, ServerError

_MAX_THREADS = 256
"""Maximum number of shared requests in flight, of all lanes."""


def blocking(
    operation: Callable[ParametersT, Call[ResultT]],
) -> Callable[Concatenate[BlockingSender, ParametersT], ResultT]:
    """Return the method of a client that sends an operation's call, and returns its result."""

    @described_by(operation)
    def method(self: BlockingSender, *arguments: ParametersT.args, **options: ParametersT.kwargs) -> ResultT:
        return self._run(operation(*arguments, **options))

    return method


class BlockingSender(Sender):
    """Sender that blocks the calling thread. Thread-safe."""

    def _set_up(self) -> None:
        self._stubs = Stubs(self._connection, grpc)
        self._lock = Lock()
        """Guards the coalescer."""
        self._threads = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="bertline")
        """Threads that send shared requests. They end when nothing refers to the client."""

    def close(self) -> None:
        """Close the connection. Calls that are under way fail with ServerError."""
        self._closed = True
        with self._lock:
            waiting = self._coalescer.clear() if self._coalescer else []
        for member in waiting:
            member.end(ServerError(CLOSED))
        for channel in self._stubs.channels:
            channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, call: Call[ResultT]) -> ResultT:
        replies, limit, lane = self._begin(call)
        if lane is None:
            self._send(call, replies, limit)
        else:
            self._send_with_others(lane, call, replies, limit)
        return replies.result()

    def _send_with_others(self, lane: Hashable, call: Call[Any], replies: ReplyCollector[Any], timeout: float) -> None:
        """Send a small call at once or, if enough requests of its lane are in flight, together with others."""
        assert self._coalescer
        member = Member(call, replies, timeout, Future[None]())
        with self._lock:
            self._coalescer.max_in_flight = self._stubs.num_in_flight
            enters = self._coalescer.enter(lane, member)
        if enters:
            try:
                self._send(call, replies, timeout)
            finally:
                self._send_waiting(lane, [member])
            return
        try:
            member.waiter.result(timeout)
        except TimeoutError:
            if member.waiter.cancel():
                raise timeout_error(self._connection.target, timeout) from None
            member.waiter.result()  # it came at this moment
        finally:
            member.waiter.cancel()  # after Ctrl-C; does nothing to a call that has ended

    def _send_waiting(self, lane: Hashable, ended: Sequence[Member]) -> None:
        """Send calls that wait, in a separate thread, now that the request of others has ended."""
        assert self._coalescer
        with self._lock:
            members = self._coalescer.leave(lane, ended)
        if members:
            self._threads.submit(self._send_shared, lane, members)

    def _send_shared(self, lane: Hashable, members: Sequence[Member]) -> None:
        try:
            self._send_together(members)
        except Exception as error:  # no more threads
            for member in members:
                member.end(error)
        finally:
            self._send_waiting(lane, members)

    def _send_together(self, members: Sequence[Member]) -> None:
        """Send calls as one request or, if one of them may be wrong, each alone."""
        waiting = [member for member in members if not member.waiter.done()]
        try:
            if waiting:
                shared = SharedRequest(waiting)
                self._send(shared.call, shared, shared.timeout)
        except Exception as error:
            for member in self._end(waiting, error):
                self._threads.submit(self._send_together, [member])
        else:
            self._end(waiting, None)

    def _send(self, call: Call[Any], replies: ReplyCollector[Any] | SharedRequest, timeout: float) -> None:
        """Send the requests of a call, and add their replies in order."""
        requests = iter(call.requests(self._connection.batch_size))
        first_two = list(islice(requests, 2))
        if len(first_two) < 2:
            for request in first_two:  # blocking takes half the CPU time of a future
                replies.add(request, self._blocking(call.method, request, timeout))
            return
        in_flight: deque[tuple[Request, Any, bool]] = deque()
        try:
            for request in chain(first_two, requests):
                if len(in_flight) >= self._stubs.num_in_flight:
                    replies.add(*self._first(call.method, in_flight, timeout))
                is_checked = self._stubs.is_checked(call.method)
                rpc = self._stubs.method(call.method, is_checked=is_checked).future
                in_flight.append((request, self._connection.send(rpc, request, timeout), is_checked))
            while in_flight:
                replies.add(*self._first(call.method, in_flight, timeout))
        finally:
            for _, sent, _ in in_flight:
                sent.cancel()

    def _first(self, method: str, in_flight: deque[tuple[Request, Any, bool]], timeout: float) -> tuple[Request, Any]:
        """Wait for the first reply. If the queue is full, which this call's own requests may fill, send it alone."""
        request, sent, is_checked = in_flight[0]
        try:
            reply = self._wait(method, request, timeout, sent.result, is_checked=is_checked)
        except Overloaded as error:
            if error.is_final:
                raise
            for _, other, _ in islice(in_flight, 1, None):
                other.exception()  # waits until it has ended
            reply = self._blocking(method, request, timeout)
        in_flight.popleft()
        return request, reply

    def _blocking(self, method: str, request: Request, timeout: float, *, plain: bool = False) -> Any:
        is_checked = not plain and self._stubs.is_checked(method)
        rpc = self._stubs.method(method, is_checked=is_checked)
        send = partial(self._connection.send, rpc, request, timeout)
        return self._wait(method, request, timeout, send, is_checked=is_checked)

    def _wait(self, method: str, request: Request, timeout: float, wait: Callable[[], Any], *, is_checked: bool) -> Any:
        """Wait for a reply. Send the request again if it failed only because the server refuses health checks."""
        try:
            reply = wait()
        except grpc.RpcError as error:
            health = self._health(timeout) if is_checked and may_be_unhealthy(error) else None
            if health is not Health.REFUSED:
                raise self._stubs.error(error, request, timeout, health) from error
        else:
            self._stubs.was_connected = True
            return reply
        reply = self._blocking(method, request, timeout, plain=True)
        self._stubs.give_up_health()
        return reply

    def _health(self, timeout: float) -> Health:
        watch = self._stubs.watch_health(timeout)
        try:
            return health_of_reply(next(watch, None))
        except grpc.RpcError as error:
            return health_of_error(error)
        finally:
            watch.cancel()
