"""Listening: addresses, gRPC channel options, and TLS certificates, which are read again when their files change."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, suppress
from functools import partial
from typing import Any

import grpc

from serving.core import credentials
from serving.core.calls import connection_name
from serving.core.credentials import TLS, FileWatcher, TlsFiles, check_files, pem_content
from serving.core.errors import lower_first
from serving.grpc_api.connections import open_connections
from serving.grpc_api.receiving import WINDOW_BYTES
from serving.process.descriptors import max_connections, open_file_limit
from serving.settings import Settings

MAX_OPTION = 2**31 - 1
"""Largest value of an option of gRPC."""
PAGE_BACKLOG = 128
MIN_BURST = 4096
"""Minimum number of calls of all connections that may wait for the event loop, each with WINDOW_BYTES of its message.
Above it gRPC cancels calls of any connection, so a single connection must not reach it."""
MAX_STREAMS = 512
"""Maximum number of concurrent calls of a connection, about 12 KB and up to WINDOW_BYTES each. Further calls wait in
the client (HTTP/2). Up to as many cancelled calls may take memory as well."""
HANDSHAKE_S = 20.0
"""Maximum seconds until a new connection has completed its TLS handshake, or has begun HTTP/2."""
MIN_PING_S = 25.0
"""Minimum seconds between pings of a client. Clients may ping every 30 s; the margin allows for early pings."""
CONNECT_S = 5.0
HOLD_S = 2.0
"""Seconds that a handshake is held open: longer than a thread of a busy machine takes to use the certificates that it
asked for."""

MAX_CONNECTIONS, ACCEPT_S = 1000, 0.02
"""Maximum number of connections to try until one is accepted by this process, and seconds that accepting one takes."""

Connect = Callable[[], AbstractAsyncContextManager[asyncio.StreamReader]]

logger = logging.getLogger(__name__)


class Certificates:
    """Certificates of a server, read again when their files change.

    gRPC asks for new certificates at each handshake. It replaces the old ones without a reference count: another
    handshake that is about to use them would crash the process. So new certificates are handed over only once, and only
    while our own handshake keeps the old ones in memory.
    """

    def __init__(self, files: TlsFiles) -> None:
        """Read the files.

        Raises:
            ValueError: when a file cannot be used. The message names it.
            OSError: when a file cannot be read.
        """
        self._watcher = FileWatcher(TLS, files.paths, lambda: _read(files))
        self._in_use = self._watcher.current()
        self._new: grpc.ServerCertificateConfiguration | None = None
        """New certificates for the next handshake."""
        self._is_mutual = files.client_ca is not None

    def credentials(self) -> grpc.ServerCredentials:
        """Return the credentials of a gRPC server."""
        return grpc.dynamic_ssl_server_credentials(
            self._in_use, self._take_new, require_client_authentication=self._is_mutual
        )

    def _take_new(self) -> grpc.ServerCertificateConfiguration | None:
        """Return the new certificates once, then None; gRPC's threads call this one after another."""
        new, self._new = self._new, None
        return new

    async def watch(self, host: str, port: int, *, is_shared: bool = False) -> None:
        """Hand changed certificates over to gRPC; runs until cancelled.

        Args:
            host: address that the server listens on.
            port: port that the server listens on.
            is_shared: other processes listen on it, too.
        """
        last_error = ""
        while True:
            await asyncio.sleep(credentials.CHECK_S)
            current = self._watcher.current()
            if current is self._in_use:
                continue
            try:
                await self._hand_over(current, partial(_connection, host, port, is_shared=is_shared))
                last_error = ""
            except Exception as error:  # the next iteration tries again
                if str(error) != last_error:
                    last_error = str(error)
                    logger.error("renewed certificates are not in use: the server cannot connect to itself: %s", error)

    async def _hand_over(self, current: grpc.ServerCertificateConfiguration, connect: Connect) -> None:
        async with connect() as holding:
            await asyncio.sleep(HOLD_S)  # until its handshake has begun
            if holding.at_eof() or holding.exception():
                raise ConnectionError("it closes new connections; perhaps --max-connections is reached")
            self._new = current
            try:
                async with connect():
                    await asyncio.sleep(HOLD_S)  # until handshakes that began before have used the old ones
                if self._new:
                    raise ConnectionError("no handshake began; perhaps --max-connections is reached")
            finally:
                self._new = None  # `holding` does not keep the old ones in memory any longer
            self._in_use = current
        logger.info("renewed certificates are in use for new connections")


