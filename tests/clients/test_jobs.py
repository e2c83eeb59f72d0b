from __future__ import annotations

import csv
import fcntl
import gzip
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertline.jobs.storage import file_of
from bertline.testing import FakeModel, FakeServer, vector
from bertline.testing._faults import Refusal
from bertline.v1 import encoder_pb2 as pb
from tests.clients.command import Run, fails, interrupt, numbers, read_jsonl, read_rows, received, succeeds

DIM = FakeModel().dim
WORDS = ["red", "green", "blue", "owl", "oak"]


def texts(count: int, seed: int = 0) -> list[str]:
    """Return different texts."""
    source = random.Random(seed)
    return [f"{number} {' '.join(source.choices(WORDS, k=source.randint(1, 6)))}" for number in range(count)]


def write_jsonl(path: Path, rows: list[Any]) -> str:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut chunks of 256 rows, so that a job has many of them."""
    monkeypatch.setattr("bertline.jobs.rows.CHUNK_ROWS", 256)


def test_small_batches_are_in_flight_as_often_as_large_ones(run: Run, server: FakeServer, tmp_path: Path) -> None:
    """Batches are separate requests of priority bulk, as many at a time as --in-flight allows."""
    server.delay(0.1)
    rows = write_jsonl(tmp_path / "in.jsonl", [{"text": text} for text in texts(64)])
    run("embed", "-i", rows, "-o", str(tmp_path / "out.npy"), "--batch-size", "4", "--in-flight", "8")

    assert [len(request.texts) for request in received(server)] == [4] * 16
    assert server.max_in_flight == 8
    assert {call.metadata.get("priority") for call in server.calls if call.method == "Embed"} == {"bulk"}


@pytest.mark.parametrize(("source", "most"), [("file", 1), ("arguments", 3)])
def test_documents_of_a_row_keep_to_the_limit(
    run: Run, server: FakeServer, tmp_path: Path, source: str, most: int
) -> None:
    """A row whose documents fill many requests has no more of them in flight than --in-flight allows."""
    server.delay(0.1)
    row = write_jsonl(tmp_path / "in.jsonl", [{"query": "owl", "documents": texts(64)}])
    rows = ["-i", row] if source == "file" else ["owl", *texts(64)]
    result = run("rerank", *rows, "--batch-size", "8", "--in-flight", "3")

    assert [len(row["ranking"]) for row in result.rows] == [64]
    assert [len(request.inputs[0].documents) for request in received(server, "Rerank")] == [8] * 8
    assert server.max_in_flight == most


def test_parquet_keeps_columns_and_their_types(run: Run, tmp_path: Path, small_chunks: None) -> None:
    """Parquet columns keep their types, between row number and vectors of a fixed size."""
    given = texts(600)
    table = pa.table(
        {
            "id": pa.array(range(600), pa.uint16()),
            "body": given,
            "when": pa.array(range(600), pa.timestamp("ns", "UTC")),
            "tags": [["a", str(number)] for number in range(600)],
        }
    )
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=140)
    output = tmp_path / "out.parquet"

    assert succeeds(run("embed", "-i", f"{tmp_path}/in.parquet", "--column", "text=body", "-o", str(output)))
    found = pq.read_table(output)
    assert found.select(table.column_names).equals(table)
    assert found.column_names == ["row_number", *table.column_names, "vector"]
    assert found["row_number"].to_pylist() == list(range(1, 601))
    assert found.schema.field("vector").type == pa.list_(pa.float32(), DIM)
    assert np.array_equal(np.stack(found["vector"].to_numpy()), np.stack([vector(text) for text in given]))
    assert json.loads(found.schema.metadata[b"bertline"])["command"] == "embed"


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "csv", "tsv", "parquet", "txt"])
def test_every_format_gives_the_same(run: Run, tmp_path: Path, suffix: str) -> None:
    """The suffix sets the format, and CSV keeps quotes and line feeds."""
    odd = {"tsv": [], "txt": ["tab\tbed"]}.get(suffix, ["tab\tbed", "two\nlines"])
    given = [*texts(30), 'a "quoted", text', *odd]
    path = tmp_path / f"in.{suffix}"
    if suffix == "parquet":
        pq.write_table(pa.table({"text": given}), path)
    elif suffix == "csv":
        with open(path, "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([["text"], *([text] for text in given)])
    else:
        lines = [json.dumps({"text": text}) if "jsonl" in suffix else text for text in given]
        lines = ["text", *lines] if suffix == "tsv" else lines
        data = "".join(line + "\n" for line in lines).encode()
        path.write_bytes(gzip.compress(data) if suffix.endswith("gz") else data)

    assert [row["vector"] for row in run("embed", "-i", str(path)).rows] == [numbers(text) for text in given]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_sets_of_labels_are_a_column(run: Run, server: FakeServer, tmp_path: Path, suffix: str) -> None:
    """Rows of a multi-label model have the list `selected`, perhaps empty; an input column of that name is renamed."""
    names = ("toxic", "insult", "threat")
    server.models = [FakeModel(task="classification", labels=names, multi_label=True)]
    rows = [{"text": text, "selected": "input"} for text in texts(20)]
    output = tmp_path / f"out.{suffix}"

    assert run("classify", "-i", write_jsonl(tmp_path / "in.jsonl", rows), "-o", str(output)).code == 0

    found = read_rows(output)
    assert {len(row["selected"]) for row in found} == {0, 1, 2, 3}
    for row in found:
        assert row["selected"] == [item["label"] for item in row["labels"] if item["score"] >= 0.5]
        assert row["input_selected"] == "input"


def test_columns_to_keep_can_be_chosen(run: Run, tmp_path: Path) -> None:
    """--keep selects columns, and --drop leaves some out."""
    path = write_jsonl(tmp_path / "in.jsonl", [{"id": 1, "text": "x", "more": 2}])

    def columns(*options: str) -> set[str]:
        return set(run("embed", "-i", path, *options).rows[0])

    assert columns("--keep", "id", "--keep", "text") == {"row_number", "id", "text", "vector"}
    assert columns("--drop", "text") == {"row_number", "id", "more", "vector"}
    assert columns("--keep", "id", "--drop", "row_number") == {"id", "vector"}


@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("in.csv", "out.parquet"),
        ("in.jsonl", "out.parquet"),
        ("in.parquet", "out.parquet"),
        ("in.parquet", "out.jsonl"),
        ("in.txt", "out.jsonl"),
    ],
)
def test_rejected_rows_are_found_from_the_output(
    run: Run, tmp_path: Path, small_chunks: None, name: str, output: str
) -> None:
    """The row numbers of output and rejected rows together are complete."""
    given = texts(700)
    for number in (0, 256, 640):
        given[number] = "refuse"
    write_rows(tmp_path / name, given)
    result = run("embed", "-i", f"{tmp_path}/{name}", "-o", f"{tmp_path}/{output}")
    rows = read_rows(tmp_path / output)

    assert result.code == 3
    assert {row["row_number"]: row["text"] for row in rows} == {
        number: text for number, text in enumerate(given, start=1) if text != "refuse"
    }
    assert [row["row_number"] for row in read_jsonl(tmp_path / f"{output}.rejects.jsonl")] == [1, 257, 641]


@pytest.mark.parametrize("output", ["out.jsonl", "out.parquet", "out/"])
def test_rows_of_several_files_name_their_file(run: Run, tmp_path: Path, output: str) -> None:
    """Column `file` names the file if a job has several."""
    for name, text in (("a.parquet", "one"), ("b.parquet", "two")):
        write_rows(tmp_path / name, [text])
    run("embed", "-i", f"{tmp_path}/*.parquet", "-o", f"{tmp_path}/{output}", "--drop", "text")

    assert [{**row, "vector": None} for row in read_rows(tmp_path / output)] == [
        {"row_number": 1, "file": f"{tmp_path}/{name}", "vector": None} for name in ("a.parquet", "b.parquet")
    ]


def write_rows(path: Path, given: list[str]) -> None:
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"text": given}), path)
    elif path.suffix == ".jsonl":
        write_jsonl(path, [{"text": text} for text in given])
    else:
        path.write_text("\n".join([*(["text"] if path.suffix == ".csv" else []), *given]) + "\n")


def test_npy_has_a_row_for_each_row(run: Run, tmp_path: Path, small_chunks: None) -> None:
    """Row i of the array is the vector of row i, or NaN if it was rejected."""
    given = [*texts(600), "refuse", "last"]
    (tmp_path / "in.txt").write_text("\n".join(given))
    output = tmp_path / "out.npy"
    result = run("embed", "-i", f"{tmp_path}/in.txt", "-o", str(output), "--dtype", "float16")

    found = np.load(output)
    assert (result.code, found.dtype, found.shape) == (3, np.float16, (602, DIM))
    assert np.isnan(found[600]).all()
    wanted = np.stack([vector(text) for text in given]).astype(np.float16)
    assert np.array_equal(np.delete(found, 600, 0), np.delete(wanted, 600, 0))


@pytest.mark.parametrize(("dtype", "stored", "width"), [("int8", np.int8, DIM), ("binary", np.uint8, DIM // 8)])
@pytest.mark.parametrize("suffix", ["npy", "parquet"])
def test_small_vectors(run, tmp_path, dtype, stored, width, suffix):
    """int8 and binary vectors are stored as the server sends them; rejected rows of .npy are 0."""
    (tmp_path / "in.txt").write_text("one\nrefuse\ntwo\n", encoding="utf-8")
    output = tmp_path / f"out.{suffix}"
    result = run("embed", "-i", f"{tmp_path}/in.txt", "-o", str(output), "--dtype", dtype)

    if suffix == "npy":
        found, answered = np.load(output), [0, 2]
        assert not found[1].any()
    else:
        column = pq.read_table(output)["vector"]
        assert column.type.value_type == pa.from_numpy_dtype(stored)
        found, answered = np.array(column.to_pylist(), stored), [0, 1]
    vectors = np.stack([vector("one"), vector("two")])
    expected = np.packbits(vectors > 0, axis=1) if dtype == "binary" else np.rint(vectors * 127)
    assert (result.code, found.dtype, found.shape[1]) == (3, stored, width)
    np.testing.assert_array_equal(found[answered], expected)


def test_bad_rows_are_reported_with_their_reasons(run: Run, tmp_path: Path) -> None:
    """Bad rows go to their own file with exit code 3, and others have results in order."""
    rows = [{"text": "a", "id": 0}, {"txt": "b"}, "{", {"text": "refuse", "id": 3}, {"text": 5}, {"text": "f", "id": 5}]
    output = tmp_path / "out.jsonl"
    path = write_jsonl(tmp_path / "in.jsonl", rows)
    result = run("embed", "-i", path, "-o", str(output))

    assert succeeds(result, code=3)
    assert result.err.splitlines()[1:] == [
        f"bertline: 4 rows were rejected; see `{output}.rejects.jsonl` for the reasons"
    ]
    assert [row["id"] for row in read_jsonl(output)] == [0, 5]
    rejects = read_jsonl(tmp_path / "out.jsonl.rejects.jsonl")
    assert [item["place"] for item in rejects] == [f"`{path}`, line {number}" for number in (2, 3, 4, 5)]
    assert [item["reason"] for item in rejects] == [
        "missing key `text`; name another column with --column",
        "not JSON (Expecting property name enclosed in double quotes at column 2)",
        "text: refused",
        "`text` must be a string",
    ]
    assert rejects[2]["row"] == {"text": "refuse", "id": 3}


@pytest.mark.parametrize("refuses", [True, False], ids=["by the server", "by the reply"])
def test_rows_without_numbers_are_rejected(run: Run, server: FakeServer, tmp_path: Path, refuses: bool) -> None:
    """Rows with NaN are rejected, whether the server refuses or returns them."""
    given = [f"{number}{' bad' * (number % 7 == 0)}" for number in range(200)]

    def embed(request: pb.EmbedRequest) -> pb.EmbedReply:
        bad = [index for index, text in enumerate(request.texts) if "bad" in text]
        if refuses and bad:
            raise Refusal("INTERNAL", f"texts[{bad[0]}]: NaN", [(f"texts[{bad[0]}]", "NaN")])
        vectors = np.array([vector(text) for text in request.texts], dtype="<f4")
        vectors[bad] = np.nan
        return pb.EmbedReply(model=pb.ModelRef(name="fake", version="1"), dim=DIM, vectors=vectors.tobytes())

    server.reply("Embed", embed)
    output = tmp_path / "out.jsonl"
    path = write_jsonl(tmp_path / "in.jsonl", [{"text": text} for text in given])
    result = run("embed", "-i", path, "-o", str(output), "--keep", "text")

    assert result.code == 3
    good = [text for text in given if "bad" not in text]
    assert [(row["text"], row["vector"]) for row in read_jsonl(output)] == [(text, numbers(text)) for text in good]
    rejects = read_jsonl(tmp_path / "out.jsonl.rejects.jsonl")
    assert [item["row"]["text"] for item in rejects] == [text for text in given if "bad" in text]
    assert {item["reason"] for item in rejects} == {"text: NaN" if refuses else "reply: the vector is not finite"}


def test_a_folder_of_parts(run: Run, tmp_path: Path, small_chunks: None) -> None:
    """An output that ends with / is a folder of Parquet files, which together hold all rows in order.

    Only `_job.json` lists all inputs; parts hold their number.
    """
    given = texts(1500)
    for number in range(3):
        (tmp_path / f"in{number}.txt").write_text("\n".join(given[number * 500 : number * 500 + 500]))
    output = tmp_path / "out"
    result = run("embed", "-i", f"{tmp_path}/in*.txt", "-o", f"{output}/")

    assert result.code == 0
    assert (output / "_SUCCESS").exists()
    parts = sorted(output.glob("*.parquet"))
    assert len(parts) == 6
    metadata = [json.loads(pq.read_schema(part).metadata[b"bertline"]) for part in parts]
    assert [(item["command"], item["num_inputs"], "inputs" in item) for item in metadata] == [("embed", 3, False)] * 6
    assert len({item["inputs_digest"] for item in metadata}) == 1
    assert len(json.loads((output / "_job.json").read_text())["inputs"]) == 3
    found = pa.concat_tables(pq.read_table(part) for part in parts)
    assert np.array_equal(np.stack(found["vector"].to_numpy()), np.stack([vector(text) for text in given]))
    assert fails(run("embed", "-i", f"{tmp_path}/in*.txt", "-o", f"{output}/"), "already exists")


def test_object_stores(run: Run, tmp_path: Path) -> None:
    """The job reads and writes URLs through fsspec, patterns included."""
    system = file_of("memory://x").system
    for number in range(2):
        system.pipe_file(f"/jobs/in{number}.jsonl", f'{{"text": "text {number}"}}\n'.encode())
    result = run("embed", "-i", "memory://jobs/in*.jsonl", "-o", "memory://jobs/out.jsonl")

    assert succeeds(result)
    rows = [json.loads(line) for line in system.cat_file("/jobs/out.jsonl").splitlines()]
    assert [row["vector"] for row in rows] == [numbers("text 0"), numbers("text 1")]
    assert sorted(path.rpartition("/")[2] for path in system.ls("/jobs", detail=False)) == [
        "in0.jsonl",
        "in1.jsonl",
        "out.jsonl",
    ]


def test_rows_with_the_wrong_number_of_values(run: Run, tmp_path: Path) -> None:
    """A CSV row with a wrong number of values, invalid UTF-8 or no values is rejected."""
    (tmp_path / "in.csv").write_bytes(b"id,text\n1,a\n2\n3,b,c\n4,\xff\n  \n5,d\n")
    result = run("embed", "-i", f"{tmp_path}/in.csv")

    assert result.code == 3
    assert [row["id"] for row in result.rows] == ["1", "5"]
    assert [line.rpartition("`, ")[2] for line in result.err.splitlines()] == [
        "line 3: 1 values, but the header has 2 columns",
        "line 4: 3 values, but the header has 2 columns",
        "line 5: not UTF-8; convert the file",
        "line 6: the line is empty; correct it, or skip such lines with --skip-empty",
    ]


def test_an_interrupted_job_resumes(run: Run, server: FakeServer, tmp_path: Path, small_chunks: None) -> None:
    """A resumed job sends no finished part again, and writes the same output."""
    rows = [{"text": text, "id": number} for number, text in enumerate(texts(2000))]
    rows[700] = {"text": "refuse", "id": 700}
    path = write_jsonl(tmp_path / "in.jsonl", rows)
    wanted, output = tmp_path / "wanted.parquet", tmp_path / "out.parquet"
    run("embed", "-i", path, "-o", str(wanted))
    server.calls.clear()
    failed = interrupt(run, server, "embed", "-i", path, "-o", str(output), after=12)
    num_parts = len(list((tmp_path / "out.parquet.job").glob("part-*")))

    assert (failed.code, output.exists()) == (1, False)
    assert "run the same command again to resume" in failed.err
    assert 0 < num_parts < 8
    assert run("embed", "-i", path, "-o", str(output), "--in-flight", "1").code == 3
    again = {text for request in received(server) for text in request.texts}
    assert len(again) <= 2000 - 256 * num_parts
    assert output.read_bytes() == wanted.read_bytes().replace(b"wanted", b"out")
    assert (tmp_path / "out.parquet.rejects.jsonl").read_text() == (
        tmp_path / "wanted.parquet.rejects.jsonl"
    ).read_text()
    assert not (tmp_path / "out.parquet.job").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--truncate"], "belongs to another job (options differ)"),
        (["-i", "more.txt"], "belongs to another job (inputs differ)"),
        ([], "`in.txt` has changed since `out.jsonl.job` was started; start again with --restart"),
        (None, "belongs to another job (manifest differ)"),
    ],
    ids=["options", "inputs", "rows", "model"],
)
def test_another_job_does_not_resume(
    run: Run,
    server: FakeServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    small_chunks: None,
    change: list[str] | None,
    message: str,
) -> None:
    """Other options, files, rows or model settings are refused, and --restart starts again."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "more.txt").write_text("more")
    (tmp_path / "in.txt").write_text("\n".join(texts(1000)))
    interrupt(run, server, "embed", "-i", "in.txt", "-o", "out.jsonl", after=12)
    if change == []:
        (tmp_path / "in.txt").write_text("\n".join(texts(1000, seed=1)))
    if change is None:
        server.models = [FakeModel(manifest={"settings": {"pooling": "mean"}})]
    arguments = ("embed", "-i", "in.txt", "-o", "out.jsonl", *(change or []))
    before = sorted((tmp_path / "out.jsonl.job").glob("part-*"))
    result = run(*arguments)

    assert (result.code, result.out) == (1, "")
    assert message in result.err
    assert sorted((tmp_path / "out.jsonl.job").glob("part-*")) == before != []
    assert run(*arguments, "--restart").code == 0


