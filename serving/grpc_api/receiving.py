"""Receiving of messages: a bounded number at a time, alternately by connection, each message within a time limit.

gRPC buffers 32 KiB of a message before a handler reads it, and the whole message once it reads. So only a few calls
read at the same time. A small message arrives immediately. A message that is not complete within QUICK_S is large or
slow; the memory limits the number of such messages. If there are more, the connection with most of them loses one.

Calls that find no free place wait. Connections whose messages arrived promptly go first, then unknown connections, then
slow ones (`_Priority`). Otherwise calls that begin but never send a message would block all others.

Example: an attacker opens 100 connections with one call each, and sends no message. A user sends a query from a new
connection.

1. Eight calls of the attacker take the MAX_QUICK places. The other 92 calls and the query wait; all are UNKNOWN.
2. After QUICK_S, the eight calls count as slow and free their places; their connections are SLOW from now on. The next
   eight calls get in. The query goes after 11 to 12 such rounds, in about 0.3 s.
3. The query arrives within QUICK_S, so its connection is PROMPT. Its next query goes before all calls of the attacker.
4. Memory allows 16 slow messages here. With 24, eight are aborted: the newest ones, as each connection has only one. If
   one connection had several, its oldest ones would be aborted first.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NoReturn

import grpc

from serving.core.codec_pool import RoundRobinQueue
from serving.core.errors import RETRY_S, NoMessageError, ReceivingError, drop_tracebacks
from serving.grpc_api.status import abort

WINDOW_BYTES = 32 * 1024
"""Bytes of a message that gRPC buffers before a handler reads it."""
QUICK_S = 0.025
"""Seconds after which a message counts as slow: it is large, or its connection is slow."""
MAX_QUICK = 8
"""Maximum number of quick messages at the same time: those that have been read for less than QUICK_S."""
MIN_SLOW = 4
"""Minimum number of slow messages at the same time, however little memory there is."""
MIN_WAITING = 2048
"""Minimum number of calls that may wait for their turn, so that a burst fits."""
PATIENCE_S = 2.0
"""Seconds after which a slow message is aborted if others wait."""
GONE_S = 1.0
"""Seconds before a call without a message is refused. Most such calls were cancelled; the handler learns it later."""
SLOW_S = 60.0
"""Seconds for which a connection counts as slow."""
MAX_KNOWN = 8192
"""Maximum number of connections whose speed is remembered, the most recent ones."""


class _Priority(IntEnum):
    """Priority of a connection: how fast its messages arrived. Smaller values go first."""

    PROMPT = 0
    UNKNOWN = 1
    SLOW = 2


PRIORITY_CYCLE = (_Priority.PROMPT, _Priority.UNKNOWN, _Priority.PROMPT, _Priority.SLOW)
"""Priority that goes first in each turn; the others follow in their order. Each goes first in some turns, so that none
waits forever."""


@dataclass(slots=True, eq=False)
class _Reader:
    """Call whose message is being read."""

    connection: str
    context: Any
    started_s: float
    aborted: asyncio.Future[NoReturn] | None = None
    """Task that aborts the call. gRPC expects the handler to raise its error."""


class Receiver:
    """Receives the messages of all calls. Lives in one event loop."""

    def __init__(
        self,
        num_bytes: int,
        max_message_bytes: int,
        limit_s: float,
        refused: Callable[[Exception], None],
    ) -> None:
        """Set the limits.

        Args:
            num_bytes: bytes of memory for slow messages.
            max_message_bytes: gRPC's own limit of a message, in bytes.
            limit_s: maximum seconds to receive a message.
            refused: called with the error of each message that is aborted.
        """
        self._refused = refused
        self._aborting: set[asyncio.Future[NoReturn]] = set()
        self._max_slow = max(MIN_SLOW, num_bytes // max_message_bytes)
        self._max_of_connection = self._max_slow // 2
        self._max_waiting = max(MIN_WAITING, num_bytes // WINDOW_BYTES)
        self._limit_s = limit_s
        self._quick: dict[_Reader, None] = {}
        self._slow: dict[_Reader, None] = {}
        self._num_quick = 0
        """Quick messages that may be read: those in `_quick`, and those about to be added to it."""
        self._num_reading: defaultdict[str, int] = defaultdict(int)
        """Quick and slow messages by connection."""
        self._slow_s: OrderedDict[str, float] = OrderedDict()
        """Time at which each known connection was last slow; -inf if it has been prompt since."""
        self._waiting: dict[_Priority, RoundRobinQueue[asyncio.Future[None]]] = {
            priority: RoundRobinQueue() for priority in _Priority
        }
        self._num_turns = 0
        self._timer: asyncio.TimerHandle | None = None
        self._was_postponed = False
        """True if the last check was postponed."""
        self._next_check_s = 0.0
        """Time of the next check."""

    async def message(self, connection: str, context: Any) -> bytes:
        """Return the message of a call.

        Raises:
            ReceivingError: when there is no memory for it, or it does not arrive in time.
            NoMessageError: when the client ends its side without a message.
        """
        message = await self._read(connection, context)
        if message is grpc.aio.EOF:
            await asyncio.sleep(GONE_S)
            raise NoMessageError("the call has no message; send one")
        return message  # type: ignore[no-any-return]

    async def messages(self, connection: str, context: Any) -> AsyncIterator[bytes]:
        """Yield the messages of a call until the client ends its side."""
        while (message := await self._read(connection, context)) is not grpc.aio.EOF:
            yield message

    async def _read(self, connection: str, context: Any) -> Any:
        if self._may_read(connection):
            self._count_quick(connection)
        else:
            await self._wait_for_turn(connection)
        reader = _Reader(connection, context, time.monotonic())
        self._quick[reader] = None
        if not self._timer:
            self._check_later()
        try:
            message = await uncancelled(context.read())
            is_prompt = reader in self._quick and message is not grpc.aio.EOF
            if is_prompt and self._priority(connection) is not _Priority.SLOW:
                self._record_speed(connection, -math.inf)
            if reader.aborted:  # just before the message arrived
                await asyncio.wait([reader.aborted])
                reader.aborted.result()
            return message
        finally:
            if reader in self._quick:
                del self._quick[reader]
                self._num_quick -= 1
            else:
                del self._slow[reader]
            self._leave(connection)

    def _may_read(self, connection: str) -> bool:
        return self._num_quick < MAX_QUICK and self._num_reading.get(connection, 0) < self._max_of_connection

    def _count_quick(self, connection: str) -> None:
        self._num_quick += 1
        self._num_reading[connection] += 1

    async def _wait_for_turn(self, connection: str) -> None:
        """Wait until a connection may read another message, and count it as quick."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[self._priority(connection)].put(connection, turn)
        if self._num_waiting > self._max_waiting:
            dropped = next(turns for turns in reversed(self._waiting.values()) if turns).take_back()
            if not dropped.done():
                dropped.set_exception(ReceivingError("too many calls wait to be received; try later", retry_s=RETRY_S))
        try:
            await turn
        except asyncio.CancelledError:
            for turns in self._waiting.values():
                turns.discard(connection, turn)
            if not turn.cancelled() and not turn.exception():
                self._num_quick -= 1
                self._leave(connection)
            raise

    def _leave(self, connection: str) -> None:
        """Record that a message of a connection has arrived or was aborted, and let others read."""
        self._num_reading[connection] -= 1
        if not self._num_reading[connection]:
            del self._num_reading[connection]
        if any(self._waiting.values()):
            self._wake_waiting()

    def _wake_waiting(self) -> None:
        while self._num_quick < MAX_QUICK and (turn := self._next_turn()):
            if not turn[1].done():
                self._count_quick(turn[0])
                turn[1].set_result(None)

    def _next_turn(self) -> tuple[str, asyncio.Future[None]] | None:
        """Take the next waiting call that may read; None if there is none."""
        first = PRIORITY_CYCLE[self._num_turns % len(PRIORITY_CYCLE)]
        for priority in (first, *_Priority):
            while turn := self._waiting[priority].take(self._may_read):
                if (now := self._priority(turn[0])) <= priority:
                    self._num_turns += 1
                    return turn
                self._waiting[now].put(*turn)  # its priority fell while it waited
                if now is first:
                    return self._next_turn()
        return None

    @property
    def _num_waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def _priority(self, connection: str) -> _Priority:
        slow_s = self._slow_s.get(connection)
        if slow_s == -math.inf:
            return _Priority.PROMPT
        return _Priority.UNKNOWN if slow_s is None or time.monotonic() >= slow_s + SLOW_S else _Priority.SLOW

    def _record_speed(self, connection: str, slow_s: float) -> None:
        self._slow_s[connection] = slow_s
        self._slow_s.move_to_end(connection)
        if len(self._slow_s) > MAX_KNOWN:
            self._slow_s.popitem(last=False)

    def _check_later(self) -> None:
        self._next_check_s = time.monotonic() + QUICK_S
        self._timer = asyncio.get_running_loop().call_later(QUICK_S, self._check)

    def _check(self) -> None:
        """Count messages that take longer than QUICK_S as slow. Abort slow ones that are too many or take too long."""
        now = time.monotonic()
        if now > self._next_check_s + QUICK_S and not self._was_postponed:  # the loop was blocked; reads may have ended
            self._was_postponed = True
            self._check_later()
            return
        self._was_postponed = False
        for reader in [item for item in self._quick if now - item.started_s >= QUICK_S]:
            del self._quick[reader]
            self._num_quick -= 1
            self._slow[reader] = None
            self._record_speed(reader.connection, now)
        receiving = [item for item in self._slow if not item.aborted]
        while len(receiving) > self._max_slow:
            reader = self._choose_victim(receiving, now)
            receiving.remove(reader)
            self._abort_reader(
                reader, ReceivingError("too many messages arrive at the same time; try later", retry_s=RETRY_S)
            )
        for reader in self._head_of_line_blockers(receiving, now):
            self._abort_reader(reader, ReceivingError("the message arrives too slowly; try later", retry_s=RETRY_S))
        for reader in [item for item in receiving if now - item.started_s >= self._limit_s]:
            self._abort_reader(
                reader,
                ReceivingError(f"the message did not arrive within {self._limit_s:g} s; send fewer inputs per call"),
            )
        self._wake_waiting()
        self._timer = None
        if self._quick or self._slow or self._num_waiting:
            self._check_later()

    def _choose_victim(self, receiving: list[_Reader], now: float) -> _Reader:
        """Return the slow message to abort: the oldest one of the connection with most of them.

        If each connection has one: the oldest of all if it has taken PATIENCE_S, else the newest.
        """
        connection, count = Counter(item.connection for item in receiving).most_common(1)[0]
        if count > 1:
            return next(item for item in receiving if item.connection == connection)
        return receiving[0] if now - receiving[0].started_s >= PATIENCE_S else receiving[-1]

    def _head_of_line_blockers(self, receiving: list[_Reader], now: float) -> list[_Reader]:
        """Return the slow messages that block other calls of their connection: the oldest of each, after PATIENCE_S."""
        oldest: dict[str, _Reader] = {}
        for reader in receiving:
            oldest.setdefault(reader.connection, reader)
        waiting = [name for turns in self._waiting.values() for name in turns.callers()]
        blocked = [name for name in waiting if self._num_reading.get(name, 0) >= self._max_of_connection]
        return [oldest[name] for name in blocked if name in oldest and now - oldest[name].started_s >= PATIENCE_S]

    def _abort_reader(self, reader: _Reader, error: Exception) -> None:
        """Abort the call, so that its read raises.

        If the read were cancelled instead, gRPC would leak the memory of the message (grpc/grpc issue 43360).
        """
        if not reader.aborted:
            self._refused(error)
            reader.aborted = aborted = asyncio.ensure_future(abort(reader.context, error))
            self._aborting.add(aborted)

            def ended(aborted: asyncio.Future[NoReturn]) -> None:
                self._aborting.discard(aborted)
                if not aborted.cancelled():
                    drop_tracebacks(aborted.exception())

            aborted.add_done_callback(ended)


async def uncancelled(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Await a coroutine that awaits asyncio futures. If this is cancelled, the coroutine still runs to its end.

    If a task is cancelled while it awaits a batch of gRPC operations, gRPC leaks the memory of the batch: some hundred
    bytes, and the message that it may bring (grpc/grpc issue 43360). Clients can cancel as many calls as they like. A
    separate task for each read would avoid the leak, too, but costs more.
    """
    loop = asyncio.get_running_loop()
    try:
        while True:
            future = coroutine.send(None)
            future._asyncio_future_blocking = False  # as a task does with the future that it awaits
            waiter: asyncio.Future[None] = loop.create_future()
            future.add_done_callback(lambda _, waiter=waiter: waiter.done() or waiter.set_result(None))
            try:
                await waiter
            except asyncio.CancelledError:
                future.add_done_callback(lambda _: _finish(coroutine))
                raise
    except StopIteration as done:
        return done.value


def _finish(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Resume a coroutine whose result nobody needs. gRPC's reads await only one future."""
    with suppress(Exception):
        coroutine.send(None)
    coroutine.close()
