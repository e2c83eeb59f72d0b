"""Watcher of files that may be replaced while the server runs: certificates and bearer tokens."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from serving.core.errors import error_line

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


class FileWatcher(Generic[T]):
    """Value that is read from files, and again when they change. A thread of its own reads, since storage may hang."""

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
            except OSError as error:
                self._seen = None
                self._log(error)
            except Exception as error:
                self._log(error)
        self._checked_s = time.monotonic()

    def _log(self, error: Exception) -> None:
        """Log an error once, even if later checks repeat it."""
        if (message := error_line(error)) != self._error:
            logger.error("cannot reload, the content read before stays in use: %s", message)
            self._error = message

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
