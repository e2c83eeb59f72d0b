"""Token and TLS options, which stand before the name of a command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from bertline.client import Client
from bertline.jobs.spec import Credentials

_credentials = Credentials()


def set_credentials(token: str | None, tls_ca: str | None, tls_cert: str | None, tls_key: str | None) -> None:
    """Set the credentials of the process.

    Raises:
        typer.BadParameter: when an option lacks another one that it needs.
    """
    global _credentials
    if (tls_cert is None) != (tls_key is None):
        raise typer.BadParameter("--tls-cert and --tls-key need each other")
    if tls_cert and not tls_ca:
        raise typer.BadParameter("--tls-cert needs --tls-ca")
    _credentials = Credentials(token, tls_ca, tls_cert, tls_key)


def credentials() -> Credentials:
    """Return the credentials of the process."""
    return _credentials


@contextmanager
def connect(target: str, timeout: float) -> Iterator[Client]:
    """Connect to a server.

    Raises:
        typer.BadParameter: when target, timeout or token cannot be used.
    """
    try:
        client = Client(target, timeout=timeout, credentials=_credentials.for_channel(), token=_credentials.token)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    with client:
        yield client
