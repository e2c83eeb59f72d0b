"""TLS of the HTTP port: certificates and authorities are read again when their files change."""

from __future__ import annotations

import logging
import ssl

from serving.core.file_watcher import TLS, FileWatcher
from serving.core.tls_files import TlsFiles, check_files, pem_content

logger = logging.getLogger(__name__)


class TlsContext:
    """Context of TLS connections. After `refresh`, new connections use renewed files.

    Authorities cannot be taken out of a context, so each renewal makes a new one, and the first context hands every
    new connection to it.
    """

    def __init__(self, files: TlsFiles) -> None:
        """Read the files.

        Raises:
            ValueError: when a file cannot be used. The message names it.
            OSError: when a file cannot be read.
        """
        self._files = files
        self._watcher = FileWatcher(TLS, files.paths, self._read)
        self._in_use = self._watcher.current()
        self.context = self._renewed = _context(files)
        self.context.sni_callback = self._hand_over

    def _read(self) -> list[bytes]:
        check_files(self._files)
        return [pem_content(path) for path in self._files.paths]

    def _hand_over(self, connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, _: ssl.SSLContext) -> None:
        """Set the context of a new connection; OpenSSL calls this in every handshake, also without a server name."""
        connection.context = self._renewed

    def refresh(self) -> None:
        """Use renewed files for new connections."""
        if (current := self._watcher.current()) is self._in_use:
            return
        try:
            self._renewed = _context(self._files)
        except (OSError, ssl.SSLError) as error:  # replaced again; the next call tries again
            logger.warning("renewed certificates are not in use for HTTP: %s", error)
            return
        self._in_use = current
        logger.info("renewed certificates are in use for new HTTP connections")


def _context(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=files.client_ca)
    context.load_cert_chain(files.cert, files.key)
    if files.client_ca:
        context.verify_mode = ssl.CERT_REQUIRED
        context.num_tickets = 0  # a resumed connection would not be checked against renewed authorities
        context.options |= ssl.OP_NO_TICKET
    return context
