"""Cores, memory and CPU features that this process may use."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import with_config
from typing_extensions import TypedDict  # pydantic reads that of `typing` from Python 3.12 on

CPUINFO = Path("/proc/cpuinfo")
VNNI = frozenset({"avx512_vnni", "avx_vnni"})
"""CPU features that multiply 8-bit integers and accumulate in 32 bits; either suffices."""
BF16 = frozenset({"avx512_bf16", "amx_bf16"})
"""CPU features that multiply bf16 numbers; either suffices."""
MATMUL_FEATURES = (
    *("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8", "amx_bf16"),
    *("asimddp", "i8mm"),  # of Arm
)
"""CPU features that matter to matrix products, by Linux's names."""
_CGROUPS = Path("/sys/fs/cgroup")


@with_config(strict=True)
class MachineRecord(TypedDict):
    """Keys of `describe_machine` that every record has; records of GPUs have more."""

    cpu: str
    features: list[str]
    cores: int


def available_cpus() -> int:
    """Return the whole cores that this process may keep busy, at least 1."""
    quota = cpu_quota(_CGROUPS, own_cgroup())
    cpus = len(os.sched_getaffinity(0))
    # Round down: a worker thread beyond the quota would be throttled in the middle of a batch.
    return max(1, min(cpus, int(quota)) if quota else cpus)


def available_memory_bytes() -> int:
    """Return the bytes of memory that this process may use."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(total, memory_limit(_CGROUPS, own_cgroup()) or total)


def cpu_quota(root: Path, cgroup: str) -> float | None:
    """Return the lowest CPU quota of a cgroup (version 2) and its ancestors, in cores; None without a limit."""
    quotas = (content.split() for content in _cgroup_files(root, cgroup, "cpu.max"))
    return min((int(limit) / int(period) for limit, period in quotas if limit != "max"), default=None)


def memory_limit(root: Path, cgroup: str) -> int | None:
    """Return the lowest memory limit of a cgroup (version 2) and its ancestors, in bytes; None without a limit."""
    limits = _cgroup_files(root, cgroup, "memory.max")
    return min((int(limit) for limit in limits if limit != "max"), default=None)


def _cgroup_files(root: Path, cgroup: str, name: str) -> Iterator[str]:
    """Yield the content of the file `name` of a cgroup and of each ancestor that has it.

    Args:
        root: mount point of the hierarchy.
        cgroup: path in the hierarchy, as in `/proc/self/cgroup`.
    """
    directory = root / cgroup.lstrip("/")
    for folder in (directory, *directory.parents):
        path = folder / name
        if path.is_relative_to(root) and path.is_file():
            yield path.read_text(encoding="ascii").strip()


def own_cgroup() -> str:
    """Return the path of this process's cgroup (version 2) in the hierarchy."""
    path = Path("/proc/self/cgroup")
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "/")


def read_cpuinfo(path: Path = CPUINFO) -> dict[str, str]:
    """Return Linux's description of a CPU by key; empty on other systems."""
    lines = path.read_text().splitlines() if path.is_file() else []
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}


@cache
def cpu_flags(path: Path = CPUINFO) -> frozenset[str]:
    """Return the instruction sets of the CPU by Linux's names; empty where unknown."""
    found = read_cpuinfo(path)
    return frozenset(f"{found.get('flags', '')} {found.get('Features', '')}".split())


def int8_sums_overflow() -> bool:
    """Return whether products of 8-bit integers are added in 16 bits here, as x86 CPUs without VNNI do."""
    return platform.machine().lower() in ("x86_64", "amd64") and not VNNI & cpu_flags()


def describe_machine(cpuinfo: Path = CPUINFO) -> dict[str, Any]:
    """Return the CPU, its `MATMUL_FEATURES` and the available cores, to be recorded with a measurement."""
    flags = cpu_flags(cpuinfo)
    return {
        "cpu": read_cpuinfo(cpuinfo).get("model name", platform.machine()),
        "features": [name for name in MATMUL_FEATURES if name in flags],
        "cores": available_cpus(),
    }


def summarize_machine(record: Mapping[str, Any]) -> str:
    """Return a record of `describe_machine` as one line."""
    cores = f"{record['cores']} core{'s' * (record['cores'] != 1)}"
    cpu = f"{record['cpu']} ({', '.join([cores, *record['features']])})"
    return f"{record['gpus']} x {record['gpu']}, {cpu}" if "gpu" in record else cpu
