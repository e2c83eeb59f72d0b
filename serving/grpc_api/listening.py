"""How the server listens: address, TLS, and options of its connections."""

from __future__ import annotations

import errno
import ipaddress
import logging
import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import grpc

from serving.grpc_api.receiving import WINDOW_BYTES
from serving.grpc_api.tls import Certificates
from serving.process.descriptors import limit, max_connections
from serving.settings import Settings

MIN_BURST = 4096
"""Calls of all connections that may at least wait for the event loop, each with WINDOW_BYTES of its message. Where more
come, gRPC cancels some, whoever sent them: so a connection must not fill this."""
MAX_STREAMS = 512
"""Calls that a connection may have under way, some 12 KB and up to WINDOW_BYTES each. What comes beyond them waits at
the client, as HTTP/2 has it. As many more may be left of calls that it has cancelled."""
HANDSHAKE_S = 20.0
"""Seconds within which a connection must have done its TLS handshake, or begun to speak HTTP/2."""
MIN_PING_S = 25.0
"""Clients may ping every 30 s, with or without calls; the rest is for pings that come a little early."""

logger = logging.getLogger(__name__)


def listen(server: grpc.aio.Server, settings: Settings, certificates: Certificates | None) -> int:
    """Let a server listen, with TLS where there are certificates. Returns the port.

    Raises:
        OSError: when the address cannot be had.
    """
    check_free(settings.host, settings.port)
    address = f"{url_host(settings.host)}:{settings.port}"
    try:
        if certificates:
            return server.add_secure_port(address, certificates.credentials())
        return server.add_insecure_port(address)
    except RuntimeError as error:  # someone took it since the check
        raise OSError(f"cannot listen on `{address}`: {error}") from error


def warn_of_plain_text(settings: Settings) -> None:
    """One line in the log where others may read along."""
    if settings.tls_cert or is_loopback(settings.host):
        return
    what = "texts and tokens" if settings.tokens_file else "texts"
    logger.warning(
        "listening on %s without TLS: %s can be read on the way; set --tls-cert and --tls-key, or keep to a network "
        "that you trust",
        settings.host,
        what,
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def channel_options(settings: Settings) -> Iterator[tuple[str, int]]:
    """Options of a gRPC server."""
    yield "grpc.so_reuseport", 0  # else a second server would share a busy port in silence
    # What gRPC itself refuses reaches no handler, and so no log and no metric: what is a little too large is our own.
    yield "grpc.max_receive_message_length", max_message_bytes(settings)
    # Else the windows of connections that send fast grow to megabytes for each stream.
    yield "grpc.http2.bdp_probe", 0
    yield "grpc.http2.lookahead_bytes", WINDOW_BYTES
    yield "grpc.server_handshake_timeout_ms", _ms(HANDSHAKE_S)
    yield "grpc.max_send_message_length", -1
    burst = max(MIN_BURST, settings.buffer_bytes // WINDOW_BYTES)
    yield "grpc.server.max_pending_requests", burst
    yield "grpc.server.max_pending_requests_hard_limit", burst
    yield "grpc.max_concurrent_streams", MAX_STREAMS
    # Else a client that has the reply of a call, and begins another, is refused it where memory of the old one is not
    # free yet: it sees UNAVAILABLE.
    yield "grpc.http2.max_deallocating_streams", MAX_STREAMS
    # Further ones are closed: without descriptors nobody could read metrics or models, and clients would wait in vain.
    most = min(settings.max_connections, max_connections(limit()))
    yield "grpc.max_allowed_incoming_connections", max(1, most // _num_addresses(settings.host))
    yield "grpc.keepalive_permit_without_calls", 1
    yield "grpc.http2.min_ping_interval_without_data_ms", _ms(MIN_PING_S)
    yield "grpc.keepalive_time_ms", _ms(settings.keepalive_time_s)
    yield "grpc.keepalive_timeout_ms", _ms(settings.keepalive_timeout_s)
    # For the pings that measure the connection, after which none is sent to keep it alive until they are answered.
    yield "grpc.http2.ping_timeout_ms", _ms(settings.keepalive_timeout_s)
    if settings.max_connection_age_s is not None:
        yield "grpc.max_connection_age_ms", _ms(settings.max_connection_age_s)
        yield "grpc.max_connection_age_grace_ms", _ms(settings.max_connection_grace_s)


def max_message_bytes(settings: Settings) -> int:
    """gRPC's own limit of a message."""
    return min(2 * settings.max_request_bytes, 2**31 - 1)


def _num_addresses(host: str) -> int:
    """How many addresses a host has: gRPC listens on each, and counts the connections of each alone."""
    try:
        return len(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError):
        return 1


def check_free(host: str, port: int) -> None:
    """Raise an error when a port is busy: gRPC says so only in the log of its core.

    Raises:
        OSError: naming the address, when it is taken, or when none of what the host resolves to is ours.
    """
    try:
        targets = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        errors = [error for target in targets if (error := _listen_error(*target))]
        if len(errors) == len(targets) or any(error.errno == errno.EADDRINUSE for error in errors):
            raise errors[-1]
    except UnicodeError:
        raise OSError(f"cannot listen on `{host}`: no name of a host; choose another host") from None
    except OSError as error:
        address, reason = f"{url_host(host)}:{port}", (error.strerror or str(error)).lower()
        raise OSError(f"cannot listen on `{address}`: {reason}; choose another host or port (0 takes any)") from None


def _listen_error(family: int, kind: int, protocol: int, _: str, address: Any) -> OSError | None:
    try:
        with closing(socket.socket(family, kind, protocol)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
    except OSError as error:
        return error
    return None


def url_host(host: str) -> str:
    """A host as it stands in an address: IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))
