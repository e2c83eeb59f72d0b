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


@pytest.mark.parametrize(
    ("affinity", "quota", "expected"), [(8, None, 8), (8, 2.5, 2), (8, 0.5, 1), (2, 16.0, 2), (1, 1.0, 1)]
)
def test_available_cpus(monkeypatch, affinity, quota, expected):
    """Those of the affinity that the quota covers whole, at least one; the quota is that of this process's cgroup."""
    asked = []
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(affinity)))
    monkeypatch.setattr("tasks.cpus.cpu_quota", lambda root, cgroup: asked.append(cgroup) or quota)

    assert available_cpus() == expected
    assert asked[0].startswith("/")
