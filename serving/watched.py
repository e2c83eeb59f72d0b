"""Files that may be replaced while the server runs: certificates and tokens."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from serving.errors import told

logger = logging.getLogger(__name__)

T = TypeVar("T")

TLS, TOKENS = "tls", "tokens"
KINDS = (TLS, TOKENS)
_Signature = tuple[int, int, int, int] | None

CHECK_S = 1.0
"""How often files are looked at, at most: looking is a system call for each."""


class Watched(Generic[T]):
    """What some files hold, read again when they change. May be asked from any thread."""

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
        self._checked_s = time.monotonic()
        self._lock = threading.Lock()
        self._value = read()
        _all.add(self)

    @property
    def is_failing(self) -> bool:
        """Whether the present content of the files cannot be used."""
        self.current()
        return bool(self._complaint)

    def current(self) -> T:
        """Return what the files hold. If they changed and cannot be used, log that and return what they held before."""
        with self._lock:
            if time.monotonic() - self._checked_s >= CHECK_S:
                self._check()
                self._checked_s = time.monotonic()
            return self._value

    def _check(self) -> None:
        if (signature := self._signature()) == self._seen:
            return
        self._seen = signature
        try:
            self._value = self._read()
            self._complaint = ""
            logger.info("read again, as it changed: %s", ", ".join(map(str, self._paths)))
        except OSError as error:
            self._seen = None
            self._complain(error)
        except ValueError as error:
            self._complain(error)

    def _complain(self, error: Exception) -> None:
        """Log what is the same at every look once."""
        if (complaint := told(error)) != self._complaint:
            logger.error("what was read before stays in use: %s", complaint)
            self._complaint = complaint

    def _signature(self) -> list[_Signature]:
        return [_signature(path) for path in self._paths]


_all: WeakSet[Watched[Any]] = WeakSet()


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
