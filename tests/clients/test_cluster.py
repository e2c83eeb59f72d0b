"""Tests of jobs on a Ray cluster of two nodes."""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from bertline.jobs import run as jobs_run
from bertline.jobs.spec import JobSpec
from bertline.jobs.storage import File, file_of
from bertline.testing import FakeModel, FakeServer, vector
from bertline.v1 import encoder_pb2 as pb
from tests.clients.command import Run, fails, interrupt, numbers, parsed, received, succeeds
from tests.ray_cluster import NODE, kill_a_node, two_nodes
from tests.serving.models import write_model

HAS_RAY = importlib.util.find_spec("ray") is not None


@pytest.mark.parametrize(
    "arguments", [["text"], ["-i", "-", "-o", "out/"], ["-i", "in.txt"]], ids=["texts", "standard input", "no output"]
)
def test_options_without_a_cluster(run: Run, tmp_path: Path, arguments: list[str]) -> None:
    """--ray requires input files and an output."""
    assert fails(run("embed", *arguments, "--ray", "local"), "--ray needs --input with files, and --output", code=2)


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace Ray by a worker a file in this process, last file first."""

    def in_turn(
        files: Sequence[int],
        make_worker: Callable[[], Callable[[int], Any]],
        *,
        address: str,
        num_workers: int,
        progress: Callable[[int, Any], object],
    ) -> None:
        for number in reversed(files):
            progress(number, pickle.loads(pickle.dumps(make_worker))()(number))

    monkeypatch.setattr("bertline.jobs.run.map_partitions", in_turn)
    monkeypatch.setattr("bertline.jobs.rows.CHUNK_ROWS", 256)


@pytest.fixture
def remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the object store cache its listings until it removes a file or the cache is dropped."""
    known: dict[tuple[str, bool], Any] = {}
    listed, removed = MemoryFileSystem.ls, MemoryFileSystem.rm_file

    def ls(self: MemoryFileSystem, path: str, detail: bool = True, **options: Any) -> Any:
        if (path, detail) not in known:
            known[path, detail] = listed(self, path, detail=detail, **options)
        return known[path, detail]

    def rm_file(self: MemoryFileSystem, path: str) -> None:
        removed(self, path)
        known.clear()

    def mv(self: MemoryFileSystem, source: str, target: str) -> None:
        self.store[target] = self.store.pop(source)

    monkeypatch.setattr(MemoryFileSystem, "ls", ls)
    monkeypatch.setattr(MemoryFileSystem, "mv", mv)
    monkeypatch.setattr(MemoryFileSystem, "rm_file", rm_file)
    monkeypatch.setattr(MemoryFileSystem, "invalidate_cache", lambda self, path=None: known.clear())


def write_files(folder: Path, files: Sequence[str]) -> None:
    for number, text in enumerate(files):
        (folder / f"in{number}.jsonl").write_text(text)


def test_parts_that_others_wrote_are_found(run: Run, tmp_path: Path, pool: None, remembered: None) -> None:
    """The job finds all parts of its workers, even if the store has cached the listing."""
    write_files(tmp_path, [f'{{"text": "text {number}"}}\n' * 300 for number in range(3)])
    result = run("embed", "-i", f"{tmp_path}/in*.jsonl", "-o", "memory://cluster/out.jsonl", "--ray", "local")

    assert succeeds(result)
    lines = file_of("memory://cluster/out.jsonl").read().splitlines()
    assert [parsed(line)["vector"] for line in lines] == [
        numbers(f"text {number}") for number in range(3) for _ in range(300)
    ]


@pytest.mark.parametrize("output", ["out.parquet", "out/"])
@pytest.mark.parametrize(
    "files",
    [
        ['{"text": "refuse", "id": "x"}\n{"text": "a", "id": 1}\n', '{"text": "b", "id": 2}\n'],
        ["", '{"text": "a", "id": 1}\n', '{"text": "b", "id": 2, "more": 3}\n{"text": "refuse", "id": 4}\n'],
        ["{\n" * 600, '{"text": "a", "id": 1}\n', '{"text": "b", "id": "2"}\n{"text": "c", "id": 4}\n'],
    ],
    ids=["a rejected row", "an empty file", "a bad file"],
)
def test_columns_are_those_of_one_process(run: Run, tmp_path: Path, pool: None, files: list[str], output: str) -> None:
    """Columns and types are those of one process, in any order of the files."""
    write_files(tmp_path, files)
    found, rejects = [], []
    for folder, options in (("one", []), ("many", ["--ray", "local"])):
        (tmp_path / folder).mkdir()
        place = f"{tmp_path}/{folder}/{output}"
        assert run("classify", "-i", f"{tmp_path}/in*.jsonl", "-o", place, *options).code == 3
        found.append(pq.read_table(place))
        rejects.append(Path(f"{place}_rejects.jsonl" if output == "out/" else f"{place}.rejects.jsonl").read_text())

    assert found[0].schema.field("id").type == (pa.string() if '"2"' in "".join(files) else pa.int64())
    assert found[1].equals(found[0])
    assert rejects[1] == rejects[0]


