"""PEM files of TLS: checked before use, with errors that name the file."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from serving.core.file_watcher import MAX_FILE_BYTES
from tasks.regular import read_regular

MISMATCHES = {"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED"}
"""OpenSSL's reasons if key and certificate do not match; the last two if the key is of another type."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of the server."""

    cert: Path
    """Certificate of the server, followed by its chain."""
    key: Path
    client_ca: Path | None = None
    """Certificate authorities of clients: each client must present a certificate of one of them (mutual TLS). None: no
    client certificates."""

    @property
    def paths(self) -> list[Path]:
        """All files."""
        return [path for path in (self.cert, self.key, self.client_ca) if path]


def check_files(files: TlsFiles) -> None:
    """Check that the files can be used together.

    Raises:
        ValueError: naming the file that cannot be used, or the two that do not match.
        OSError: when a file cannot be read.
    """
    for path in (files.cert, files.key):
        pem_content(path)  # its error names the file; that of `load_cert_chain` does not
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(files.cert, files.key, password=_no_password)
    except ssl.SSLError as error:
        pair = f"the certificate `{files.cert}` and the key `{files.key}`"
        raise ValueError(f"cannot use {pair}: {_reason(error)}") from error
    except EncryptedKeyError:
        raise ValueError(f"the key `{files.key}` is encrypted; use a key without a password") from None
    if files.client_ca:
        pem_content(files.client_ca)
        try:
            context.load_verify_locations(files.client_ca)
        except ssl.SSLError as error:
            raise ValueError(f"`{files.client_ca}` holds no PEM certificates") from error


def pem_content(path: Path) -> bytes:
    """Return the content of a PEM file."""
    return read_regular(path, MAX_FILE_BYTES)


def _reason(error: ssl.SSLError) -> str:
    if error.reason in MISMATCHES:
        return "they do not match"
    if error.reason is None or error.library == "PEM":
        return "one of them is not a PEM file"
    return f"OpenSSL refuses them: {error.reason.replace('_', ' ').lower()}"


class EncryptedKeyError(Exception):
    """Private key that needs a password."""


def _no_password() -> str:
    raise EncryptedKeyError
