"""Files that may be replaced while the server runs: certificates and tokens."""

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
"""Largest file of tokens or certificates."""
CHECK_S = 1.0
"""Seconds between looks at the files."""
HUNG_S = 10.0
"""Seconds after which a look that has not ended counts as failing: the storage hangs."""


class Watched(Generic[T]):
    """Content of some files, read again when they change, by a thread of its own, as storage may hang."""

    def __init__(self, what: str, paths: Sequence[Path], read: Callable[[], T]) -> None:
        """Read them.

        Args:
            what: one of KINDS, for the metrics.
            read: reads the files, and raises ValueError or OSError where they are no use.

        Raises:
            ValueError, OSError: as `read` does.
        """
        self.what = what
        self._paths = paths
        self._read = read
        self._seen: list[_Signature] | None = self._signature()
        """None where they could not be read: that is tried again at each look."""
        self._complaint = ""
        self._value = read()
        self._checked_s = time.monotonic()
        _all.add(self)
        threading.Thread(target=_watch, args=(weakref.ref(self),), name="watched", daemon=True).start()

    @property
    def is_failing(self) -> bool:
        """Whether the present content of the files cannot be used, or their storage does not answer."""
        return bool(self._complaint) or time.monotonic() > self._checked_s + CHECK_S + HUNG_S

    def current(self) -> T:
        """Return what the files hold, or held before where they cannot be used."""
        return self._value

    def check(self) -> None:
        """Read the files again if they changed. If they cannot be used, log that."""
        if (signature := self._signature()) != self._seen:
            self._seen = signature
            try:
                self._value = self._read()
                self._complaint = ""
                logger.info("read again, as it changed: %s", ", ".join(map(str, self._paths)))
            except OSError as error:
                self._seen = None
                self._complain(error)
            except Exception as error:
                self._complain(error)
        self._checked_s = time.monotonic()

    def _complain(self, error: Exception) -> None:
        """Log what is the same at every look once."""
        if (complaint := error_line(error)) != self._complaint:
            logger.error("what was read before stays in use: %s", complaint)
            self._complaint = complaint

    def _signature(self) -> list[_Signature]:
        return [_signature(path) for path in self._paths]


_all: WeakSet[Watched[Any]] = WeakSet()


def _watch(reference: weakref.ref[Watched[Any]]) -> None:
    """Check files every now and then, as long as somebody uses them."""
    time.sleep(CHECK_S)
    while item := reference():
        item.check()
        del item
        time.sleep(CHECK_S)


def failing() -> dict[str, bool]:
    """Return for each kind of watched files whether the present content of some of them cannot be used."""
    found = {item.what for item in list(_all) if item.is_failing}
    return {what: what in found for what in KINDS}


def _signature(path: Path) -> _Signature:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino
