"""Rows of every kind: each has one result or one rejection, in order, in every format."""

from __future__ import annotations

import csv
import io
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bertline._convert import MAX_REQUEST_BYTES
from bertline.errors import InvalidInput, InvalidItem, Overloaded
from bertline.jobs.progress import Progress
from bertline.jobs.rows import Rejection
from bertline.jobs.send import BatchSender
from bertline.results import Usage
from bertline.testing import FakeModel, FakeServer
from tests.clients.command import Run, fails, interrupt, numbers, read_jsonl, read_rows, received

LETTERS = st.characters(exclude_categories=["Cs"])
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(st.characters(), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(LETTERS, max_size=3), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(["text", "n", "vector", "input_vector", "row", "place", "", "ünï", "a.b", "\ud800"])
ROWS = st.fixed_dictionaries({"text": st.sampled_from(["a", "b c", "refuse", " "])}, optional={"n": ANYTHING})
LINES = st.lists(
    ROWS.map(json.dumps)
    | st.dictionaries(NAMES, ANYTHING, max_size=4).map(json.dumps)
    | st.sampled_from(
        ["", "{", "null", "[]", '"x"', '{"text": "a", "text": "b"}', '{"text": "a", "n": 1e999}', "\x00"]
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=LINES, suffix=st.sampled_from(["jsonl", "parquet", "npy"]))
def test_every_line_of_jsonl_is_accounted_for(run: Run, lines: list[str], suffix: str) -> None:
    """Each line has a result or is rejected, in the order of the input."""
    lines = ['{"text": "first"}', *lines]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "in.jsonl").write_text("\n".join(lines) + "\n")
        result = run("embed", "-i", f"{name}/in.jsonl", "-o", f"{name}/out.{suffix}")
        vectors = read_vectors(folder / f"out.{suffix}")
        rejects = folder / f"out.{suffix}.rejects.jsonl"
        rejected = [row["place"] for row in read_jsonl(rejects)] if rejects.exists() else []

        assert result.code == (3 if rejected else 0), result
        assert {path.name for path in folder.iterdir()} <= {"in.jsonl", f"out.{suffix}", rejects.name}
    places = [int(place.rpartition(" ")[2]) for place in rejected]
    good = [number for number in range(1, len(lines) + 1) if number not in places]
    if suffix == "npy":
        assert [number for number, vector in enumerate(vectors, start=1) if np.isnan(vector).any()] == places
        vectors = [vector for vector in vectors if not np.isnan(vector).any()]

    assert places == sorted(set(places))
    assert [np.float32(vector).tolist() for vector in vectors] == [
        np.float32(numbers(json.loads(lines[number - 1])["text"])).tolist() for number in good
    ]


def read_vectors(path: Path) -> list[Any]:
    return list(np.load(path)) if path.suffix == ".npy" else [row["vector"] for row in read_rows(path)]


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.text(LETTERS, max_size=8), min_size=1, max_size=8))
def test_csv_gives_what_python_wrote(run: Run, tmp_path: Path, texts: list[str]) -> None:
    """Values of CSV pass through unchanged, with quotes, line feeds and NUL."""
    stream = io.StringIO()
    csv.writer(stream, quoting=csv.QUOTE_ALL).writerows([["id", "text"], *([text, "x"] for text in texts)])
    (tmp_path / "in.csv").write_bytes(b"\xef\xbb\xbf" + stream.getvalue().encode())

    run("embed", "-i", f"{tmp_path}/in.csv", "-o", f"{tmp_path}/out.jsonl", "--force")

    assert [row["id"] for row in read_jsonl(tmp_path / "out.jsonl")] == texts


