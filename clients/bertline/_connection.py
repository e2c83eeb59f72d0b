"""Where a client connects to and how it sends; shared by Client and AsyncClient."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import grpc
import grpc.aio

from bertline._convert import Request
from bertline._inputs import read_flag, read_number, read_timeout
from bertline._protos import HEALTH, HealthReply, HealthRequest
from bertline._status import client_error
from bertline._target import check_target
from bertline.errors import BertlineError, ServerError
from bertline.v1.encoder_pb2_grpc import EncoderStub

_RETRY_POLICY = {
    # A server that starts or drains (UNAVAILABLE), or whose queue is full (RESOURCE_EXHAUSTED), has computed nothing:
    # the next attempt goes to another replica, or waits a little. `grpc-retry-pushback-ms` of the server goes before
    # the backoff: a full queue says when there will be room, and -1 stands for what it will never take.
    "maxAttempts": 3,
    "initialBackoff": "0.05s",
    "maxBackoff": "0.2s",
    "backoffMultiplier": 3,
    "retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED"],
}
_SERVICE_CONFIG = {
    # All replicas that a name stands for are used, not the first that answers.
    "loadBalancingConfig": [{"round_robin": {}}],
    "methodConfig": [{"name": [{}], "retryPolicy": _RETRY_POLICY}],
    # Nothing is sent again while fewer than one attempt in three succeeds, of 50 or more: an overloaded server would
    # only get more to refuse. Two replicas of three that drain are not enough for that. A ratio without a decimal point
    # is read as next to nothing by gRPC.
    "retryThrottling": {"maxTokens": 100, "tokenRatio": 2.0},
}
_HEALTH_CONFIG = {"healthCheckConfig": {"serviceName": ""}}
KEEPALIVE_S = 30.0
"""A connection that is silent for so long is pinged. Servers must allow it: those of Bertline do, down to 25 s."""
KEEPALIVE_TIMEOUT_S = 10.0
"""A connection on which nothing comes back for so long is given up, and its calls fail."""
PLAIN_S = 30.0
"""A server that answered a call but did not tell of its health is asked for it again after so long."""


def channel_options(*, check_health: bool) -> dict[str, Any]:
    """Options of a channel. With `check_health`, a server that says it does not serve gets no calls."""
    config = _SERVICE_CONFIG | (_HEALTH_CONFIG if check_health else {})
    return {
        "grpc.max_receive_message_length": -1,
        "grpc.service_config": json.dumps(config),
        "grpc.per_rpc_retry_buffer_size": 4 * 2**20,  # as large as a request may be by default
        # Give up an address that does not reply after 1 s, and try again at least every second: a server that comes up
        # is found, and one that is not there is reported at once.
        "grpc.min_reconnect_backoff_ms": 1000,
        "grpc.initial_reconnect_backoff_ms": 100,
        "grpc.max_reconnect_backoff_ms": 1000,
        # Above the time to connect: a name resolved anew just when an address was given up has it tried a second time.
        "grpc.dns_min_time_between_resolutions_ms": 2000,
        "grpc.dns_ares_query_timeout": 1500,
        "grpc.keepalive_time_ms": round(1000 * KEEPALIVE_S),
        "grpc.keepalive_timeout_ms": round(1000 * KEEPALIVE_TIMEOUT_S),
        "grpc.keepalive_permit_without_calls": 1,
        "grpc.http2.max_pings_without_data": 0,
        # For the pings that measure the connection, after which none is sent to keep it alive until they are answered.
        "grpc.http2.ping_timeout_ms": round(1000 * KEEPALIVE_TIMEOUT_S),
    }


CLOSED = "the client was closed before the reply came"
"""Of calls that were under way then; one that begins later is a mistake of the caller."""
Priority = Literal["interactive", "bulk"]
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")


@dataclass(frozen=True, kw_only=True)
class Connection:
    """A target and the limits of what is sent to it. See `Client` for the fields."""

    target: str
    timeout: float
    batch_size: int
    num_in_flight: int
    credentials: grpc.ChannelCredentials | None
    token: str | None = field(repr=False)
    check_health: bool | None
    priority: Priority = "interactive"

    def __post_init__(self) -> None:
        check_target(self.target)
        read_timeout(self.timeout)
        if self.token is not None and not _TOKEN.fullmatch(self.token):
            raise ValueError("`token` must be letters, digits and -._~+/=, without spaces")
        read_number("batch_size", self.batch_size)
        read_number("num_in_flight", self.num_in_flight)
        read_flag("check_health", self.check_health)
        if self.priority not in get_args(Priority):
            raise ValueError(f"unknown priority: `{self.priority}` (one of: {', '.join(get_args(Priority))})")

    @property
    def checks_health(self) -> bool:
        """Whether servers that say they do not serve get no calls. gRPC asks them without the token."""
        return self.token is None if self.check_health is None else self.check_health

    def open(self, library: Any, *, check_health: bool, more_options: Mapping[str, Any] | None = None) -> Any:
        """Open a channel.

        Args:
            library: `grpc` or `grpc.aio`.
            more_options: of the channel, instead of or beside those that all have.
        """
        options = tuple({**channel_options(check_health=check_health), **(more_options or {})}.items())
        if self.credentials is None:
            return library.insecure_channel(self.target, options=options)
        return library.secure_channel(self.target, self.credentials, options=options)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What goes with every request."""
        token = () if self.token is None else (("authorization", f"Bearer {self.token}"),)
        return token if self.priority == "interactive" else (*token, ("priority", self.priority))

    def send(self, rpc: Any, request: Request, timeout: float) -> Any:
        """Begin the RPC of a request.

        Raises:
            ServerError: when the channel was closed.
        """
        try:
            return rpc(request.message, timeout=timeout, metadata=self.metadata)
        except (ValueError, grpc.aio.UsageError) as error:
            raise ServerError(CLOSED) from error

    def error(self, error: grpc.RpcError, request: Request, timeout: float) -> BertlineError:
        """The error of ours for a request that failed."""
        return client_error(
            error, target=self.target, timeout=timeout, first=request.first, num_inputs=request.num_inputs
        )


class Stub(EncoderStub):
    """The methods of a server, by their names; `Check` is that of the health service."""

    def __init__(self, channel: Any) -> None:
        super().__init__(channel)
        self.Check = channel.unary_unary(
            f"{HEALTH}Check",
            request_serializer=HealthRequest.SerializeToString,
            response_deserializer=HealthReply.FromString,
        )


class Stubs:
    """The channels of a client, and what is sent through which."""

    def __init__(self, connection: Connection, library: Any) -> None:
        self.channels = [connection.open(library, check_health=False)]
        self._plain = self._checking = Stub(self.channels[0])
        """`_plain` asks servers whatever they say of their health; `_checking` does not, where that is wanted."""
        if connection.checks_health:
            self.channels.append(connection.open(library, check_health=True))
            self._checking = Stub(self.channels[1])
        self._plain_until = 0.0

    def method(self, name: str, *, plain: bool = False) -> Any:
        """An RPC. The health service is always asked plainly, as a server that does not serve answers it, too."""
        plain = plain or name == "Check" or time.monotonic() < self._plain_until
        return getattr(self._plain if plain else self._checking, name)

    def give_up_health(self) -> None:
        """Send everything plainly for a while: the server answers calls, but does not tell of its health."""
        self._plain_until = time.monotonic() + PLAIN_S
