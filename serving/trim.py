"""Memory that is free but not the system's yet: glibc keeps what threads have freed, for itself, and for ever."""

from __future__ import annotations

import asyncio
import ctypes
import os
from pathlib import Path

LOOK_S = 5.0
GROWN_BYTES = 32 * 2**20
"""What is worth a look at all arenas, which stops the threads that allocate for some milliseconds."""
_STATM = Path("/proc/self/statm")


async def trim_memory() -> None:
    """Give back free memory whenever the process has grown; ends at once where the C library cannot do so."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if not trim or not _STATM.is_file():
        return
    least = resident_bytes()
    while True:
        await asyncio.sleep(LOOK_S)
        if resident_bytes() > least + GROWN_BYTES:
            await asyncio.to_thread(trim, 0)
        least = resident_bytes()


def resident_bytes() -> int:
    """Memory of this process that is in RAM."""
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
