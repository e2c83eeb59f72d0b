"""What servers may ask for, as the options before a command's name say it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from bertline.client import Client
from bertline.jobs.spec import Access

_access = Access()


def set_access(token: str | None, tls_ca: str | None, tls_cert: str | None, tls_key: str | None) -> None:
    """What servers ask for, from now on."""
    global _access
    for name, path in (("--tls-ca", tls_ca), ("--tls-cert", tls_cert), ("--tls-key", tls_key)):
        if path == "":  # without it no TLS would be spoken
            raise typer.BadParameter(f"{name} is empty; name a file, or leave it out")
    if (tls_cert is None) != (tls_key is None):
        raise typer.BadParameter("--tls-cert and --tls-key need each other")
    if tls_cert and not tls_ca:
        raise typer.BadParameter("--tls-cert needs --tls-ca")
    _access = Access(token, tls_ca, tls_cert, tls_key)


def access() -> Access:
    """What servers ask for."""
    return _access


@contextmanager
def connect(target: str, timeout: float) -> Iterator[Client]:
    """A client; wrong values are the fault of the command line."""
    try:
        client = Client(target, timeout=timeout, credentials=_access.credentials(), token=_access.token)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    with client:
        yield client
