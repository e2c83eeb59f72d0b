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
import pyarrow as pa
import pyarrow.json
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
        assert {path.name for path in folder.iterdir()} <= {
            "in.jsonl",
            f"out.{suffix}",
            "out.npy.description.json",
            rejects.name,
        }
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


DIALECTS: dict[str, dict[str, Any]] = {
    "in.csv": {"quoting": csv.QUOTE_ALL},
    "minimal.csv": {},
    "backslash.csv": {"escapechar": "\\", "doublequote": False},
    "backslash_all.csv": {"escapechar": "\\", "doublequote": False, "quoting": csv.QUOTE_ALL},
    "pandas.tsv": {"delimiter": "\t", "lineterminator": "\n"},
    "all.tsv": {"delimiter": "\t", "quoting": csv.QUOTE_ALL},
}
"""Dialects of Python's csv, which pandas and others write with."""


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(st.text(LETTERS, max_size=8) | st.text('"\\,\t\n ab', max_size=8), max_size=8),
    name=st.sampled_from(sorted(DIALECTS)),
)
def test_csv_gives_what_python_wrote(run: Run, tmp_path: Path, texts: list[str], name: str) -> None:
    """Values of CSV and quoted TSV pass through unchanged, with quotes, backslashes, line feeds and NUL."""
    texts, stream = ['say "hi",\tthere', *texts], io.StringIO()
    csv.writer(stream, **DIALECTS[name]).writerows([["id", "text"], *([text, "x"] for text in texts)])
    (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + stream.getvalue().encode())

    run("embed", "-i", f"{tmp_path}/{name}", "-o", f"{tmp_path}/out.jsonl", "--force")

    assert [row["id"] for row in read_jsonl(tmp_path / "out.jsonl")] == texts


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("in.csv", '1,"a" b\n', "line 2: text follows a closing quote; write a quote inside a value twice"),
        ("in.csv", '1,C:\\x\n2,"say \\"hi\\" to"\n', "line 3: text follows a closing quote"),
        ("in.csv", '1,C:\\x\n2,say \\"hi\\"\n', "line 3: quotes with a backslash before them, but earlier backslashes"),
        ("in.tsv", '1\t"plain"\n2\t"say ""hi"""\n', "line 3: a quoted value, but earlier ones may have no quotes"),
    ],
)
def test_quotes_of_two_meanings(run: Run, tmp_path: Path, name: str, content: str, message: str) -> None:
    """A file is refused whose quotes are neither of the one nor of the other way."""
    path = tmp_path / name
    path.write_text(("id\ttext\n" if name == "in.tsv" else "id,text\n") + content)

    assert fails(run("embed", "-i", str(path), "-o", f"{tmp_path}/out.jsonl"), f"`{path}`, {message}")


DRIFTING = [None, [], {}, 1, 2.5, 2**53 + 1, 2**70, True, "a", "\ud800", [1], [None], [2.5], ["x"], [[]], [{}]]
DRIFTING += [{"a": 1}, {"a": []}, {"b": {"c": 1}}, {"a": {}}, {"a": "x"}, {"": 1, "\ud800": 2}, [[[1]]] * 3]
DRIFTS = st.lists(st.dictionaries(st.sampled_from("nm"), st.sampled_from(DRIFTING) | ANYTHING), min_size=1, max_size=10)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=DRIFTS, output=st.sampled_from(["out.parquet", "out/"]), after=st.integers(0, 5))
def test_drift_costs_no_row(run: Run, server: FakeServer, rows: list[Any], output: str, after: int) -> None:
    """Rows of any JSON have results in Parquet with all their values, also if their kinds change in later parts."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("bertline.jobs.rows.CHUNK_ROWS", 2)
        Path(f"{folder}/in.jsonl").write_text("".join(json.dumps({"text": "a", **row}) + "\n" for row in rows))
        arguments = ["embed", "-i", f"{folder}/in.jsonl", "-o", f"{folder}/{output}"]
        interrupt(run, server, *arguments, after=after)
        assert run(*arguments, "--force").code == 0

        paths = sorted(Path(folder, output).glob("*.parquet")) if output == "out/" else [Path(folder, output)]
        tables = [pq.read_table(path) for path in paths]
        found = [row for table in tables for row in table.to_pylist()]
        assert all(table.schema.equals(tables[0].schema, check_metadata=True) for table in tables)
    assert len(found) == len(rows)
    for row, given_row in zip(found, rows, strict=True):
        assert row["vector"] == np.float32(numbers("a")).tolist()
        assert all(holds(row[name], given_row.get(name)) for name in row.keys() & {"n", "m"})
    assert {name for row in rows for name in row} <= set(found[0])


def holds(found: Any, value: Any) -> bool:
    """Return True if a value of Parquet is a JSON value, or text of it; keys without a value may be missing."""
    if found is None or value is None:
        return found is value
    if isinstance(found, str) and not isinstance(value, str):
        return holds(json.loads(found), value)
    if isinstance(value, dict):
        given = {utf8(name): item for name, item in value.items()}
        found = {utf8(name): item for name, item in found.items()}
        return all(holds(found.get(name), given.get(name)) for name in found | given)
    if isinstance(value, list):
        return len(found) == len(value) and all(map(holds, found, value))
    if isinstance(value, str):
        return utf8(found) == utf8(value)
    return isinstance(found, bool) == isinstance(value, bool) and (
        found == value or (found != found and value != value)
    )


def utf8(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def test_drift_as_pyarrow_reads_it(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns and types of parts whose values drift are those that pyarrow finds in the whole file."""
    monkeypatch.setattr("bertline.jobs.rows.CHUNK_ROWS", 1)
    rows = [
        {"text": "a", "n": 1, "list": [], "deep": {"a": 1}, "null": None, "lists": [[1]]},
        {"text": "b", "n": None, "list": ["x"], "deep": {"a": 2.5, "b": [{"c": True}]}, "null": "y", "lists": None},
        {"text": "c", "n": 2.5, "list": None, "deep": None, "lists": [[], [2.5]], "new": {"a": {"b": 1}}},
    ]
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = run("embed", "-i", str(path), "-o", f"{tmp_path}/out.parquet")
    found = pq.read_table(tmp_path / "out.parquet").drop_columns(["row_number", "vector"])

    assert (result.code, len(result.err.splitlines())) == (0, 1)
    assert found.equals(pa.json.read_json(path))


