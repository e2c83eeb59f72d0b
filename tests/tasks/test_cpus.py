import pytest

from tasks.cpus import available_cpus, cpu_quota


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"": "max 100000"}, None),
        ({"": "150000 100000"}, 1.5),
        ({"": "max 100000", "pods": "400000 100000", "pods/mine": "max 100000"}, 4.0),
        ({"pods": "100000 100000", "pods/mine": "200000 100000"}, 1.0),
    ],
)
def test_cpu_quota(tmp_path, files, expected):
    """The least quota of the cgroup and those around it counts."""
    for name, text in files.items():
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / name / "cpu.max").write_text(text + "\n")

    assert cpu_quota(tmp_path, "/pods/mine") == expected


def test_available_cpus():
    """There is at least one."""
    assert available_cpus() >= 1
