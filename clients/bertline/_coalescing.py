"""Small calls that come while a client is busy leave together, as one request. Shared by Client and AsyncClient.

Calls of the same method, model and options share a lane. While fewer requests of the lane are in flight than the client
allows, a call leaves at once. Later calls wait, and leave together when a reply comes: as many as make all requests
equally large, since small requests would overtake large ones again and again, and most would hold one call. Each call
has its own result, timeout and error: if the server refuses the shared request because of one input, all its calls are
sent alone.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Hashable, Sequence
from concurrent.futures import InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from bertline._convert import Call, ReplyCollector, Request, Split
from bertline.errors import ServerError

MAX_INPUTS, MAX_BYTES = 4, 2048
"""Largest call that is sent together with others. Larger ones gain nothing, and would delay the small ones."""


@dataclass(eq=False)
class Member:
    """Call that waits for others."""

    call: Call[Any]
    replies: ReplyCollector[Any]
    timeout: float
    """Seconds that the call may take from its start."""
    waiter: Any
    """Future that its caller waits for, of asyncio or concurrent.futures."""
    deadline_s: float = field(init=False)
    """End of the timeout, by time.monotonic."""

    def __post_init__(self) -> None:
        self.deadline_s = time.monotonic() + self.timeout

    @property
    def split(self) -> Split:
        """Inputs and options of the call."""
        assert isinstance(self.call.requests, Split)
        return self.call.requests

    @property
    def num_inputs(self) -> int:
        """Number of inputs of the call."""
        return len(self.split.items)

    def end(self, error: Exception | None = None) -> None:
        """Wake the caller, with an error if there is one, unless it has left or has its result."""
        with suppress(InvalidStateError):  # its thread leaves at this moment
            if not self.waiter.done():
                self.waiter.set_exception(error) if error else self.waiter.set_result(None)


@dataclass(eq=False)
class _Lane:
    num_in_flight: int = 0
    num_inputs: int = 0
    """Inputs of the calls in flight, of those that wait, and in `leave` of those that have just ended."""
    waiting: deque[Member] = field(default_factory=deque)


class Coalescer:
    """Lanes of a client. Not thread-safe.

    Args:
        max_in_flight: requests of a lane that may be in flight before calls wait for each other.
        max_inputs: largest number of inputs in a request.
    """

    def __init__(self, max_in_flight: int, max_inputs: int) -> None:
        self.max_in_flight = max_in_flight
        self._max_inputs = max_inputs
        self._lanes: dict[Hashable, _Lane] = {}

    def lane(self, call: Call[Any]) -> Hashable | None:
        """Return the key of a call's lane; None for a call that is sent by itself."""
        split = call.requests
        if not isinstance(split, Split) or not 0 < len(split.items) <= min(MAX_INPUTS, split.limit(self._max_inputs)):
            return None
        return (call.method, split.options) if split.num_bytes <= MAX_BYTES else None

    def enter(self, lane: Hashable, member: Member) -> bool:
        """Return whether a call may leave now, alone, and count it as in flight. Otherwise it waits."""
        found = self._lanes.setdefault(lane, _Lane())
        found.num_inputs += member.num_inputs
        if found.num_in_flight >= self.max_in_flight:
            found.waiting.append(member)
            return False
        found.num_in_flight += 1
        return True

    def leave(self, lane: Hashable, ended: Sequence[Member]) -> list[Member]:
        """Return the calls that leave together now that a request has ended; if none waits, count it as ended.

        Args:
            lane: lane of the request.
            ended: calls of the request.
        """
        found, members, num_inputs = self._lanes[lane], list[Member](), 0
        equal = -(-found.num_inputs // (self.max_in_flight + 1))  # those that wait count as one request
        found.num_inputs -= sum(member.num_inputs for member in ended)
        while found.waiting:
            if found.waiting[0].waiter.done():  # its caller has left
                found.num_inputs -= found.waiting.popleft().num_inputs
                continue
            split = found.waiting[0].split
            num_inputs += len(split.items)
            is_full = num_inputs > min(equal, split.limit(self._max_inputs))
            if members and (is_full or (len(members) + 1) * MAX_BYTES > split.max_bytes):
                break
            members.append(found.waiting.popleft())
        if not members:
            found.num_in_flight -= 1
            if not found.num_in_flight:
                del self._lanes[lane]
        return members

    def clear(self) -> list[Member]:
        """Remove and return all calls that wait."""
        members = [member for lane in self._lanes.values() for member in lane.waiting]
        for lane in self._lanes.values():
            lane.waiting.clear()
        return members


class SharedRequest:
    """Request of several calls. It takes the place of a call and of its collector.

    Args:
        members: calls of one lane.
    """

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = members
        request, first = Split.merged([member.split for member in members]), members[0].call
        self.call = Call[None](first.method, lambda _: [request], first.read)

    @property
    def timeout(self) -> float:
        """Seconds that the request may take: until the last deadline of its calls."""
        return max(0.0, *(member.deadline_s - time.monotonic() for member in self.members))

    def add(self, request: Request, reply: Any) -> None:
        """Give each call its part of the reply.

        Raises:
            ServerError: if the reply is invalid.
        """
        results = self.call.read(reply)
        if len(results) != request.num_inputs:
            raise ServerError(f"the server sent {len(results)} results for {request.num_inputs} inputs")
        start = 0
        for member in self.members:
            count = member.num_inputs
            part = slice(start, start + count)
            own = Request(request.message, 0, count)
            numbers = {name: getattr(reply, name, ())[part] for name in ("num_tokens", "num_truncated")}
            about = SimpleNamespace(model=reply.model, timings=getattr(reply, "timings", None), **numbers)
            member.replies.add_part(own, results[part], about)
            start += count
