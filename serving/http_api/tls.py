"""TLS of the HTTP port: the certificate is read again when its files change."""

from __future__ import annotations

import logging
import ssl

from serving.core.file_watcher import TLS, FileWatcher
from serving.core.tls_files import TlsFiles, check_files, pem_content

logger = logging.getLogger(__name__)


class TlsContext:
    """Context of TLS connections. A renewed certificate is used after `refresh`; renewed authorities need a restart."""

    def __init__(self, files: TlsFiles) -> None:
        """Read the files.

        Raises:
            ValueError: when a file cannot be used. The message names it.
            OSError: when a file cannot be read.
        """
        self._files = files
        self._watcher = FileWatcher(TLS, [files.cert, files.key], self._read)
        self._in_use = self._watcher.current()
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=files.client_ca)
        if files.client_ca:
            self.context.verify_mode = ssl.CERT_REQUIRED
        self.context.load_cert_chain(files.cert, files.key)

    def _read(self) -> tuple[bytes, bytes]:
        check_files(self._files)
        return pem_content(self._files.cert), pem_content(self._files.key)

    def refresh(self) -> None:
        """Use a renewed certificate for new connections."""
        if (current := self._watcher.current()) is self._in_use:
            return
        try:
            self.context.load_cert_chain(self._files.cert, self._files.key)
        except (OSError, ssl.SSLError) as error:  # replaced again; the next call tries again
            logger.warning("renewed certificates are not in use for HTTP: %s", error)
            return
        self._in_use = current
        logger.info("renewed certificates are in use for new HTTP connections")
