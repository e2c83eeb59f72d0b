import os

import pytest

from tasks.memory import available_bytes, memory_limit


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"": "max"}, None),
        ({"": "max", "pods": "1073741824", "pods/mine": "max"}, 2**30),
        ({"pods": "1073741824", "pods/mine": "536870912"}, 2**29),
    ],
)
def test_memory_limit(tmp_path, files, expected):
    """The least limit of the cgroup and those around it counts."""
    for name, text in files.items():
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / name / "memory.max").write_text(text + "\n")

    assert memory_limit(tmp_path, "/pods/mine") == expected


@pytest.mark.parametrize("limit", [None, 2**29, 2**60])
def test_available_bytes(monkeypatch, limit):
    """The machine's memory, or less where a cgroup limits it."""
    monkeypatch.setattr("tasks.memory.memory_limit", lambda root, cgroup: limit)
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    assert available_bytes() == min(machine, limit or machine)
