"""Counter of concurrent calls by client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class ConcurrencyCounter:
    """Number of concurrent calls of each client. Lives in one event loop."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def __getitem__(self, client: str) -> int:
        """Return the number of calls of a client."""
        return self._counts[client]

    @property
    def total(self) -> int:
        """Number of calls of all clients."""
        return self._counts.total()

    @contextmanager
    def count(self, client: str) -> Iterator[None]:
        """Count a call while the context lasts."""
        self._counts[client] += 1
        try:
            yield
        finally:
            self._counts[client] -= 1
            if not self._counts[client]:
                del self._counts[client]
