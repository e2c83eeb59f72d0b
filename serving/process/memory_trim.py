"""Return of freed memory to the system: glibc keeps memory that threads have freed."""

from __future__ import annotations

import asyncio
import ctypes
import os
from pathlib import Path

CHECK_S = 2.0
MIN_GROWTH_BYTES = 8 * 2**20
"""Minimum growth of unused memory before a trim, which blocks allocating threads for some milliseconds."""
M_ARENA_MAX = -8
"""Constant of glibc's malloc.h."""
_STATM = Path("/proc/self/statm")


def use_one_arena() -> None:
    """Make all threads share one glibc arena, unless MALLOC_ARENA_MAX is set: each arena keeps its peak memory. To be
    called before any thread starts."""
    library = ctypes.CDLL(None)
    if "MALLOC_ARENA_MAX" not in os.environ and hasattr(library, "mallopt"):
        library.mallopt(M_ARENA_MAX, 1)


async def trim_memory() -> None:
    """Return freed memory to the system every few seconds; return immediately if the C library does not support it.

    Unused memory grows when memory is freed and shrinks after a trim. A trim cannot return all of it, and how much is
    known only afterwards, so the rest is the baseline for the next one.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "malloc_trim") or not hasattr(library, "mallinfo2") or not _STATM.is_file():
        return
    library.mallinfo2.restype = _Info
    baseline = _unused_bytes(library)
    while True:
        await asyncio.sleep(CHECK_S)
        baseline = min(baseline, unused := _unused_bytes(library))
        if unused > baseline + MIN_GROWTH_BYTES:
            await asyncio.to_thread(library.malloc_trim, 0)
            baseline = _unused_bytes(library)


class _Info(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keep"
    _fields_ = [(name, ctypes.c_size_t) for name in _names.split()]


def _unused_bytes(library: ctypes.CDLL) -> int:
    """Return the resident memory that malloc has not handed out: code, mapped files and free memory."""
    info = library.mallinfo2()
    return resident_bytes() - int(info.uordblks) - int(info.hblkhd)


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
