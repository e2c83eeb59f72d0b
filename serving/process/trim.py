"""Give freed memory back to the system: glibc keeps what threads have freed for itself, for ever."""

from __future__ import annotations

import asyncio
import ctypes
import os
from pathlib import Path

LOOK_S = 2.0
GROWN_BYTES = 8 * 2**20
"""Growth of unused memory that is worth a trim, which stops the threads that allocate for some milliseconds."""
M_ARENA_MAX = -8
"""From glibc's malloc.h."""
_STATM = Path("/proc/self/statm")


def use_one_arena() -> None:
    """Make all threads share one arena of glibc, unless MALLOC_ARENA_MAX says otherwise: each arena keeps the most
    memory that it ever had. To be called before there are threads."""
    library = ctypes.CDLL(None)
    if "MALLOC_ARENA_MAX" not in os.environ and hasattr(library, "mallopt"):
        library.mallopt(M_ARENA_MAX, 1)


async def trim_memory() -> None:
    """Give back memory that has become free; ends at once where the C library cannot do so.

    Unused memory in RAM grows when memory is freed, and shrinks when a trim gives it back. How much a trim can give
    back is known only afterwards, so what it leaves is the baseline for the next one.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "malloc_trim") or not hasattr(library, "mallinfo2") or not _STATM.is_file():
        return
    library.mallinfo2.restype = _Info
    least = _unused_bytes(library)
    while True:
        await asyncio.sleep(LOOK_S)
        least = min(least, unused := _unused_bytes(library))
        if unused > least + GROWN_BYTES:
            await asyncio.to_thread(library.malloc_trim, 0)
            least = _unused_bytes(library)


class _Info(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keep",
        )
    ]


def _unused_bytes(library: ctypes.CDLL) -> int:
    """Return the memory in RAM that malloc has not handed out: code, mapped files, and free memory."""
    info = library.mallinfo2()
    return resident_bytes() - int(info.uordblks) - int(info.hblkhd)


def resident_bytes() -> int:
    """Memory of this process that is in RAM."""
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
