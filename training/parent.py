"""Processes that do not outlive the one that started them, however that one ends."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with(parent: int) -> None:
    """Have the kernel end this process when its parent has ended; at once, where it has ended already.

    Args:
        parent: process id of the one that started this one.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(1)
