"""Jobs on a Ray cluster of two nodes."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.clients.command import Run, fails
from tests.ray_cluster import NODE, kill_a_node, two_nodes
from tests.serving.models import write_model

HAS_RAY = importlib.util.find_spec("ray") is not None


@pytest.mark.parametrize(
    "arguments", [["text"], ["-i", "-", "-o", "out/"], ["-i", "in.txt"]], ids=["texts", "standard input", "no output"]
)
def test_what_a_cluster_cannot_do(run: Run, tmp_path: Path, arguments: list[str]) -> None:
    """Workers elsewhere need files."""
    assert fails(run("embed", *arguments, "--ray", "local"), "--ray takes files, and writes to --output", code=2)


def write_shards(folder: Path, count: int, num_rows: int) -> None:
    for number in range(count):
        rows = [{"text": f"the cat {number} {row}", "id": number * num_rows + row} for row in range(num_rows)]
        rows[3] = {"text": "", "id": rows[3]["id"]}
        (folder / f"in{number:02}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.slow
@pytest.mark.skipif(not HAS_RAY, reason="pip install 'ray[data]'")
@pytest.mark.parametrize("output", ["out.parquet", "out/"])
def test_a_node_may_die(tmp_path: Path, output: str) -> None:
    """A job on two nodes, of which one is killed midway, writes what it would have written on one machine; the engine
    runs in the workers."""
    write_model(tmp_path / "models", passes=20)
    write_shards(tmp_path, 12, 600)
    arguments = ["embed", "-i", f"{tmp_path}/in*.jsonl", "--engine", str(tmp_path / "models")]
    command: Any = [sys.executable, "-m", "bertline.cli", *arguments]
    wanted = output.replace("out", "wanted")
    assert subprocess.run([*command, "-o", f"{tmp_path}/{wanted}"], check=False).returncode == 3
    parts = tmp_path / "out" if output == "out/" else tmp_path / "out.parquet.job"
    with two_nodes() as cluster:
        with subprocess.Popen([*command, "-o", f"{tmp_path}/{output}", "--ray", cluster.address]) as process:
            while not len(list(parts.glob("part-*"))) >= 3:
                assert process.poll() is None
                time.sleep(0.02)
            kill_a_node(cluster)
        cluster.add_node(**NODE)

    assert process.returncode == 3
    first, second = (read(tmp_path / name) for name in (wanted, output))
    assert first["id"].equals(second["id"])
    vectors = [np.stack(table["vector"].to_numpy()) for table in (first, second)]
    assert np.abs(vectors[0] - vectors[1]).max() < 1e-5  # batches are others, and so is the rounding
    told = [
        tmp_path / (f"{name}_rejects.jsonl" if output == "out/" else f"{name}.rejects.jsonl")
        for name in (wanted, output)
    ]
    assert told[0].read_bytes() == told[1].read_bytes()


def read(path: Path) -> pa.Table:
    """A file, or a folder of parts in their order."""
    paths = sorted(path.glob("part-*")) if path.is_dir() else [path]
    return pa.concat_tables(pq.read_table(item) for item in paths)