def test_a_busy_server_is_retried(run: Run, server: FakeServer, tmp_path: Path) -> None:
    """The job retries while the server is overloaded, also in its check of the model at the end, up to --patience."""
    (tmp_path / "in.txt").write_text("\n".join(texts(200)))
    server.overload(method="Embed", times=5, pushback_ms=None)
    server.fail(method="GetModel", times=4)
    result = run("embed", "-i", f"{tmp_path}/in.txt")
    server.fail("RESOURCE_EXHAUSTED", "full", method="Embed", times=None)

    assert (result.code, len(result.rows)) == (0, 200)
    assert len(received(server, "GetModel")) == 5
    assert fails(run("embed", "text", "--patience", "0"), "is overloaded (full)")


class ReplacedModel(FakeModel):
    """Model of the same version with another network."""

    @property
    def info(self) -> pb.ModelInfo:
        info = super().info
        info.digest = "11" * 32
        return info


def replacing(server: FakeServer, model: FakeModel) -> Callable[[pb.EmbedRequest], pb.EmbedReply]:
    """Return a reply that replaces the model after the first request."""

    def embed(request: pb.EmbedRequest) -> pb.EmbedReply:
        server.models = [model]
        vectors = np.stack([vector(text) for text in request.texts])
        return pb.EmbedReply(vectors=vectors.tobytes(), dim=DIM)

    return embed


