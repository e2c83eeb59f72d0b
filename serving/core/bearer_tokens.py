"""Bearer tokens: which calls may come in."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from pathlib import Path

from serving.core.errors import UnauthenticatedError
from serving.core.file_watcher import MAX_FILE_BYTES, TOKENS, Watched
from tasks.regular import read_regular
from tasks.text_streams import wide_encoding

MAX_CHARS = 4096
"""Characters of the longest token; a longer one is refused without being compared."""

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
        self._digests = Watched(TOKENS, [path], lambda: read_tokens(path))

    def client(self, authorizations: Sequence[str]) -> str:
        """Return a name of the caller: the same for each call with the same token, another for every other token.

        Every token is compared, and each in constant time, so that the time tells nothing.

        Args:
            authorizations: all metadata of that name; there must be one, `Bearer TOKEN`.

        Raises:
            UnauthenticatedError: when it holds none of the tokens, or when several came: a proxy that checks one of
                them and passes on all would be deceived.
        """
        if len(authorizations) > 1:
            raise UnauthenticatedError(f"{len(authorizations)} `authorization` came; send one")
        scheme, _, token = next(iter(authorizations), "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise UnauthenticatedError("no token came; send the metadata `authorization: Bearer TOKEN`")
        if len(token) > MAX_CHARS:
            raise UnauthenticatedError(f"a token of {len(token)} characters came; none has more than {MAX_CHARS}")
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
    lines = [line.strip() for line in _text(path).splitlines()]
    digests = []
    for number, line in enumerate(lines, start=1):
        if not line or line.startswith("#"):
            continue
        if not _TOKEN.fullmatch(line):
            raise ValueError(f"`{path}`, line {number}: a token is of letters, digits and -._~+/=, without spaces")
        if len(line) > MAX_CHARS:
            raise ValueError(f"`{path}`, line {number}: a token has at most {MAX_CHARS} characters, not {len(line)}")
        digests.append(_digest(line))
    if not digests:
        raise ValueError(f"`{path}` holds no token; write one a line (`openssl rand -hex 32` makes one)")
    return digests


def _text(path: Path) -> str:
    data = read_regular(path, MAX_FILE_BYTES)
    if encoding := wide_encoding(data) or ("UTF-16" if b"\0" in data else ""):
        raise ValueError(f"`{path}` is {encoding}, as some editors of Windows write it; save it as UTF-8")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"`{path}` is not UTF-8; it has a token a line") from None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
