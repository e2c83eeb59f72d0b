"""Cores, memory and CPU features of the machine."""

import os
import platform

import pytest

from tasks.bundle.machine import (
    available_cpus,
    available_memory_bytes,
    cpu_quota,
    describe_machine,
    memory_limit,
)


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        ("model name\t: Fast 1\nflags\t\t: fpu avx2 avx512_vnni\n", ("Fast 1", ["avx2", "avx512_vnni"])),
        ("Features\t: fp asimddp i8mm\n", (None, ["asimddp", "i8mm"])),
        (None, (None, [])),
    ],
)
def test_describe_machine(tmp_path, cpuinfo, expected):
    """The record has the model name and features from Linux on x86 and Arm, and the kind of CPU elsewhere."""
    if cpuinfo is not None:
        (tmp_path / "cpuinfo").write_text(cpuinfo)

    found = describe_machine(tmp_path / "cpuinfo")

    assert found["features"] == expected[1]
    assert found["cpu"] == (expected[0] or platform.machine())
    assert found["cores"] >= 1


@pytest.mark.parametrize(
    ("limit", "file", "contents", "expected"),
    [
        (cpu_quota, "cpu.max", {}, None),
        (cpu_quota, "cpu.max", {"": "max 100000"}, None),
        (cpu_quota, "cpu.max", {"": "150000 100000"}, 1.5),
        (cpu_quota, "cpu.max", {"": "max 100000", "pods": "400000 100000", "pods/mine": "max 100000"}, 4.0),
        (cpu_quota, "cpu.max", {"pods": "100000 100000", "pods/mine": "200000 100000"}, 1.0),
        (memory_limit, "memory.max", {"": "max"}, None),
        (memory_limit, "memory.max", {"": "max", "pods": "1073741824", "pods/mine": "max"}, 2**30),
        (memory_limit, "memory.max", {"pods": "1073741824", "pods/mine": "536870912"}, 2**29),
    ],
)
def test_limits_of_cgroups(tmp_path, limit, file, contents, expected):
    """The lowest quota or limit of the cgroup and its ancestors applies."""
    for name, text in contents.items():
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / name / file).write_text(text + "\n")

    assert limit(tmp_path, "/pods/mine") == expected


@pytest.mark.parametrize(
    ("affinity", "quota", "expected"), [(8, None, 8), (8, 2.5, 2), (8, 0.5, 1), (2, 16.0, 2), (1, 1.0, 1)]
)
def test_available_cpus(monkeypatch, affinity, quota, expected):
    """The number of cores is that of the affinity, limited by the cgroup's quota, and at least one."""
    cgroups = []
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(affinity)))
    monkeypatch.setattr("tasks.bundle.machine.cpu_quota", lambda root, cgroup: cgroups.append(cgroup) or quota)

    assert available_cpus() == expected
    assert cgroups[0].startswith("/")


@pytest.mark.parametrize("limit", [None, 2**29, 2**60])
def test_available_memory_bytes(monkeypatch, limit):
    """Available memory is the machine's, or the cgroup's limit if that is lower."""
    monkeypatch.setattr("tasks.bundle.machine.memory_limit", lambda root, cgroup: limit)
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    assert available_memory_bytes() == min(total, limit or total)