@pytest.mark.parametrize(
    ("model", "output"), [(ReplacedModel(), "out.jsonl"), (FakeModel(manifest={"pooling": "mean"}), "out/")]
)
def test_a_model_that_is_replaced_meanwhile(
    run: Run, server: FakeServer, tmp_path: Path, small_chunks: None, model: FakeModel, output: str
) -> None:
    """A job whose model is replaced writes no output, and its parts stay until --restart."""
    (tmp_path / "in.txt").write_text("\n".join(texts(1000)))
    server.reply("Embed", replacing(server, model))
    arguments = ("embed", "-i", f"{tmp_path}/in.txt", "-o", f"{tmp_path}/{output}")
    parts = tmp_path / ("out" if output == "out/" else "out.jsonl.job")

    assert fails(run(*arguments), "the model `fake/1` was replaced while the job ran; start again with --restart")
    assert len(list(parts.glob("part-*"))) == 4
    assert not (tmp_path / "out.jsonl").exists()
    assert not (parts / "_SUCCESS").exists()
    assert "belongs to another job" in run(*arguments).err
    assert run(*arguments, "--restart").code == 0


def test_a_model_that_is_replaced_while_rows_are_printed(run: Run, server: FakeServer) -> None:
    """The error at the end states that two models answered."""
    server.reply("Embed", replacing(server, ReplacedModel()))
    result = run("embed", "-i", "-", stdin=b"text\n")

    assert (result.code, len(result.rows)) == (1, 1)
    assert "the model `fake/1` was replaced while the job ran; run the same command again" in result.err


