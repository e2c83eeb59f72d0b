"""Where a client connects to and how it sends; shared by Client and AsyncClient."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc

from bertline._convert import Request
from bertline._status import client_error
from bertline.errors import BertlineError

_SERVICE_CONFIG = {
    # All replicas that a name stands for are used, not the first that answers.
    "loadBalancingConfig": [{"round_robin": {}}],
    # A server that starts or drains has computed nothing: the next attempt goes to another replica, or waits a little.
    "methodConfig": [
        {
            "name": [{}],
            "retryPolicy": {
                "maxAttempts": 3,
                "initialBackoff": "0.05s",
                "maxBackoff": "0.2s",
                "backoffMultiplier": 3,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ],
}
_CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.service_config", json.dumps(_SERVICE_CONFIG)),
    ("grpc.per_rpc_retry_buffer_size", 4 * 2**20),  # as large as a request may be by default
    # Give up an address that does not reply after 1 s, and try again at least every second: a server that comes up
    # is found, and one that is not there is reported at once.
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.dns_min_time_between_resolutions_ms", 1000),
    ("grpc.dns_ares_query_timeout", 1500),
)

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

    def __post_init__(self) -> None:
        if not self.target or self.target.startswith(("http://", "https://")):
            raise ValueError(f"a target is `host:port`, without `http://`: `{self.target}`")
        if not 0 < self.timeout < math.inf:
            raise ValueError(f"`timeout` must be above 0 seconds, and finite: `{self.timeout}`")
        if self.token is not None and not _TOKEN.fullmatch(self.token):
            raise ValueError("`token` must be letters, digits and -._~+/=, without spaces")
        for name in ("batch_size", "num_in_flight"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1: `{getattr(self, name)}`")

    def open(self, channels: Any, more_options: Sequence[tuple[str, Any]] = ()) -> Any:
        """Open a channel.

        Args:
            channels: `grpc` or `grpc.aio`.
            more_options: of the channel, beside those that all have.
        """
        options = (*_CHANNEL_OPTIONS, *more_options)
        if self.credentials is None:
            return channels.insecure_channel(self.target, options=options)
        return channels.secure_channel(self.target, self.credentials, options=options)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What goes with every request."""
        return () if self.token is None else (("authorization", f"Bearer {self.token}"),)

    def error(self, error: grpc.RpcError, request: Request, timeout: float) -> BertlineError:
        """The error of ours for a request that failed."""
        return client_error(
            error, target=self.target, timeout=timeout, first=request.first, num_inputs=request.num_inputs
        )
