"""Bearer tokens: authentication of calls."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from pathlib import Path

from serving.core.errors import UnauthenticatedError
from serving.core.file_watcher import MAX_FILE_BYTES, TOKENS, FileWatcher
from tasks.regular import read_regular

MAX_CHARS = 4096
"""Maximum length of a token; longer ones are refused without a comparison."""

_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")
"""Syntax of a token (RFC 6750, section 2.1)."""


class BearerTokens:
    """Tokens of a file, one a line, read again when it changes. No error message contains a token."""

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            ValueError: when a line is not a token, or there is no token. The message names the line.
            OSError: when the file cannot be read.
        """
        self._digests = FileWatcher(TOKENS, [path], lambda: read_tokens(path))

    def client(self, authorizations: Sequence[str]) -> str:
        """Check the token of a call; return an id of the caller, which is different for each token.

        Compares with every token, each in constant time, so that the duration reveals nothing.

        Args:
            authorizations: all values of the metadata `authorization`; there must be exactly one, `Bearer TOKEN`.

        Raises:
            UnauthenticatedError: when the token is missing or unknown, or there are several values: a proxy may have
                checked another one than the server would.
        """
        if len(authorizations) > 1:
            raise UnauthenticatedError(
                f"the call has {len(authorizations)} `authorization` entries in its metadata; send one"
            )
        scheme, _, token = next(iter(authorizations), "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise UnauthenticatedError("the call has no token; send `authorization: Bearer TOKEN`")
        if len(token) > MAX_CHARS:
            raise UnauthenticatedError(f"the token has {len(token)} characters; the maximum is {MAX_CHARS}")
        digest = _digest(token.strip())
        if not sum([hmac.compare_digest(digest, known) for known in self._digests.current()]):
            raise UnauthenticatedError("this server does not know the token; check it")
        return digest.hex()


def read_tokens(path: Path) -> list[bytes]:
    """Return the SHA-256 of each token of a file; skips empty lines and lines that begin with `#`.

    Raises:
        ValueError: when a line is not a token, or there is no token. The message names the line.
        OSError: when the file cannot be read.
    """
    lines = [line.strip() for line in _text(path).splitlines()]
    digests = []
    for number, line in enumerate(lines, start=1):
        if not line or line.startswith("#"):
            continue
        if not _TOKEN.fullmatch(line):
            raise ValueError(
                f"`{path}`, line {number}: a token consists of letters, digits and -._~+/=, without spaces"
            )
        if len(line) > MAX_CHARS:
            raise ValueError(
                f"`{path}`, line {number}: the token has {len(line)} characters; the maximum is {MAX_CHARS}"
            )
        digests.append(_digest(line))
    if not digests:
        raise ValueError(f"`{path}` holds no token; write one on each line (`openssl rand -hex 32` makes one)")
    return digests


def _text(path: Path) -> str:
    data = read_regular(path, MAX_FILE_BYTES)
    if b"\0" in data:
        raise ValueError(f"`{path}` is UTF-16, as some Windows editors write it; save it as UTF-8")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"`{path}` is not UTF-8 text; write one token on each line") from None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
