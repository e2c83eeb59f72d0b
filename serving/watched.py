"""Files that may be replaced while the server runs: certificates and tokens."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from serving.errors import told

logger = logging.getLogger(__name__)

T = TypeVar("T")

CHECK_S = 1.0
"""How often files are looked at, at most: looking is a system call for each."""


class Watched(Generic[T]):
    """What some files hold, read again when they change. May be asked from any thread."""

    def __init__(self, paths: Sequence[Path], read: Callable[[], T]) -> None:
        """Read them.

        Args:
            read: reads the files, and raises ValueError or OSError where they are no use.

        Raises:
            ValueError, OSError: as `read` does.
        """
        self._paths = paths
        self._read = read
        self._seen = self._signature()
        self._checked_s = time.monotonic()
        self._lock = threading.Lock()
        self._value = read()

    def current(self) -> T:
        """What the files hold. Where they changed and are no use, what they held before, with an error in the log."""
        with self._lock:
            if time.monotonic() - self._checked_s >= CHECK_S:
                self._check()
                self._checked_s = time.monotonic()
            return self._value

    def _check(self) -> None:
        if (signature := self._signature()) == self._seen:
            return
        self._seen = signature
        names = ", ".join(map(str, self._paths))
        try:
            self._value = self._read()
            logger.info("read again, as it changed: %s", names)
        except (ValueError, OSError) as error:
            logger.error("what was read before stays in use: %s", told(error))

    def _signature(self) -> list[tuple[int, int, int] | None]:
        return [_signature(path) for path in self._paths]


def _signature(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