@pytest.mark.parametrize("model", [[], ["-m", "fake"], ["-m", "fake/1"]], ids=["any", "a model", "a version"])
def test_a_model_that_is_being_loaded(
    run: Run, server: FakeServer, tmp_path: Path, small_chunks: None, model: list[str]
) -> None:
    """A job waits for a loading model, is pinned to it, and can be resumed."""
    (tmp_path / "in.txt").write_text("".join(f"{text}\n" for text in texts(600)))
    arguments = ("embed", "-i", f"{tmp_path}/in.txt", "-o", f"{tmp_path}/out.jsonl", *model)
    server.models = [FakeModel(state="loading")]
    server.reply("GetModel", lambda request: loaded(server))
    begun = interrupt(run, server, *arguments, after=8)

    assert "broken" in begun.err
    job = json.loads((tmp_path / "out.jsonl.job" / "_job.json").read_text())
    assert (job["model"], job["digest"]) == ("fake/1", "00" * 32)
    assert run(*arguments).code == 0


def loaded(server: FakeServer) -> pb.ModelInfo:
    """Return the model and mark it as loaded."""
    server.models = [FakeModel()]
    return server.models[0].info


def test_two_runs_cannot_use_one_folder(run: Run, server: FakeServer, tmp_path: Path) -> None:
    """A run holds a lock while it works, and a second run is refused."""
    (tmp_path / "in.txt").write_text("text")
    arguments = ("embed", "-i", f"{tmp_path}/in.txt", "-o", f"{tmp_path}/out.jsonl")
    is_locked = []

    def embed(request: pb.EmbedRequest) -> pb.EmbedReply:
        with open(tmp_path / "out.jsonl.job" / "_lock") as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_locked.append(True)
        return pb.EmbedReply(vectors=vector("text").tobytes(), dim=DIM)

    server.reply("Embed", embed)
    assert run(*arguments).code == 0
    (tmp_path / "out.jsonl.job").mkdir()
    with open(tmp_path / "out.jsonl.job" / "_lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        assert "another run is at work" in run(*arguments, "--force").err
    assert is_locked == [True]


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "npy"])
def test_kill_at_any_moment(target: str, tmp_path: Path, suffix: str) -> None:
    """A job that is killed many times writes the bytes of an undisturbed one."""
    rows = [{"text": text, "id": number} for number, text in enumerate(texts(60_000))]
    for number in range(0, 60_000, 9_999):
        rows[number] = {"text": "refuse", "id": number}
    path = write_jsonl(tmp_path / "in.jsonl", rows)
    source = random.Random(suffix)

    def start(output: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "bertline.cli", "embed", "-i", path, "-o", str(output), "-t", target]
        return subprocess.Popen(command, stderr=subprocess.DEVNULL)

    wanted, output = tmp_path / f"wanted.{suffix}", tmp_path / f"out.{suffix}"
    assert start(wanted).wait() == 3
    codes, parts = [], tmp_path / f"out.{suffix}.job"

    def names() -> list[str]:
        with suppress(FileNotFoundError):
            return sorted([*os.listdir(tmp_path), *os.listdir(parts)])
        return []

    while not output.exists() or parts.exists():
        before = names()
        with start(output) as process:
            while names() == before and process.poll() is None:  # starting may take longer than the job
                time.sleep(0.01)
            try:
                codes.append(process.wait(source.uniform(0.0, 2.0)))
            except subprocess.TimeoutExpired:
                os.kill(process.pid, signal.SIGKILL)
                codes.append(process.wait())

    assert len(codes) > 1
    assert set(codes) <= {-signal.SIGKILL, 3}
    assert output.read_bytes() == wanted.read_bytes()
    rejects = [tmp_path / f"{name}.{suffix}.rejects.jsonl" for name in ("wanted", "out")]
    assert rejects[0].read_bytes() == rejects[1].read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {
        "in.jsonl",
        wanted.name,
        output.name,
        *(item.name for item in rejects),
        *([f"{item.name}.description.json" for item in (wanted, output)] if suffix == "npy" else []),
    }