def test_no_part_of_an_object_is_dropped(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row whose objects, lists or numbers differ in type from the first rows is rejected, not cut."""
    monkeypatch.setattr("bertline.jobs.rows.CHUNK_ROWS", 256)
    rows = [
        {"text": "a", "more": {"a": 1, "b": [{"c": "x"}]}, "list": [], "n": 1.5, "count": 1},
        {"text": "b", "more": None, "list": ["y"], "n": 2, "count": 2},
    ]
    odd = [
        {"more": {"z": 1}},
        {"more": {"b": [{"z": 1}]}},
        {"list": "xyz"},
        {"n": True},
        {"n": 2**70},
        {"count": 9.99},
        {"more": {"a": -0.5}},
        {"list": ["\ud800"]},
        {"new": 1},
    ]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows * 200))
    with open(tmp_path / "in.jsonl", "a") as file:
        file.writelines(json.dumps({"text": "odd", **row}) + "\n" for row in odd)
    run("embed", "-i", f"{tmp_path}/in.jsonl", "-o", f"{tmp_path}/out.parquet")

    assert pq.read_table(tmp_path / "out.parquet").drop_columns("vector").to_pylist() == [
        {"row_number": number, **row} for number, row in enumerate(rows * 200, start=1)
    ]
    rejects = read_jsonl(tmp_path / "out.parquet.rejects.jsonl")
    assert [reject["row"] for reject in rejects] == [{"text": "odd", **row} for row in odd]
    reasons = [reject["reason"] for reject in rejects]
    assert reasons[5].startswith("`count` is not of type int64, as in the first rows; correct it, leave it out with")
    assert reasons[-1] == "`new` is not a column of the first rows; leave it out with --drop, or write JSONL"


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ('id,text\n1,a\n2,"b\n3,c\n4,d\n', 3),
        ('id,text\n1,"b\n3,c\n', 2),
        ('text,"id\nhello,1\nworld,2\n', 1),
        ('"id,text\n1,a\n', 1),
    ],
)
def test_a_quote_that_is_not_closed(run: Run, tmp_path: Path, content: str, line: int) -> None:
    """An open quote is refused, because the rest of the file would be one value."""
    (tmp_path / "in.csv").write_text(content)
    (tmp_path / "good.csv").write_text('id,text\n1,a\n2,"b\n3,c"')

    assert fails(
        run("embed", "-i", f"{tmp_path}/in.csv", "-o", f"{tmp_path}/out.jsonl"),
        f"`{tmp_path}/in.csv`, line {line}: a quote is opened here and never closed",
    )
    assert len(run("embed", "-i", f"{tmp_path}/good.csv").rows) == 2


def test_the_header_of_csv_belongs_to_its_rows(
    run: Run, server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job does not resume if the columns in the header have another order."""
    monkeypatch.setattr("bertline.jobs.rows.CHUNK_ROWS", 256)
    path, rows = tmp_path / "in.csv", "".join(f"title {number},text {number}\n" for number in range(600))
    path.write_text(f"title,text\n{rows}")
    interrupt(run, server, "embed", "-i", str(path), "-o", f"{tmp_path}/out.jsonl", after=8)
    path.write_text(f"text,title\n{rows}")
    result = run("embed", "-i", str(path), "-o", f"{tmp_path}/out.jsonl")

    assert result.code == 1
    assert f"`{path}` has changed since" in result.err


def test_named_columns_must_exist(run: Run, server: FakeServer, tmp_path: Path) -> None:
    """A row without the column of --column is rejected, even if it is optional; null counts as present."""
    rows = [{"text": "a", "premise": "b"}, {"text": "a", "premise": None}, {"text": "a", "premises": "b"}]
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = run("classify", "-i", str(path), "--column", "text_pair=premise")

    assert (result.code, len(result.rows)) == (3, 2)
    assert "line 3: missing key `premise`; name another column with --column" in result.err
    assert [item.text_pair for item in received(server, "Classify")[0].inputs] == ["b", ""]


def test_rows_with_and_without_a_pair(run: Run, server: FakeServer, tmp_path: Path) -> None:
    """An empty cell of the pair is no pair, as in training: the row is a single text."""
    path = tmp_path / "in.tsv"
    path.write_text("text\ttext_pair\none\ttwo\nthree\t\nfour\t \n")
    result = run("classify", "-i", str(path))

    assert (result.code, len(result.rows)) == (0, 3)
    assert [item.HasField("text_pair") for item in received(server, "Classify")[0].inputs] == [True, False, False]


@pytest.mark.parametrize("options", [(), ("--truncate",), ("--no-truncate",)])
def test_rows_that_are_cut_are_reported(run: Run, server: FakeServer, tmp_path: Path, options: tuple[str, ...]) -> None:
    """The command reports truncated rows unless --truncate or --no-truncate is given."""
    server.models = [FakeModel(max_seq_length=8, manifest={"truncate": True})]
    (tmp_path / "in.txt").write_text("short\n" + "a text of more words than eight\n" * 2)
    result = run("embed", "-i", f"{tmp_path}/in.txt", "-o", f"{tmp_path}/out.jsonl", *options)
    is_reported = "2 of 3 rows were truncated to the model's maximum length, as in its evaluation" in result.err

    assert (result.code, is_reported) == (3 if options == ("--no-truncate",) else 0, not options)
    assert len(read_jsonl(tmp_path / "out.jsonl")) == (1 if result.code else 3)


def sender_to(method: Callable[..., Any]) -> BatchSender:
    """Return a sender of a job, whose client embeds by this function."""
    options = {"operation": None, "method": "embed", "options": {}, "model_name": "", "model_version": ""}
    spec: Any = SimpleNamespace(**options, patience_s=0)
    client: Any = SimpleNamespace(embed=method)
    return BatchSender(spec, client, Progress())


def test_requests_that_are_too_large_are_split() -> None:
    """A job splits a request that is too large, and ends on errors in other fields."""

    def ask(inputs: list[int], **options: Any) -> list[int]:
        if sum(inputs) > 3:
            raise InvalidInput.of([InvalidItem(None, "inputs", f"{sum(inputs)} contexts came")])
        if 0 in inputs:
            raise InvalidInput.of([InvalidItem(None, "top_k", "must be less")])
        return inputs

    sender = sender_to(ask)

    assert sender._send([1, 2, 9, 3, 1], Usage()) == [1, 2, Rejection("inputs: 9 contexts came"), 3, 1]
    with pytest.raises(InvalidInput, match="top_k: must be less"):
        sender._send([1, 0], Usage())


def test_a_refused_row_is_retried_before_it_is_rejected() -> None:
    """A job retries a refused row once, because the server may have been slow for a moment."""
    refusals = {"slow": 1, "huge": 2}

    def ask(inputs: list[str], **options: Any) -> list[str]:
        if len(inputs) > 1 or refusals.get(inputs[0]):
            refusals[inputs[0]] = refusals.get(inputs[0], 0) - (len(inputs) == 1)
            error = Overloaded("the request takes about 11 s")
            error.is_final = True
            raise error
        return inputs

    sender = sender_to(ask)

    found = sender._send(["slow", "huge", "text"], Usage())
    assert found == ["slow", Rejection("the request takes about 11 s"), "text"]


def test_requests_are_counted_in_bytes(run: Run, server: FakeServer, tmp_path: Path) -> None:
    """The limit of a request counts bytes, not characters."""
    (tmp_path / "in.txt").write_text("\n".join(["猫" * 1000] * 500))
    run("embed", "-i", f"{tmp_path}/in.txt", "--batch-size", "500", "-o", f"{tmp_path}/out.npy")

    assert sum(len(request.texts) for request in received(server)) == 500
    assert max(sum(len(text.encode()) for text in request.texts) for request in received(server)) <= MAX_REQUEST_BYTES
