"""TLS: certificates that are checked before use, and read again when their files change."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from serving.watched import TLS, Watched

MISMATCHES = {"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED"}
"""What OpenSSL says of a key that is not the certificate's, the last two where it is of another kind."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Files in PEM."""

    cert: Path
    """The server's certificate, and those that lead to its authority after it."""
    key: Path
    client_ca: Path | None = None
    """Authorities of clients: each must show a certificate of one of them. None: clients show none."""


def credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """What a server needs to speak TLS. Every handshake looks for changed files; connections that are open stay.

    Raises:
        ValueError: naming the file that is no use.
        OSError: when a file cannot be read.
    """
    paths = [path for path in (files.cert, files.key, files.client_ca) if path]
    configuration = Watched(TLS, paths, lambda: _read(files))
    return grpc.dynamic_ssl_server_credentials(
        configuration.current(), configuration.current, require_client_authentication=files.client_ca is not None
    )


def _read(files: TlsFiles) -> grpc.ServerCertificateConfiguration:
    _check(files)
    return grpc.ssl_server_certificate_configuration(
        [(files.key.read_bytes(), files.cert.read_bytes())],
        root_certificates=files.client_ca.read_bytes() if files.client_ca else None,
    )


def _check(files: TlsFiles) -> None:
    """Core's own check tells what is wrong in its log only."""
    for path in (files.cert, files.key):
        path.read_bytes()  # its error names the file, that of `load_cert_chain` does not
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(files.cert, files.key, password=_no_password)
    except ssl.SSLError as error:
        pair = f"the certificate `{files.cert}` and the key `{files.key}`"
        raise ValueError(f"no TLS with {pair}: {_reason(error)}") from error
    except EncryptedKeyError:
        raise ValueError(f"the key `{files.key}` is encrypted; give one without a password") from None
    if files.client_ca:
        files.client_ca.read_bytes()
        try:
            context.load_verify_locations(files.client_ca)
        except ssl.SSLError as error:
            raise ValueError(f"no certificates in PEM in `{files.client_ca}`") from error


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
