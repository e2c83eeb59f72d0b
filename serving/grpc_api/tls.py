"""TLS certificates: checked before use, and read again when their files change."""

from __future__ import annotations

import asyncio
import logging
import socket

import grpc

from serving.core import file_watcher
from serving.core.file_watcher import TLS, FileWatcher
from serving.core.tls_files import TlsFiles, check_files, pem_content

logger = logging.getLogger(__name__)

CONNECT_S = 5.0
HOLD_S = 2.0
"""Seconds that a handshake is held open: longer than a thread of a busy machine takes to use the certificates that it
asked for."""


class Certificates:
    """Certificates of a server, read again when their files change.

    gRPC asks for new certificates at each handshake. It replaces the old ones without a reference count: another
    handshake that is about to use them would crash the process. So new certificates are handed over only once, and only
    while a handshake of our own keeps the old ones in memory.
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

    async def watch(self, host: str, port: int) -> None:
        """Hand changed certificates over to gRPC; runs until cancelled.

        Args:
            host: address that the server listens on.
            port: port that the server listens on.
        """
        last_error = ""
        while True:
            await asyncio.sleep(file_watcher.CHECK_S)
            current = self._watcher.current()
            if current is self._in_use:
                continue
            try:
                await self._hand_over(current, host, port)
                last_error = ""
            except Exception as error:  # the next iteration tries again
                if str(error) != last_error:
                    last_error = str(error)
                    logger.error("renewed certificates are not in use: the server cannot connect to itself: %s", error)

    async def _hand_over(self, current: grpc.ServerCertificateConfiguration, host: str, port: int) -> None:
        with await _connect(host, port) as holding:
            await asyncio.sleep(HOLD_S)  # until its handshake has begun
            if _is_closed(holding):
                raise ConnectionError("it closes new connections; perhaps --max-connections is reached")
            self._new = current
            try:
                with await _connect(host, port):
                    await asyncio.sleep(HOLD_S)  # until handshakes that began before have used the old ones
                if self._new:
                    raise ConnectionError("no handshake began; perhaps --max-connections is reached")
            finally:
                self._new = None  # `holding` does not keep the old ones in memory any longer
            self._in_use = current
        logger.info("renewed certificates are in use for new connections")


async def _connect(host: str, port: int) -> socket.socket:
    """Connect to a server that listens on an address of this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return await asyncio.to_thread(socket.create_connection, (host, port), CONNECT_S)


def _is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return not connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False


def _read(files: TlsFiles) -> grpc.ServerCertificateConfiguration:
    check_files(files)  # gRPC reports their errors only in the log of its core
    return grpc.ssl_server_certificate_configuration(
        [(pem_content(files.key), pem_content(files.cert))],
        root_certificates=pem_content(files.client_ca) if files.client_ca else None,
    )
