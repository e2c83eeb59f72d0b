"""Credentials in files that may be replaced while the server runs: bearer tokens, and certificates of TLS."""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from serving.core.errors import UnauthenticatedError, error_line
from tasks.text.json_files import read_regular

logger = logging.getLogger(__name__)

T = TypeVar("T")

TLS, TOKENS = "tls", "tokens"
KINDS = (TLS, TOKENS)
_Signature = tuple[int, int, int, int] | None

MAX_FILE_BYTES = 2**20
"""Maximum size of a file of tokens or certificates."""
CHECK_S = 1.0
"""Seconds between checks of the files."""
HUNG_S = 10.0
"""Seconds after which a check counts as failed: the storage hangs."""
MAX_CHARS = 4096
"""Maximum length of a token; longer ones are refused without a comparison."""
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")
"""Syntax of a token (RFC 6750, section 2.1)."""
MISMATCHES = {"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED"}
"""OpenSSL's reasons if key and certificate do not match; the last two if the key is of another type."""


class FileWatcher(Generic[T]):
    """Value that is read from files, and again when they change. A separate thread reads, since storage may hang."""

    def __init__(self, kind: str, paths: Sequence[Path], read: Callable[[], T]) -> None:
        """Read the files and start the thread.

        Args:
            kind: one of KINDS; a label of the metrics.
            paths: the files.
            read: reads the files; raises ValueError or OSError if they cannot be used.

        Raises:
            ValueError, OSError: as `read` does.
        """
        self.kind = kind
        self._paths = paths
        self._read = read
        self._seen: list[_Signature] | None = self._signature()
        """Signatures of the files that were read last; None after a read error, so that the next check tries again."""
        self._error = ""
        self._value = read()
        self._checked_s = time.monotonic()
        _all.add(self)
        threading.Thread(target=_watch, args=(weakref.ref(self),), name="file-watcher", daemon=True).start()

    @property
    def is_failing(self) -> bool:
        """True if the present files cannot be used or their storage does not answer."""
        return bool(self._error) or time.monotonic() > self._checked_s + CHECK_S + HUNG_S

    def current(self) -> T:
        """Return the last value that could be read."""
        return self._value

    def check(self) -> None:
        """Read the files again if they changed; log an error if they cannot be used."""
        if (signature := self._signature()) != self._seen:
            self._seen = signature
            try:
                self._value = self._read()
                self._error = ""
                logger.info("reloaded after a change: %s", ", ".join(map(str, self._paths)))
            except Exception as error:
                if isinstance(error, OSError):
                    self._seen = None
                if (message := error_line(error)) != self._error:  # later checks repeat it
                    logger.error("cannot reload, the content read before stays in use: %s", message)
                    self._error = message
        self._checked_s = time.monotonic()

    def _signature(self) -> list[_Signature]:
        return [_signature(path) for path in self._paths]


_all: WeakSet[FileWatcher[Any]] = WeakSet()


def _watch(reference: weakref.ref[FileWatcher[Any]]) -> None:
    """Check the files every CHECK_S seconds until the watcher is garbage collected."""
    time.sleep(CHECK_S)
    while watcher := reference():
        watcher.check()
        del watcher
        time.sleep(CHECK_S)


def failing() -> dict[str, bool]:
    """Return for each kind of watched files whether some of them cannot be used."""
    kinds = {watcher.kind for watcher in list(_all) if watcher.is_failing}
    return {kind: kind in kinds for kind in KINDS}


def _signature(path: Path) -> _Signature:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


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
    data = read_regular(path, MAX_FILE_BYTES)
    if b"\0" in data:
        raise ValueError(f"`{path}` is UTF-16, as some Windows editors write it; save it as UTF-8")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"`{path}` is not UTF-8 text; write one token on each line") from None
    digests = []
    for number, line in enumerate(map(str.strip, text.splitlines()), start=1):
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


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


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

    def refuse_password() -> str:
        raise ValueError(f"the key `{files.key}` is encrypted; use a key without a password")

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(files.cert, files.key, password=refuse_password)
    except ssl.SSLError as error:
        pair = f"the certificate `{files.cert}` and the key `{files.key}`"
        raise ValueError(f"cannot use {pair}: {_reason(error)}") from error
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
