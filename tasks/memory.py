"""How much memory this process may use, by the machine and the limits of its cgroups."""

from __future__ import annotations

import os
from pathlib import Path

from tasks.cpus import own_cgroup

_CGROUPS = Path("/sys/fs/cgroup")


def available_bytes() -> int:
    """Bytes that this process may use."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(machine, memory_limit(_CGROUPS, own_cgroup()) or machine)


def memory_limit(root: Path, cgroup: str) -> int | None:
    """The least memory limit of a cgroup (version 2) and those around it.

    Args:
        root: where the hierarchy is mounted.
        cgroup: path in the hierarchy, as in `/proc/self/cgroup`.

    Returns:
        Bytes, None where nothing limits them.
    """
    directory = root / cgroup.lstrip("/")
    files = [item / "memory.max" for item in (directory, *directory.parents) if item.is_relative_to(root)]
    limits = [path.read_text(encoding="ascii").strip() for path in files if path.is_file()]
    return min((int(limit) for limit in limits if limit != "max"), default=None)