@pytest.mark.parametrize(
    ("rows", "options"), [(256, []), (0, []), (256, ["--ray", "local"])], ids=["process", "no rows", "cluster"]
)
def test_rows_that_are_gone(
    run: Run, server: FakeServer, tmp_path: Path, pool: None, rows: int, options: list[str]
) -> None:
    """A file that has become shorter since the job started is refused."""
    path, line = tmp_path / "in.jsonl", '{"text": "a"}\n'
    path.write_text(line * 1000)
    arguments = ("embed", "-i", str(path), "-o", f"{tmp_path}/out.jsonl", *options)
    interrupt(run, server, *arguments, after=12)
    path.write_text(line * rows)
    result = run(*arguments)

    assert result.code == 1
    assert "the input has changed since" in result.err
    assert not (tmp_path / "out.jsonl").exists()


def test_parts_that_are_lost(run: Run, tmp_path: Path, pool: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job fails if a part is missing, and writes the part when it is repeated."""
    write_files(tmp_path, ['{"text": "a"}\n', '{"text": "b"}\n'])
    arguments = ("embed", "-i", f"{tmp_path}/in*.jsonl", "-o", f"{tmp_path}/out.jsonl", "--ray", "local")
    with monkeypatch.context() as patch:
        names = File.names
        patch.setattr(File, "names", lambda self: [name for name in names(self) if "part-00001" not in name])
        lost = run(*arguments)

    assert lost.code == 1
    assert f"parts are missing in `{tmp_path}/out.jsonl.job`" in lost.err
    assert run(*arguments).code == 0
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 2


def test_a_worker_with_another_model(
    run: Run, server: FakeServer, tmp_path: Path, pool: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker whose server has another model is refused."""
    write_files(tmp_path, ['{"text": "a"}\n', '{"text": "b"}\n'])
    arguments = ("embed", "-i", f"{tmp_path}/in*.jsonl", "-o", f"{tmp_path}/out.jsonl", "--ray", "local")
    message = "the model `fake/1` was replaced while the job ran; start again with --restart"
    with FakeServer([FakeModel(manifest={"pooling": "mean"})]) as other:
        connected = JobSpec.connected
        targets = iter([server.target, other.target])
        monkeypatch.setattr(JobSpec, "connected", lambda self: connected(replace(self, target=next(targets))))

        assert fails(run(*arguments), message)
        assert received(other) == []
    assert not (tmp_path / "out.jsonl").exists()


def test_a_model_that_is_replaced_meanwhile(run: Run, server: FakeServer, tmp_path: Path, pool: None) -> None:
    """A job whose model is replaced while it runs writes no output."""
    write_files(tmp_path, ['{"text": "a"}\n', '{"text": "b"}\n'])

    def embed(request: pb.EmbedRequest) -> pb.EmbedReply:
        server.models = [FakeModel(manifest={"pooling": "mean"})]
        return pb.EmbedReply(vectors=vector(request.texts[0]).tobytes(), dim=FakeModel().dim)

    server.reply("Embed", embed)
    result = run("embed", "-i", f"{tmp_path}/in*.jsonl", "-o", f"{tmp_path}/out.jsonl", "--ray", "local")

    assert fails(result, "the model `fake/1` was replaced while the job ran; start again with --restart")
    assert not (tmp_path / "out.jsonl").exists()


def test_workers_run_in_other_folders(run: Run, tmp_path: Path, pool: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers resolve paths against the folder of the command, not their own."""
    write_files(tmp_path, ['{"text": "a"}\n', '{"text": ""}\n'])
    (tmp_path / "ca.pem").write_text("mine")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    in_turn, specs = jobs_run.map_partitions, []

    def elsewhere(files: Any, make_worker: Any, **options: Any) -> None:
        specs.extend(make_worker.args)
        with monkeypatch.context() as patch:
            patch.chdir("elsewhere")
            in_turn(files, make_worker, **options)

    monkeypatch.setattr("bertline.jobs.run.map_partitions", elsewhere)
    monkeypatch.setattr("bertline.jobs.spec.engine", lambda models: nullcontext(os.environ["BERTLINE_TARGET"]))
    for output, found in (("out.jsonl", "out.jsonl"), ("out/", "out/part-*")):
        arguments = ("embed", "-i", "in*.jsonl", "-o", output, "--rejects", "r.jsonl", "--force", "--ray", "local")
        assert run("--tls-ca", "ca.pem", *arguments, "--engine", "models").code == 3
        assert list(tmp_path.glob(found))

    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == []
    assert {spec.engine for spec in specs} == {str(tmp_path / "models")}
    assert {spec.credentials.tls_ca for spec in specs} == {str(tmp_path / "ca.pem")}


def write_shards(folder: Path, count: int, num_rows: int) -> None:
    for number in range(count):
        rows = [{"text": f"the cat {number} {row}", "id": number * num_rows + row} for row in range(num_rows)]
        rows[3] = {"text": "", "id": rows[3]["id"]}
        (folder / f"in{number:02}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.slow
@pytest.mark.skipif(not HAS_RAY, reason="pip install 'ray[data]'")
@pytest.mark.parametrize("output", ["out.parquet", "out/"])
def test_a_node_may_die(tmp_path: Path, output: str) -> None:
    """A job on two nodes, one of which is killed, writes the output of one machine."""
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
    assert np.abs(vectors[0] - vectors[1]).max() < 1e-5  # other batches, other rounding
    rejects = [
        tmp_path / (f"{name}_rejects.jsonl" if output == "out/" else f"{name}.rejects.jsonl")
        for name in (wanted, output)
    ]
    assert rejects[0].read_bytes() == rejects[1].read_bytes()


def read(path: Path) -> pa.Table:
    """Read a file, or the parts of a folder in order."""
    paths = sorted(path.glob("part-*")) if path.is_dir() else [path]
    return pa.concat_tables(pq.read_table(item) for item in paths)