def test_values_that_no_type_holds_are_text(run: Run, tmp_path: Path) -> None:
    """Values of several kinds become text, and a line names their columns."""
    rows = [{"text": "a", "id": 7, "more": {"a": [1, "x"]}}, {"text": "b", "id": "x7", "more": None}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = run("embed", "-i", f"{tmp_path}/in.jsonl", "-o", f"{tmp_path}/out.parquet")
    found = pq.read_table(tmp_path / "out.parquet")

    assert result.err.splitlines()[0] == (
        "bertline: no single type holds all values of `id`, `more`: strings stay, other values are JSON text"
    )
    assert found.select(["id", "more"]).to_pylist() == [
        {"id": "7", "more": {"a": ["1", "x"]}},
        {"id": "x7", "more": None},
    ]


@pytest.mark.parametrize(
    ("name", "output"), [("in.jsonl", "out.jsonl"), ("in.csv", "out/"), ("in.parquet", "out.parquet")]
)
@pytest.mark.parametrize("command", ["embed", "classify"])
def test_rejected_rows_can_stay(
    run: Run, server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, name: str, output: str
) -> None:
    """With --keep-rejected the output has all rows: rejected ones with a reason, and no result."""
    monkeypatch.setattr("bertline.jobs.rows.CHUNK_ROWS", 2)
    server.models = [FakeModel(), FakeModel(name="labels", task="classification", labels=("a", "b"))]
    texts = ["refuse", "refuse", "one", "refuse", "two", "caf\udce9"]
    path = tmp_path / name
    if name == "in.parquet":
        raw = [text.encode("utf-8", "surrogateescape") for text in texts]
        table = pa.table(
            [pa.array(raw, pa.binary()).view(pa.string())], pa.schema([pa.field("text", pa.string(), False)])
        )
        pq.write_table(table, path)
    else:
        lines = [f'{{"text": "{text}"}}' for text in texts] if name == "in.jsonl" else ["text", *texts]
        path.write_bytes("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"))
    result = run(command, "-i", str(path), "-o", f"{tmp_path}/{output}", "--keep-rejected")
    rows = read_rows(tmp_path / output)

    assert result.code == 3
    assert [row["row_number"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row.get("text") for row in rows] == [*texts[:5], None]
    column = "vector" if command == "embed" else "label"
    assert [row[column] is None for row in rows] == [row["reason"] is not None for row in rows]
    assert [row["reason"] or "" for row in rows[:5]] == ["text: refused", "text: refused", "", "text: refused", ""]
    assert rows[5]["reason"].startswith("not UTF-8")
    rejects = tmp_path / (f"{output}_rejects.jsonl" if output == "out/" else f"{output}.rejects.jsonl")
    assert [row["row_number"] for row in read_jsonl(rejects)] == [1, 2, 4, 6]


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
    spec: Any = SimpleNamespace(**options, patience_s=0, model=None)
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
