"""Bearer tokens: which calls may come in."""

from __future__ import annotations

import hashlib
import hmac
import re
from pathlib import Path

from serving.errors import UnauthenticatedError
from serving.watched import Watched

_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")
"""What RFC 6750 allows."""


class Tokens:
    """The tokens of a file, one a line, read again when it changes. Tokens appear in no message."""

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            ValueError: naming the line that is no token, or when there is none.
            OSError: when the file cannot be read.
        """
        self._digests = Watched([path], lambda: read_tokens(path))

    def client(self, authorization: str | None) -> str:
        """Who calls: the same for each call with the same token, and another for every other token.

        Every token is compared, and each in constant time, so that the time tells nothing.

        Args:
            authorization: the metadata of that name, `Bearer TOKEN`.

        Raises:
            UnauthenticatedError: when it holds none of the tokens.
        """
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise UnauthenticatedError("no token came; send the metadata `authorization: Bearer TOKEN`")
        digest = _digest(token.strip())
        if not sum([hmac.compare_digest(digest, known) for known in self._digests.current()]):
            raise UnauthenticatedError("the token that came is none of this server's")
        return digest.hex()


def read_tokens(path: Path) -> list[bytes]:
    """SHA-256 of each token of a file; empty lines and those that begin with `#` are left out.

    Raises:
        ValueError: naming the line that is no token, or when there is none.
        OSError: when the file cannot be read.
    """
    try:
        lines = [line.strip() for line in path.read_text("utf-8").splitlines()]
    except UnicodeDecodeError:
        raise ValueError(f"`{path}` is not UTF-8; it has a token a line") from None
    digests = []
    for number, line in enumerate(lines, start=1):
        if not line or line.startswith("#"):
            continue
        if not _TOKEN.fullmatch(line):
            raise ValueError(f"`{path}`, line {number}: a token is of letters, digits and -._~+/=, without spaces")
        digests.append(_digest(line))
    if not digests:
        raise ValueError(f"`{path}` holds no token; write one a line (`openssl rand -hex 32` makes one)")
    return digests


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
