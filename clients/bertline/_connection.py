"""Channels, and how requests are sent over them. Shared by Client and AsyncClient."""

from __future__ import annotations

import copy
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Literal, get_args

import grpc
import grpc.aio

from bertline._convert import Request
from bertline._inputs import check_space, check_target, read_flag, read_number, read_timeout
from bertline._protos import HEALTH, SERVING, HealthReply, HealthRequest
from bertline._spread import Spread
from bertline._status import FailedCall, client_error, timeout_error
from bertline.errors import BertlineError, ServerError, TimedOut
from bertline.v1 import encoder_pb2 as pb
from bertline.v1.encoder_pb2_grpc import EncoderStub

_RETRY_POLICY = {
    # A server that starts or drains (UNAVAILABLE), or has a full queue (RESOURCE_EXHAUSTED), has computed nothing; one
    # that has no memory for the reply has. gRPC cancels what arrives while a server stops (CANCELLED; a call that the
    # client itself cancels is not sent again). The next attempt goes to another replica, or waits a little.
    # `grpc-retry-pushback-ms` of the server overrides the backoff: a full queue states when it will have room, and -1
    # means never.
    "maxAttempts": 3,
    "initialBackoff": "0.05s",
    "maxBackoff": "0.2s",
    "backoffMultiplier": 3,
    "retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED", "CANCELLED"],
}
_SERVICE_CONFIG = {
    # Use all replicas that a name resolves to, not only the first that answers.
    "loadBalancingConfig": [{"round_robin": {}}],
    "methodConfig": [{"name": [{}], "retryPolicy": _RETRY_POLICY}],
    # Stop retrying while fewer than one attempt in three succeeds, of 50 or more: retries only burden an overloaded
    # server. Two draining replicas of three do not stop it. gRPC reads a ratio without a decimal point as almost 0.
    "retryThrottling": {"maxTokens": 100, "tokenRatio": 2.0},
}
_HEALTH_CONFIG = {"healthCheckConfig": {"serviceName": ""}}
KEEPALIVE_S = 30.0
"""Idle time after which a connection is pinged. Servers must allow this interval; Bertline's allow 25 s and more."""
KEEPALIVE_TIMEOUT_S = 10.0
"""Timeout of a ping. After it, the connection is closed and its calls fail."""
PLAIN_S = 30.0
"""Time without health checks after a server refused one."""
HEALTH_TIMEOUT_S, FIRST_HEALTH_TIMEOUT_S = 5.0, 0.5
"""Timeouts of the health check after a failed call; the second one applies until the server has replied once."""


def channel_options(*, check_health: bool) -> dict[str, Any]:
    """Return the options of a channel.

    Args:
        check_health: send no calls to a server that reports NOT_SERVING.
    """
    config = _SERVICE_CONFIG | (_HEALTH_CONFIG if check_health else {})
    return {
        "grpc.max_receive_message_length": -1,
        "grpc.service_config": json.dumps(config),
        "grpc.per_rpc_retry_buffer_size": 4 * 2**20,  # as large as a request may be by default
        # Give up an address that does not reply after 1 s, and try again at least every second: a server that comes up
        # is found, and a missing server is reported immediately.
        "grpc.min_reconnect_backoff_ms": 1000,
        "grpc.initial_reconnect_backoff_ms": 100,
        "grpc.max_reconnect_backoff_ms": 1000,
        # Longer than the time to connect. Else a name that is resolved again just after an address was given up would
        # have that address tried a second time.
        "grpc.dns_min_time_between_resolutions_ms": 2000,
        "grpc.dns_ares_query_timeout": 1500,
        "grpc.keepalive_time_ms": round(1000 * KEEPALIVE_S),
        "grpc.keepalive_timeout_ms": round(1000 * KEEPALIVE_TIMEOUT_S),
        "grpc.keepalive_permit_without_calls": 1,
        "grpc.http2.max_pings_without_data": 0,
        # Timeout of the pings that measure bandwidth. Keepalive pings wait until those are answered.
        "grpc.http2.ping_timeout_ms": round(1000 * KEEPALIVE_TIMEOUT_S),
    }


CLOSED = "the client was closed before the reply came"
"""Error message of calls that were under way when the client was closed."""
Priority = Literal["interactive", "bulk"]
_VECTOR_REQUESTS = pb.EmbedRequest, pb.EmbedSparseRequest, pb.EmbedTokensRequest
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")


