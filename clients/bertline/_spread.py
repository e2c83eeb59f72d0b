"""Channels to a server that has several processes: one to each. A call takes the channel with the fewest calls.

The system gives a new connection to any of the processes, and replies say to which (metadata `bertline-process`). So
connections are tried in the background until each process, of at most 64, has one, or 8 tries for each are used up.
Shared by Client and AsyncClient.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
from threading import Lock
from typing import Any

import grpc
import grpc.aio

from bertline._protos import HEALTH, HealthRequest

PROCESS = "bertline-process"
"""Metadata of replies: an id of the server, the number of the process, and the number of processes."""
MAX_PROCESSES = 64
"""Maximum number of channels."""
TRIES = 8
"""Connections to try for each process."""
TRY_S = 5.0
"""Maximum seconds of a try."""
CHECK_S = 5.0
"""Seconds between replies of a channel that are asked for their process, which may have been replaced."""


class Route:
    """A channel, and the process that it leads to."""

    def __init__(self, channel: Any) -> None:
        self.channel = channel
        self.methods: dict[str, Any] = {}
        """RPCs by path."""
        self.num_calls = 0
        """Calls under way."""
        self.server, self.number = "", ""
        """Id of the server, empty if it is not known, and number of the process."""
        self.check_s = 0.0
        """Monotonic time from which a reply is asked for its process."""

    def method(self, path: str, codec: dict[str, Any]) -> Any:
        """Return an RPC of the channel."""
        if path not in self.methods:
            self.methods[path] = self.channel.unary_unary(path, **codec)
        return self.methods[path]

    @property
    def is_due(self) -> bool:
        """True if the next reply should be asked for its process."""
        return time.monotonic() >= self.check_s

    def read(self, metadata: Any) -> int:
        """Note which process sent some metadata, and return the number of processes; 0 if it does not say."""
        self.check_s = time.monotonic() + CHECK_S
        for key, value in metadata or ():
            if key == PROCESS:
                self.server, self.number, count = value.split("/")
                return min(int(count), MAX_PROCESSES)
        return 0


class Spread:
    """Channels that look like one to a stub."""

    def __init__(self, open_channel: Callable[[bool], Any], metadata: Any) -> None:
        """Open the first channel.

        Args:
            open_channel: opens a channel; with True, one that shares no connection.
            metadata: metadata of the calls that try a connection.
        """
        self._open_channel, self._metadata = open_channel, metadata
        self._routes = [Route(open_channel(False))]
        self._is_async = isinstance(self._routes[0].channel, grpc.aio.Channel)
        self._count = 1
        """Number of processes of the server."""
        self._tries = 0
        """Connections that may still be tried."""
        self._left: set[str] = set()
        """Servers that a channel has left. If it returns to one, the target has several, and gRPC spreads the calls."""
        self._is_trying = self._is_closed = False
        self._lock = Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def size(self) -> int:
        """Number of channels."""
        return len(self._routes)

    def unary_unary(self, path: str, **codec: Any) -> Any:
        """Return an RPC by its path, as a channel does."""
        return (_AsyncMethod if self._is_async else _Method)(self, path, codec)

    def unary_stream(self, path: str, **codec: Any) -> Any:
        """Return an RPC of one of the channels."""
        return self._routes[0].channel.unary_stream(path, **codec)

    def close(self) -> Any:
        """Close all channels; those of grpc.aio when the result is awaited."""
        self._is_closed = True
        closing = [route.channel.close() for route in self._routes]
        return asyncio.gather(*closing) if self._is_async else None

    def take(self) -> Route:
        """Return the channel with the fewest calls, of equal ones the one that waited longest; count a call of it."""
        with self._lock:
            route = min(self._routes, key=lambda item: item.num_calls)
            route.num_calls += 1
            if len(self._routes) > 1:
                self._routes.remove(route)
                self._routes.append(route)
            return route

    def give_back(self, route: Route) -> None:
        """Count a call of a channel as ended."""
        with self._lock:
            route.num_calls -= 1
            is_over = not route.num_calls and route not in self._routes
        if is_over:
            self._close(route)

    def learn(self, route: Route, metadata: Any) -> None:
        """Note which process a channel leads to, from the metadata of a reply, and see to channels for all of them."""
        before = route.server, route.number
        if not (count := route.read(metadata)):
            return
        with self._lock:
            if before != (route.server, route.number):
                self._left |= {before[0]} - {"", route.server}
                self._tries = TRIES * count
            self._count = 1 if route.server in self._left else count
            is_second = self._count > 1 and route in self._routes and self._has_other(route)
            if is_second:
                self._routes.remove(route)
        if is_second and not route.num_calls:  # else its last call closes it
            self._close(route)
        self._try_another()

    def _has_other(self, route: Route) -> bool:
        """Return whether another channel leads to the same process."""
        return any(
            (each.server, each.number) == (route.server, route.number) for each in self._routes if each is not route
        )

    def _try_another(self) -> None:
        """Try another connection in the background if a process has none."""
        with self._lock:
            if self._is_trying or self._is_closed or not self._tries or len(self._routes) >= self._count:
                return
            self._is_trying, self._tries = True, self._tries - 1
        route = Route(self._open_channel(True))
        check = route.channel.unary_unary(f"{HEALTH}Check", request_serializer=HealthRequest.SerializeToString)
        if self._is_async:
            self.tell(check(HealthRequest(), timeout=TRY_S, metadata=self._metadata), partial(self._tried, route))
        else:
            call = check.future(HealthRequest(), timeout=TRY_S, metadata=self._metadata)
            call.add_done_callback(lambda ended: self._tried(route, ended.trailing_metadata()))

    def _tried(self, route: Route, metadata: Any) -> None:
        """Keep a channel that leads to a process without one."""
        has_reply = bool(route.read(metadata))
        with self._lock:
            self._is_trying = False
            is_kept = has_reply and not self._is_closed and not self._has_other(route)
            if is_kept:
                self._routes.append(route)
        if not is_kept:
            self._close(route)
        self._try_another()

    def tell(self, call: Any, receive: Callable[[Any], None]) -> None:
        """Pass on the metadata of a reply when it has come; of grpc.aio."""

        async def wait() -> None:
            receive(await call.trailing_metadata())

        self._start(wait())

    def _close(self, route: Route) -> None:
        closing = route.channel.close()
        if self._is_async:
            self._start(closing)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # asyncio itself keeps no reference
        task.add_done_callback(self._tasks.discard)


class _Method:
    """RPC of the channel with the fewest calls."""

    def __init__(self, spread: Spread, path: str, codec: dict[str, Any]) -> None:
        self._spread, self._path, self._codec = spread, path, codec

    def __call__(self, message: Any, **options: Any) -> Any:
        """Send a message and return the reply."""
        route = self._spread.take()
        rpc = route.method(self._path, self._codec)
        try:
            if not route.is_due:
                return rpc(message, **options)
            reply, call = rpc.with_call(message, **options)
            self._spread.learn(route, call.trailing_metadata())
            return reply
        except grpc.RpcError as error:
            self._spread.learn(route, error.trailing_metadata())  # type: ignore[attr-defined]
            raise
        finally:
            self._spread.give_back(route)

    def future(self, message: Any, **options: Any) -> Any:
        """Send a message and return the call, which is a future of the reply."""
        route = self._spread.take()
        try:
            call = route.method(self._path, self._codec).future(message, **options)
        except ValueError:
            self._spread.give_back(route)
            raise
        call.add_done_callback(partial(self._end, route))
        return call

    def _end(self, route: Route, call: Any) -> None:
        if route.is_due:
            self._spread.learn(route, call.trailing_metadata())
        self._spread.give_back(route)


class _AsyncMethod(_Method):
    """The same, of grpc.aio."""

    def __call__(self, message: Any, **options: Any) -> Any:
        """Send a message and return the call, which is awaited for the reply."""
        route = self._spread.take()
        try:
            call = route.method(self._path, self._codec)(message, **options)
        except grpc.aio.UsageError:
            self._spread.give_back(route)
            raise
        call.add_done_callback(partial(self._end, route))
        return call

    def _end(self, route: Route, call: Any) -> None:
        if route.is_due and not call.cancelled():
            route.check_s = time.monotonic() + CHECK_S
            self._spread.tell(call, partial(self._spread.learn, route))
        self._spread.give_back(route)