def test_names_of_parts_stay(run: Run, server: FakeServer, tmp_path: Path) -> None:
    """Parts have the same names in each version: a job that one version began is resumed by the next."""
    (tmp_path / "in.txt").write_text("a\n\nb c\n")
    (tmp_path / "in.jsonl").write_text('{"text": "a", "n": 1}\n')
    run("embed", "-i", f"{tmp_path}/in.txt", "-i", f"{tmp_path}/in.jsonl", "-o", f"{tmp_path}/out/")

    assert sorted(path.name for path in (tmp_path / "out").glob("part-*")) == [
        "part-00000-00000-c00abbd7eb0c.parquet",
        "part-00001-00000-7231cf38b372.parquet",
    ]


ONE, OTHER = "1" * 16, "2" * 16


def test_outputs_name_the_space(run: Run, server: FakeServer, tmp_path: Path) -> None:
    """Parquet has it in its metadata, an .npy file in a file next to it; --space refuses another one."""
    server.models = [FakeModel(space=ONE)]
    for suffix in ("parquet", "npy"):
        assert run("embed", "-i", "-", "-o", f"{tmp_path}/out.{suffix}", "--space", ONE, stdin=b"a text\n").code == 0
    refused = run("embed", "-i", "-", "-o", f"{tmp_path}/no.npy", "--space", OTHER, stdin=b"a text\n")

    found = json.loads(pq.read_schema(tmp_path / "out.parquet").metadata[b"bertline"])
    assert found["space"] == ONE
    described = json.loads((tmp_path / "out.npy.description.json").read_text())
    assert described == found | {"options": found["options"] | {"output_format": ".npy"}}
    assert f"gives vectors of space `{ONE}`, not of `{OTHER}`" in refused.err
    assert sorted(path.name for path in tmp_path.glob("no*")) == []
    assert fails(run("embed", "a", "--space", "embed"), "`space` must be 16 hexadecimal digits", code=2)


def test_space_that_changes_while_a_job_runs(run: Run, server: FakeServer, tmp_path: Path, small_chunks: None) -> None:
    """A job ends at the first vector of another space, and is not resumed with the new one."""
    (tmp_path / "in.txt").write_text("\n".join(texts(600)))
    server.models = [FakeModel(space=ONE)]
    arguments = ("embed", "-i", f"{tmp_path}/in.txt", "-o", f"{tmp_path}/out.jsonl", "--in-flight", "1")

    def embed(request: pb.EmbedRequest) -> pb.EmbedReply:
        server.models = [FakeModel(space=ONE if len(received(server)) < 7 else OTHER)]
        vectors = np.stack([vector(text) for text in request.texts])
        return pb.EmbedReply(model=server.models[0].ref, vectors=vectors.tobytes(), dim=DIM)

    server.reply("Embed", embed)

    assert f"while the job ran: vectors are of space `{OTHER}`, not of `{ONE}`; start again" in run(*arguments).err
    assert "belongs to another job (space differ)" in run(*arguments).err
