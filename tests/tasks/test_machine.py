"""A machine says of itself what bears on speed."""

import platform

import pytest

from tasks.machine import machine, machine_in_words


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        ("model name\t: Fast 1\nflags\t\t: fpu avx2 avx512_vnni\n", ("Fast 1", ["avx2", "avx512_vnni"])),
        ("Features\t: fp asimddp i8mm\n", (None, ["asimddp", "i8mm"])),
        (None, (None, [])),
    ],
)
def test_machine(tmp_path, cpuinfo, expected):
    """What Linux says of the CPU, on x86 and on Arm; elsewhere its kind."""
    if cpuinfo is not None:
        (tmp_path / "cpuinfo").write_text(cpuinfo)

    found = machine(tmp_path / "cpuinfo")

    assert found["features"] == expected[1]
    assert found["cpu"] == (expected[0] or platform.machine())
    assert found["cores"] >= 1


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "Fast 1 (2 cores, avx2)"),
        ({"cores": 1, "features": []}, "Fast 1 (1 core)"),
        ({"gpu": "H200", "gpus": 8}, "8 x H200, Fast 1 (2 cores, avx2)"),
    ],
)
def test_machine_in_words(changes, expected):
    assert machine_in_words({"cpu": "Fast 1", "features": ["avx2"], "cores": 2} | changes) == expected
