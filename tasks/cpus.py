"""How many cores this process may use, by its affinity and the CPU quota of its cgroups; and what these can do."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
VNNI = frozenset({"avx512_vnni", "avx_vnni"})
"""Either multiplies integers and adds them up in 32 bits."""
_CGROUPS = Path("/sys/fs/cgroup")


def available_cpus() -> int:
    """Whole cores this process may keep busy, at least 1."""
    quota = cpu_quota(_CGROUPS, own_cgroup())
    cpus = len(os.sched_getaffinity(0))
    # A worker that the quota does not fully cover would be throttled in the middle of a batch.
    return max(1, min(cpus, int(quota)) if quota else cpus)


def cpu_quota(root: Path, cgroup: str) -> float | None:
    """The least quota of a cgroup (version 2) and those around it.

    Args:
        root: where the hierarchy is mounted.
        cgroup: path in the hierarchy, as in `/proc/self/cgroup`.

    Returns:
        Cores, None where nothing limits them.
    """
    directory = root / cgroup.lstrip("/")
    files = [item / "cpu.max" for item in (directory, *directory.parents) if item.is_relative_to(root)]
    quotas = [_quota(path) for path in files if path.is_file()]
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota(path: Path) -> float | None:
    limit, period = path.read_text(encoding="ascii").split()
    return None if limit == "max" else int(limit) / int(period)


def own_cgroup() -> str:
    """Path of this process in the hierarchy of cgroups (version 2)."""
    path = Path("/proc/self/cgroup")
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "/")


def read_cpuinfo(path: Path = CPUINFO) -> dict[str, str]:
    """What Linux says of a CPU, by its names; empty elsewhere."""
    lines = path.read_text().splitlines() if path.is_file() else []
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}


@cache
def cpu_flags(path: Path = CPUINFO) -> frozenset[str]:
    """The instructions that a CPU has, as Linux names them; none where that is not known."""
    found = read_cpuinfo(path)
    return frozenset(f"{found.get('flags', '')} {found.get('Features', '')}".split())
