"""Delay Ctrl-C and SIGTERM (a preempted machine) until the current step is done."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """Records the first signal; a second one has its usual effect. Does nothing outside of the main thread."""

    def __init__(self) -> None:
        self.is_requested = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            noticed = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]  # as under nohup
            self._before = {number: signal.signal(number, self._record) for number in noticed}
        return self

    def _record(self, number: int, frame: FrameType | None) -> None:
        self.is_requested = True
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def __exit__(self, *_: object) -> None:
        self._restore()