@asynccontextmanager
async def _connection(host: str, port: int, *, is_shared: bool) -> AsyncIterator[asyncio.StreamReader]:
    """Connect to this process by an address that it listens on; the connection ends with the block."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    for _ in range(MAX_CONNECTIONS):
        try:
            async with asyncio.timeout(CONNECT_S):
                reader, writer = await asyncio.open_connection(host, port)
        except TimeoutError:
            raise ConnectionError(f"no connection within {CONNECT_S:g} s") from None
        with closing(writer):
            if not is_shared or await _is_own(writer.get_extra_info("sockname")):
                yield reader
                return
    raise ConnectionError("other processes take all connections")


async def _is_own(name: tuple[Any, ...]) -> bool:
    """Return whether this process has accepted a connection; `name` is the address of its other end."""
    await asyncio.sleep(ACCEPT_S)
    peers = await asyncio.to_thread(lambda: [peer for peer, _ in open_connections()])
    return connection_name(*name[:2]) in peers


def _read(files: TlsFiles) -> grpc.ServerCertificateConfiguration:
    check_files(files)  # gRPC reports their errors only in the log of its core
    return grpc.ssl_server_certificate_configuration(
        [(pem_content(files.key), pem_content(files.cert))],
        root_certificates=pem_content(files.client_ca) if files.client_ca else None,
    )


def listen(
    server: grpc.aio.Server, settings: Settings, certificates: Certificates | None, *, is_shared: bool = False
) -> int:
    """Add the server's port, with TLS if there are certificates.

    Args:
        is_shared: other processes listen on it, too.

    Returns:
        The port.

    Raises:
        OSError: when the address is not available.
    """
    if not is_shared:
        check_free(settings.host, settings.port)
    address = f"{url_host(settings.host)}:{settings.port}"
    try:
        if not certificates:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, certificates.credentials())
    except RuntimeError as error:  # taken since the check
        raise OSError(f"cannot listen on `{address}`: {error}") from error


def page_socket(host: str, port: int, *, is_shared: bool = False) -> socket.socket:
    """Return a socket that listens on the metrics port.

    Args:
        is_shared: other processes listen on it, too.

    Raises:
        OSError: when the address is not available.
    """
    if not is_shared:
        check_free(host, port, "--metrics-port")
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return socket.create_server(address[:2], family=family, backlog=PAGE_BACKLOG, reuse_port=is_shared)


def warn_of_plain_text(settings: Settings) -> None:
    """Log a warning if the server listens without TLS on an address that other machines can reach."""
    if settings.tls_cert or is_loopback(settings.host):
        return
    exposed = "texts and tokens" if settings.tokens_file else "texts"
    logger.warning(
        "listening on `%s` without TLS: %s can be read on the network; set --tls-cert and --tls-key, or use a trusted "
        "network only",
        settings.host,
        exposed,
    )


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def channel_options(settings: Settings, *, is_shared: bool = False) -> Iterator[tuple[str, int]]:
    """Yield the options of the gRPC server.

    Args:
        is_shared: other processes listen on its port, too.
    """
    yield "grpc.so_reuseport", int(is_shared)  # otherwise a second server shares a busy port silently
    # Larger than --max-request-bytes: messages that gRPC itself refuses appear in no log and no metric.
    yield "grpc.max_receive_message_length", max_message_bytes(settings)
    # Otherwise the flow-control windows of fast senders grow to megabytes a stream.
    yield "grpc.http2.bdp_probe", 0
    yield "grpc.http2.lookahead_bytes", WINDOW_BYTES
    yield "grpc.server_handshake_timeout_ms", _ms(HANDSHAKE_S)
    yield "grpc.max_send_message_length", -1
    burst = min(max(MIN_BURST, settings.buffer_bytes // WINDOW_BYTES), MAX_OPTION)
    yield "grpc.server.max_pending_requests", burst
    yield "grpc.server.max_pending_requests_hard_limit", burst
    yield "grpc.max_concurrent_streams", MAX_STREAMS
    # Otherwise a client that starts a call right after a reply may get UNAVAILABLE: the memory of the old call may not
    # be free yet.
    yield "grpc.http2.max_deallocating_streams", MAX_STREAMS
    # Further connections are closed: without free descriptors, metrics and models could not be read.
    max_open = min(settings.max_connections, max_connections(open_file_limit()))
    num_addresses = 1  # gRPC listens on each, and counts the connections of each separately
    with suppress(OSError, UnicodeError):
        num_addresses = len(socket.getaddrinfo(settings.host, None, type=socket.SOCK_STREAM))
    yield "grpc.max_allowed_incoming_connections", max(1, max_open // num_addresses)
    yield "grpc.keepalive_permit_without_calls", 1
    yield "grpc.http2.min_ping_interval_without_data_ms", _ms(MIN_PING_S)
    yield "grpc.keepalive_time_ms", _ms(settings.keepalive_time_s)
    yield "grpc.keepalive_timeout_ms", _ms(settings.keepalive_timeout_s)
    # Timeout of gRPC's measuring pings: no keepalive ping is sent until they are answered.
    yield "grpc.http2.ping_timeout_ms", _ms(settings.keepalive_timeout_s)
    if settings.max_connection_age_s is not None:
        yield "grpc.max_connection_age_ms", _ms(settings.max_connection_age_s)
        yield "grpc.max_connection_age_grace_ms", _ms(settings.max_connection_grace_s)


def max_message_bytes(settings: Settings) -> int:
    """Return gRPC's own limit of a message in bytes."""
    return min(2 * settings.max_request_bytes, MAX_OPTION)


def check_free(host: str, port: int, flag: str = "--port") -> None:
    """Check that a port is free: gRPC reports a busy port only in the log of its core.

    Raises:
        OSError: when the port is taken, or no address of the host belongs to this machine.
    """
    try:
        targets = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        errors = [error for target in targets if (error := _listen_error(*target))]
        if len(errors) == len(targets) or any(error.errno == errno.EADDRINUSE for error in errors):
            raise errors[-1]
    except UnicodeError:
        raise OSError(f"cannot listen on `{host}`: not a valid host name; choose another host") from None
    except OSError as error:
        address, reason = f"{url_host(host)}:{port}", lower_first(error.strerror or str(error))
        remedy = f"choose another host or {flag} (0 takes any)"
        raise OSError(f"cannot listen on `{address}`: {reason}; {remedy}") from None


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
    """Return a host as part of an address: IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


def _ms(seconds: float) -> int:
    return min(max(1, round(seconds * 1000)), MAX_OPTION)
