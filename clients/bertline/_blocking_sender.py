"""Sending of requests by threads that wait. Base of `Client`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from threading import Event, Lock
from types import TracebackType
from typing import Any, Self

import grpc

from bertline._coalescing import Member, SharedRequest, concerns_one
from bertline._connection import CLOSED, Health, Stubs, health_of_error, health_of_reply
from bertline._convert import Call, ReplyCollector, Request, RequestAndReply
from bertline._sender import ResultT, Sender
from bertline._status import may_be_unhealthy
from bertline.errors import BertlineError, Overloaded, ServerError, TimedOut
from bertline.results import Usage


class BlockingSender(Sender):
    """Sender that blocks the calling thread. Thread-safe."""

    def _set_up(self) -> None:
        self._stubs = Stubs(self._connection, grpc)
        self._lock = Lock()
        """Guards the coalescer and the turns."""

    def close(self) -> None:
        """Close the connection. Calls that are under way fail with ServerError."""
        self._closed = True
        with self._lock:
            waiting = self._coalescer.clear() if self._coalescer else []
        for member in waiting:
            _fail(member, ServerError(CLOSED))
        _wake(waiting)
        for channel in self._stubs.channels:
            channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, call: Call[ResultT], timeout: float | None, usage: Usage | None = None) -> ResultT:
        replies, limit, lane = self._begin(call, timeout, usage)
        if lane is None:
            self._send(call, replies, limit)
        else:
            self._send_with_others(lane, call, replies, limit)
        return replies.result()

    def _send(self, call: Call[Any], replies: ReplyCollector[Any] | SharedRequest, timeout: float) -> None:
        """Send the requests of a call, and add their replies in order."""
        with closing(self._replies(call, timeout)) as pairs:
            for request, reply in pairs:
                replies.add(request, reply)

    def _send_with_others(self, lane: Hashable, call: Call[Any], replies: ReplyCollector[Any], timeout: float) -> None:
        """Send a small call at once or, if enough requests of its lane are in flight, together with others.

        One of the calls that leave together sends the request, in its own thread.
        """
        assert self._coalescer
        member = Member(call, replies, timeout, turn := _Turn())
        with self._lock:
            enters = self._coalescer.enter(lane, member)
        if enters:
            try:
                self._send(call, replies, timeout)
            finally:
                self._pass_turn(lane, [member])
            return
        try:
            is_known = turn.event.wait(timeout) or not self._give_up(turn)
        except BaseException:  # Ctrl-C: the others must not wait for this thread
            if not self._give_up(turn) and turn.members:
                _go_alone(turn.members)
                _wake(turn.members)
                self._pass_turn(lane, turn.members)
            raise
        if not is_known:
            raise self._connection.timed_out(timeout)
        if turn.members:
            try:
                self._send_together(turn.members)
            finally:
                self._pass_turn(lane, turn.members)
        if turn.goes_alone:
            self._send_alone(member)
        elif turn.error:
            raise turn.error

    def _give_up(self, turn: _Turn) -> bool:
        """End the wait of a call; return False if its turn has come at this moment."""
        with self._lock:
            turn.is_over = not turn.event.is_set()
        return turn.is_over

    def _pass_turn(self, lane: Hashable, ended: Sequence[Member]) -> None:
        """Send calls that wait, now that the request of others has ended: wake the one with the latest deadline."""
        assert self._coalescer
        with self._lock:
            if members := self._coalescer.leave(lane, ended):
                sender = max(members, key=lambda member: member.deadline_s)
                sender.waiter.members = members
                sender.waiter.event.set()

    def _send_together(self, members: Sequence[Member]) -> None:
        """Send calls as one request. If one of them may be wrong, or this thread is interrupted, each goes alone."""
        try:
            shared = SharedRequest(members)
            self._send(shared.call, shared, shared.timeout)
        except BertlineError as error:
            if len(members) > 1 and concerns_one(error) and not self._closed:
                _go_alone(members)
            else:
                for member in members:
                    _fail(member, self._connection.own_error(error, member.timeout))
        except BaseException:
            _go_alone(members)
            raise
        finally:
            _wake(members)

    def _send_alone(self, member: Member) -> None:
        try:
            self._send(member.call, member.replies, max(0.0, member.left_s))
        except TimedOut as error:
            raise self._connection.own_error(error, member.timeout) from error.__cause__

    def _replies(self, call: Call[Any], timeout: float) -> Generator[RequestAndReply, None, None]:
        """Send the requests of a call, and yield each with its reply, in order."""
        requests = iter(call.requests(self._connection.batch_size))
        first_two = list(islice(requests, 2))
        if len(first_two) > 1:
            yield from self._pipelined(call.method, chain(first_two, requests), timeout)
        for request in first_two[: 2 - len(first_two)]:  # blocking takes half the CPU time of a future
            yield self._blocking(call.method, request, timeout)

    def _pipelined(
        self, method: str, requests: Iterable[Request], timeout: float
    ) -> Generator[RequestAndReply, None, None]:
        in_flight: deque[tuple[Request, Any, bool]] = deque()
        try:
            for request in requests:
                if len(in_flight) == self._connection.num_in_flight:
                    yield self._first(method, in_flight, timeout)
                is_checked = self._stubs.is_checked(method)
                rpc = self._stubs.method(method, is_checked=is_checked).future
                in_flight.append((request, self._connection.send(rpc, request, timeout), is_checked))
            while in_flight:
                yield self._first(method, in_flight, timeout)
        finally:
            for _, call, _ in in_flight:
                call.cancel()

    def _first(self, method: str, in_flight: deque[tuple[Request, Any, bool]], timeout: float) -> RequestAndReply:
        """Wait for the first reply. If the queue is full, which this call's own requests may fill, send it alone."""
        request, call, is_checked = in_flight[0]
        try:
            answered = self._wait(method, request, timeout, call.result, is_checked=is_checked)
        except Overloaded as error:
            if error.is_final:
                raise
            for _, other, _ in islice(in_flight, 1, None):
                other.exception()  # waits until it has ended
            answered = self._blocking(method, request, timeout)
        in_flight.popleft()
        return answered

    def _blocking(self, method: str, request: Request, timeout: float, *, plain: bool = False) -> RequestAndReply:
        is_checked = not plain and self._stubs.is_checked(method)
        rpc = self._stubs.method(method, is_checked=is_checked)
        reply = partial(self._connection.send, rpc, request, timeout)
        return self._wait(method, request, timeout, reply, is_checked=is_checked)

    def _wait(
        self, method: str, request: Request, timeout: float, reply: Callable[[], Any], *, is_checked: bool
    ) -> RequestAndReply:
        """Wait for a reply. Send the request again if it failed only because the server refuses health checks."""
        try:
            answered = request, reply()
        except grpc.RpcError as error:
            health = self._health(timeout) if is_checked and may_be_unhealthy(error) else None
            if health is not Health.REFUSED:
                raise self._stubs.error(error, request, timeout, health) from error
        else:
            self._stubs.was_connected = True
            return answered
        answered = self._blocking(method, request, timeout, plain=True)
        self._stubs.give_up_health()
        return answered

    def _health(self, timeout: float) -> Health:
        watch = self._stubs.watch_health(timeout)
        try:
            return health_of_reply(next(watch, None))
        except grpc.RpcError as error:
            return health_of_error(error)
        finally:
            watch.cancel()


@dataclass(eq=False)
class _Turn:
    """Outcome for a call that waits for others."""

    event: Event = field(default_factory=Event)
    """Set when one of the following is known, or the call has its result."""
    members: Sequence[Member] = ()
    """Calls that it sends together with its own."""
    goes_alone: bool = False
    error: BertlineError | None = None
    is_over: bool = False
    """True if its timeout ended before the event was set."""

    def done(self) -> bool:
        """Return whether nobody waits any more."""
        return self.is_over


def _fail(member: Member, error: BertlineError) -> None:
    member.waiter.error = error


def _go_alone(members: Sequence[Member]) -> None:
    for member in members:
        member.waiter.goes_alone = True


def _wake(members: Sequence[Member]) -> None:
    for member in members:
        member.waiter.event.set()
