"""Partitions on a Ray cluster of two nodes."""

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bertline.jobs.ray_pool import MAX_ATTEMPTS, RayFailed, map_partitions
from tests.ray_cluster import NODE, kill_a_node, two_nodes

HAS_RAY = importlib.util.find_spec("ray") is not None
needs_ray = pytest.mark.skipif(not HAS_RAY, reason="pip install 'ray[data]'")


@pytest.fixture(scope="module")
def cluster():
    with two_nodes() as cluster:
        yield cluster


def start(cluster, folder, partitions):
    """Start a process that prints `[index, stats]` for each partition as it ends, or `[error, message]`."""
    arguments = ["tests.clients.ray_workers", cluster.address, str(folder), json.dumps(partitions)]
    return subprocess.Popen(
        [sys.executable, "-m", *arguments], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )


@needs_ray
@pytest.mark.slow
def test_partitions_of_a_dead_node_are_done_by_others(cluster, tmp_path):
    """The cluster reports each partition once, when it ends, even if a node dies."""
    printed = []
    with start(cluster, tmp_path, list(range(20))) as process:
        for line in process.stdout:
            printed.append(json.loads(line))
            if len(printed) == 5:
                workers_before = len(list(tmp_path.glob("worker-*")))
                kill_a_node(cluster)
    cluster.add_node(**NODE)

    assert workers_before == 2
    assert sorted(printed) == [[number, number**2] for number in range(20)]
    assert {path.read_text() for path in tmp_path.glob("part-*")} == {str(number**2) for number in range(20)}
    assert len(list(tmp_path.glob("worker-*"))) <= 4


@needs_ray
@pytest.mark.slow
@pytest.mark.parametrize(
    ("folder", "partitions", "last"),
    [
        (None, [1, "mistake", *range(2, 40)], ["KeyError", "'no such column'"]),
        ("nowhere", [1, 2], ["FileNotFoundError", "no such folder: nowhere"]),
        (
            None,
            ["killer"],
            ["RayFailed", f"workers died {MAX_ATTEMPTS} times at partition 0; give them more memory"],
        ),
    ],
)
def test_errors_of_workers_are_one_line(cluster, tmp_path, folder, partitions, last):
    """The pool reports a worker's error, stops after MAX_ATTEMPTS deaths, and starts no further partitions."""
    output, _ = start(cluster, folder or tmp_path, partitions).communicate()
    printed = [json.loads(line) for line in output.splitlines()]

    assert printed[-1] == last
    assert len(printed) < 39


@needs_ray
@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:1", r"no Ray cluster at `127.0.0.1:1` \(.*refused\); start one with `ray start --head`"),
        ("ray://a:1", "address of a Ray cluster must be `auto`, `local` or host:port: `ray://a:1`"),
    ],
)
def test_no_cluster_is_one_line(address, message):
    """An address without a cluster fails immediately."""
    began = time.monotonic()
    with pytest.raises(RayFailed, match=message):
        map_partitions([1], print, address=address, num_workers=1, progress=print)

    assert time.monotonic() - began < 60


@pytest.mark.skipif(HAS_RAY, reason="Ray is installed")
def test_without_ray_the_extra_is_named():
    """The error names the extra to install if Ray is missing."""
    with pytest.raises(RayFailed, match=r"pip install './clients\[ray\]'"):
        map_partitions([1], print, address="local", num_workers=1, progress=print)