@dataclass(frozen=True, kw_only=True)
class Connection:
    """Target, credentials and limits of a client. See `Client` for the fields."""

    target: str
    timeout: float
    batch_size: int
    num_in_flight: int
    credentials: grpc.ChannelCredentials | None
    token: str | None = field(repr=False)
    check_health: bool | None
    priority: Priority = "interactive"
    space: str | None = None

    def __post_init__(self) -> None:
        check_target(self.target)
        object.__setattr__(self, "timeout", read_timeout(self.timeout))
        if self.token is not None and not _TOKEN.fullmatch(self.token):
            raise ValueError("`token` must be letters, digits and -._~+/=, without spaces")
        for name in ("batch_size", "num_in_flight"):
            object.__setattr__(self, name, read_number(name, getattr(self, name)))
        read_flag("check_health", self.check_health)
        check_space(self.space)
        if self.priority not in get_args(Priority):
            raise ValueError(f"unknown priority: `{self.priority}` (one of: {', '.join(get_args(Priority))})")

    @property
    def checks_health(self) -> bool:
        """True if servers that report NOT_SERVING get no calls. gRPC sends health checks without token."""
        return self.token is None if self.check_health is None else self.check_health

    def open(self, library: Any, *, check_health: bool, more_options: Mapping[str, Any] | None = None) -> Any:
        """Open a channel.

        Args:
            library: `grpc` or `grpc.aio`.
            check_health: send no calls to a server that reports NOT_SERVING.
            more_options: channel options that override the common ones.
        """
        options = tuple({**channel_options(check_health=check_health), **(more_options or {})}.items())
        if self.credentials is None:
            return library.insecure_channel(self.target, options=options)
        return library.secure_channel(self.target, self.credentials, options=options)

    def spread(self, library: Any, *, check_health: bool) -> Spread:
        """Open channels to all processes of the server; arguments as in `open`."""

        def open_channel(is_own: bool) -> Any:
            own = {"grpc.use_local_subchannel_pool": 1} if is_own else {}
            return self.open(library, check_health=check_health, more_options=own)

        return Spread(open_channel, self.metadata)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Metadata of every request."""
        token = () if self.token is None else (("authorization", f"Bearer {self.token}"),)
        return token if self.priority == "interactive" else (*token, ("priority", self.priority))

    def own_error(self, error: Exception, timeout: float) -> Exception:
        """Return an error for one of the calls that waited together, as a traceback belongs to one task or thread.

        Args:
            error: error of a request, which had only the time that was left after the wait.
            timeout: timeout of the call, in seconds.
        """
        cause = error.__cause__
        own = timeout_error(self.target, timeout, cause) if isinstance(error, TimedOut) else copy.copy(error)
        own.__cause__ = cause
        return own

    def send(self, rpc: Any, request: Request, timeout: float) -> Any:
        """Start the RPC of a request; one for vectors names the client's space.

        Raises:
            ServerError: if the channel was closed.
        """
        if self.space and isinstance(request.message, _VECTOR_REQUESTS):
            request.message.model.space = self.space
        try:
            return rpc(request.message, timeout=timeout, metadata=self.metadata)
        except (ValueError, grpc.aio.UsageError) as error:
            raise ServerError(CLOSED) from error


class Stub(EncoderStub):
    """RPCs of a server by name; `Check` and `Watch` belong to the health service."""

    def __init__(self, channel: Any) -> None:
        super().__init__(channel)
        codec = {"request_serializer": HealthRequest.SerializeToString, "response_deserializer": HealthReply.FromString}
        self.Check = channel.unary_unary(f"{HEALTH}Check", **codec)
        self.Watch = channel.unary_stream(f"{HEALTH}Watch", **codec)


class Health(Enum):
    """Answer of a server to a health check."""

    SERVING = auto()
    NOT_SERVING = auto()
    REFUSED = auto()
    """Reachable, but refuses health checks, usually because they carry no token."""
    UNREACHABLE = auto()


def health_of_reply(reply: Any) -> Health:
    """Return the health in a HealthReply; None means that no reply came."""
    if reply is None:
        return Health.UNREACHABLE
    return Health.SERVING if reply.status == SERVING else Health.NOT_SERVING


def health_of_error(error: grpc.RpcError) -> Health:
    """Return the health that follows from the error of a health check."""
    is_absent = error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
    return Health.UNREACHABLE if is_absent else Health.REFUSED


class Stubs:
    """Channels of a client: one that checks the server's health, and a plain one.

    gRPC checks health by a separate stream. If the server refuses that stream, gRPC fails all calls with UNAVAILABLE,
    as if the server did not exist. `watch_health` finds out which it is.
    """

    def __init__(self, connection: Connection, library: Any) -> None:
        self._connection = connection
        self.channels = [connection.spread(library, check_health=False)]
        self._plain = self._checking = Stub(self.channels[0])
        if connection.checks_health:
            self.channels.append(connection.spread(library, check_health=True))
            self._checking = Stub(self.channels[1])
        self._plain_until = 0.0
        self.was_connected = False
        """True if a reply came."""

    @property
    def num_in_flight(self) -> int:
        """Maximum number of requests in flight: `num_in_flight` for each process of the server."""
        return self._connection.num_in_flight * max(channel.size for channel in self.channels)

    def is_checked(self, name: str) -> bool:
        """Return whether an RPC is sent with health checks now. Calls of the health service are not."""
        return self._checking is not self._plain and name != "Check" and time.monotonic() >= self._plain_until

    def method(self, name: str, *, is_checked: bool = False) -> Any:
        """Return an RPC, with health checks or without."""
        return getattr(self._checking if is_checked else self._plain, name)

    def watch_health(self, timeout: float) -> Any:
        """Ask for the server's health as gRPC does: by a stream, and without token.

        Raises:
            ServerError: if the channel was closed.
        """
        try:
            limit = HEALTH_TIMEOUT_S if self.was_connected else FIRST_HEALTH_TIMEOUT_S
            return self._plain.Watch(HealthRequest(), timeout=min(timeout, limit))
        except (ValueError, grpc.aio.UsageError) as error:
            raise ServerError(CLOSED) from error

    def give_up_health(self) -> None:
        """Send all calls without health checks for a while."""
        self._plain_until = time.monotonic() + PLAIN_S

    def error(
        self, error: grpc.RpcError, request: Request, timeout: float, health: Health | None = None
    ) -> BertlineError:
        """Return the client's error for a request that failed.

        Args:
            error: error of the RPC.
            request: request that failed.
            timeout: timeout of the request, in seconds.
            health: answer to a health check after the failure; None for no check.
        """
        call = FailedCall(
            target=self._connection.target,
            timeout=timeout,
            request=request,
            has_credentials=self._connection.credentials is not None,
            was_connected=self.was_connected or health is Health.SERVING,
            is_not_serving=health is Health.NOT_SERVING,
        )
        return client_error(error, call)
