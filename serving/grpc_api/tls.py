"""TLS: certificates that are checked before use, and read again when their files change."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from serving.core import file_watcher as watched
from serving.core.file_watcher import MAX_FILE_BYTES, TLS, Watched
from tasks.regular import read_regular

logger = logging.getLogger(__name__)

CONNECT_S = 5.0
HOLD_S = 2.0
"""Longer than a thread may take from asking for certificates to using them, on a machine that is very busy."""

MISMATCHES = {"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED"}
"""What OpenSSL says of a key that is not the certificate's, the last two where it is of another kind."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Files in PEM."""

    cert: Path
    """The server's certificate, followed by those that lead to its authority."""
    key: Path
    client_ca: Path | None = None
    """Authorities of clients: each must show a certificate of one of them. None: clients show none."""


class Certificates:
    """What a server needs to speak TLS, read again when its files change.

    gRPC asks at each handshake whether there are new certificates. While one handshake replaces the old ones, another
    one may be about to use them; gRPC keeps no count of that, and the process crashes. So certificates are handed over
    only when they are new, and only while a handshake of our own is under way, which keeps the old ones in memory.
    """

    def __init__(self, files: TlsFiles) -> None:
        """Read the files.

        Raises:
            ValueError: naming the file that is no use.
            OSError: when a file cannot be read.
        """
        paths = [path for path in (files.cert, files.key, files.client_ca) if path]
        self._watched = Watched(TLS, paths, lambda: _read(files))
        self._in_use = self._watched.current()
        self._new: grpc.ServerCertificateConfiguration | None = None
        """To be handed over at the next handshake."""
        self._is_mutual = files.client_ca is not None

    def credentials(self) -> grpc.ServerCredentials:
        """Return the credentials of a gRPC server."""
        return grpc.dynamic_ssl_server_credentials(
            self._in_use, self._take_new, require_client_authentication=self._is_mutual
        )

    def _take_new(self) -> grpc.ServerCertificateConfiguration | None:
        """Return the certificates if they are new since the last handshake; gRPC's threads ask one after the other."""
        new, self._new = self._new, None
        return new

    async def watch(self, host: str, port: int) -> None:
        """Use the new content of the files soon after they change.

        Args:
            host, port: where the server listens.
        """
        complaint = ""
        while True:
            await asyncio.sleep(watched.CHECK_S)
            current = self._watched.current()
            if current is self._in_use:
                continue
            try:
                await self._hand_over(current, host, port)
                complaint = ""
            except Exception as error:  # it is tried again
                if str(error) != complaint:
                    complaint = str(error)
                    logger.error("renewed certificates are not used, as the server cannot reach itself: %s", error)

    async def _hand_over(self, current: grpc.ServerCertificateConfiguration, host: str, port: int) -> None:
        with await _connected(host, port) as holding:
            await asyncio.sleep(HOLD_S)  # its handshake has begun by then
            if _is_closed(holding):
                raise ConnectionError("it closes new connections, perhaps as there are --max-connections")
            self._new = current
            try:
                with await _connected(host, port):
                    await asyncio.sleep(HOLD_S)  # whoever was about to use the old ones does so by then
                if self._new:
                    raise ConnectionError("no handshake began, perhaps as there are --max-connections")
            finally:
                self._new = None  # `holding` will not keep the old ones in memory much longer
            self._in_use = current
        logger.info("renewed certificates are used for new connections")


async def _connected(host: str, port: int) -> socket.socket:
    """A connection to a server that listens on a host of this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return await asyncio.to_thread(socket.create_connection, (host, port), CONNECT_S)


def _is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return not connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False


def _read(files: TlsFiles) -> grpc.ServerCertificateConfiguration:
    _check(files)
    return grpc.ssl_server_certificate_configuration(
        [(_content(files.key), _content(files.cert))],
        root_certificates=_content(files.client_ca) if files.client_ca else None,
    )


def _check(files: TlsFiles) -> None:
    """Check the files: gRPC's core says what is wrong only in its log."""
    for path in (files.cert, files.key):
        _content(path)  # its error names the file, that of `load_cert_chain` does not
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(files.cert, files.key, password=_no_password)
    except ssl.SSLError as error:
        pair = f"the certificate `{files.cert}` and the key `{files.key}`"
        raise ValueError(f"no TLS with {pair}: {_reason(error)}") from error
    except EncryptedKeyError:
        raise ValueError(f"the key `{files.key}` is encrypted; give one without a password") from None
    if files.client_ca:
        _content(files.client_ca)
        try:
            context.load_verify_locations(files.client_ca)
        except ssl.SSLError as error:
            raise ValueError(f"no certificates in PEM in `{files.client_ca}`") from error


def _content(path: Path) -> bytes:
    return read_regular(path, MAX_FILE_BYTES)


def _reason(error: ssl.SSLError) -> str:
    if error.reason in MISMATCHES:
        return "they do not belong together"
    if error.reason is None or error.library == "PEM":
        return "one of them is not PEM"
    return f"OpenSSL refuses them, {error.reason.replace('_', ' ').lower()}"


class EncryptedKeyError(Exception):
    """A key asks for a password."""


def _no_password() -> str:
    raise EncryptedKeyError
