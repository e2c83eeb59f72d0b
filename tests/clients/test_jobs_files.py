"""Tests of damaged, odd and conflicting files."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from bertline.jobs.sources import chunks_of, source_of
from bertline.jobs.storage import file_of
from bertline.testing import FakeServer
from tests.clients.command import Run, fails, numbers, read_jsonl, received

TEXTS = ["one", "two", "three"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def zstd(data: bytes) -> bytes:
    return pa.compress(data, codec="zstd", asbytes=True)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("suffix", "compress"), [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress), ("zst", zstd)]
)
def test_compressed_files(run: Run, folder: Path, suffix: str, compress: Any) -> None:
    """Concatenated streams are read, and truncated or uncompressed files are errors."""
    pieces = [compress(os.urandom(3000).hex().encode() + b"\n") for _ in range(2)]
    (folder / f"in.txt.{suffix}").write_bytes(b"".join(pieces))
    (folder / f"cut.txt.{suffix}").write_bytes(pieces[0] + pieces[1][:-1000])
    (folder / f"not.csv.{suffix}").write_bytes(b"text\nabc\n")

    assert len(run("embed", "-i", f"in.txt.{suffix}", "--truncate").rows) == 2
    for name in ("cut.txt", "not.csv"):
        result = run("embed", "-i", f"{name}.{suffix}", "-o", "out.jsonl")
        assert fails(result, f"cannot read `{name}.{suffix}`: ")
    assert not list(folder.glob("out*"))


@pytest.mark.parametrize(
    ("name", "encoding"), [("in.csv", "utf-16-le"), ("in.jsonl", "utf-32"), ("in.txt.gz", "utf-32"), ("-", "utf-16-le")]
)
def test_wide_text_is_refused(run: Run, server: FakeServer, folder: Path, name: str, encoding: str) -> None:
    """The error states how to convert the file, and nothing is sent or written."""
    content = ('{"text": "one"}\n' if "jsonl" in name else "text\none\n").encode(encoding)
    if name != "-":
        (folder / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    result = run("embed", "-i", name, "-o", "out.jsonl", stdin=content)

    assert fails(result, f"is {encoding[:6].upper()}")
    assert "iconv -f UTF-" in result.err
    assert received(server) == []
    assert not list(folder.glob("out*"))


def test_carriage_returns_alone_end_lines(run: Run, folder: Path) -> None:
    """A single carriage return ends a row of CSV, as spreadsheets may write it; in text, it is refused."""
    for name in ("in.csv", "in.txt"):
        (folder / name).write_text("\r".join(["text", *TEXTS, ""]))

    assert [row["vector"] for row in run("embed", "-i", "in.csv").rows] == [numbers(text) for text in TEXTS]
    (folder / "in.txt").write_text("one\rtwo\n")
    assert fails(run("embed", "-i", "in.txt"), "`in.txt` has only carriage returns between its lines; convert it: tr")


@pytest.mark.parametrize("name", ["in.csv", "in.tsv"])
def test_columns_without_a_name_block_nothing(run: Run, folder: Path, name: str) -> None:
    """Several columns without a name are dropped, a single one is kept, and duplicate names are refused."""
    mark = "\t" if name == "in.tsv" else ","
    for header, kept in (("text,,", {}), ("id,text, ,,", {"id": "1"}), ("text,", {"": "2"})):
        values = ["1", "one"] if header.startswith("id") else ["one", "2"]
        values += ["3"] * (header.count(",") + 1 - len(values))
        (folder / name).write_text("\n".join([header.replace(",", mark), mark.join(values)]) + "\n")
        (row,) = run("embed", "-i", name).rows

        assert row == {"row_number": 1, "text": "one", **kept, "vector": numbers("one")}
    (folder / name).write_text(mark.join(["text", "a", "a"]) + "\n")

    assert fails(run("embed", "-i", name), "more than one column `a`")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "in.jsonl", "--force"], "the output would replace an input: `in.jsonl`"),
        (["-o", "link.jsonl", "--force"], "the output would replace an input: `in.jsonl`"),
        (["-o", "/dev/null", "--force"], "not a regular file: `/dev/null`"),
        (["-o", "mine", "--force"], "not a regular file: `mine`; end --output with /"),
        (["-o", "mine/", "-i", "mine/part-0.parquet", "--force"], "the output would replace an input: `mine/part"),
        (["-o", "out.jsonl", "--rejects", "notes.jsonl"], "already exists: `notes.jsonl`"),
        (["-o", "out.jsonl", "--rejects", "in.jsonl"], "the rejected rows would replace an input: `in.jsonl`"),
        (["--rejects", "in.jsonl"], "the rejected rows would replace an input: `in.jsonl`"),
        (["--rejects", "notes.jsonl"], "already exists: `notes.jsonl`"),
        (["-o", "out.jsonl", "--rejects", "out.jsonl.job/r"], "--rejects lies in the output or its job directory: "),
        (["-o", "out/", "--rejects", "out/r.jsonl"], "--rejects lies in the output or its job directory: "),
        (["-o", "out.jsonl", "--rejects", "none/r.jsonl"], "cannot write `none/r.jsonl`: No such file or directory"),
        (["-o", "out.jsonl", "--rejects", "mine"], "not a regular file: `mine`"),
        (["-o", "out.jsonl", "-i", "fifo"], "cannot read `fifo`: not a regular file"),
        (
            ["-o", "mine/out.jsonl", "-i", "mine"],
            "`mine/out.jsonl` would lie in the input folder `mine`; choose another",
        ),
    ],
)
def test_files_in_the_way(run: Run, folder: Path, arguments: list[str], message: str) -> None:
    """No job replaces an input or a special file."""
    (folder / "in.jsonl").write_text('{"text": "x"}\n')
    (folder / "link.jsonl").symlink_to("in.jsonl")
    (folder / "mine").mkdir()
    (folder / "mine" / "precious").write_text("text")
    (folder / "mine" / "part-0.parquet").touch()
    (folder / "notes.jsonl").write_text("mine")
    os.mkfifo(folder / "fifo")

    assert fails(run("embed", "-i", "in.jsonl", *arguments), message)
    assert (folder / "in.jsonl").read_text() == '{"text": "x"}\n'
    assert (folder / "mine" / "precious").exists()
    assert (folder / "mine" / "part-0.parquet").exists()
    assert (folder / "notes.jsonl").read_text() == "mine"
    assert Path("/dev/null").exists()
    assert not list(folder.glob("out*"))


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("in.zip", b"PK\n", [], "cannot read `in.zip`: unpack the archive"),
        ("in.bin", b"one\ntwo\0\n", [], "`in.bin` is a binary file of an unknown format; give --format if the client"),
        ("in", b"\x89PNG\r\n\x1a\n", [], "`in` is a binary file of an unknown format"),
        ("in.pdf", b"%PDF-1.7\nobj\n", [], "`in.pdf` is a binary file of an unknown format"),
        ("in.pq2", b"PAR1 text\n", [], "`in.pq2` is a binary file of an unknown format"),
        ("-", b"PAR1", ["--format", "parquet"], "cannot read Parquet from standard input"),
        ("in.parquet", b"not parquet", [], "cannot read `in.parquet`: "),
        ("in.json", b'{"text": "one"}\n', [], "cannot read `in.json`: add --format jsonl if it has one JSON object a"),
        ("in.csv", b"text;id\n", [], "`in.csv` has columns separated by semicolons, not by commas; save the file with"),
        ("in.csv", b"text\tid\n", [], "`in.csv` has columns separated by tabs, not by commas; use --format tsv"),
        ("in.csv", b"", [], "`in.csv` has no columns; name them in its first line"),
        ("in.csv", b"a,text\n", ["--keep", "b"], "`in.csv` has no column `b` (it has: `a`, `text`); name one of these"),
        ("none.txt", None, [], "cannot read `none.txt`: No such file or directory"),
        ("none*.txt", None, [], "no file matches `none*.txt`"),
        ("memory://none.txt", None, [], "cannot read `memory://none.txt`: No such file or directory"),
        ("bogus://x/y", None, [], "cannot use `bogus://x/y`: Protocol not known: bogus"),
        ("in.txt", b"one\n", ["-o", "none/out.jsonl"], "cannot write `none/out.jsonl`: No such file or directory"),
    ],
)
def test_files_that_cannot_be_used(
    run: Run, folder: Path, name: str, content: bytes | None, options: list[str], message: str
) -> None:
    """The error names the file, the problem and the remedy, and no file is written."""
    if content is not None and name != "-":
        (folder / name).write_bytes(content)

    assert fails(run("embed", "-i", name, *options, stdin=content or b""), message)
    assert len(list(folder.iterdir())) == (content is not None and name != "-")


@pytest.mark.parametrize("name", ["in.log", "in", "in.md"])
def test_text_of_any_ending(run: Run, folder: Path, name: str) -> None:
    """A file whose ending names no format is read as text, also with tabs, form feeds and bytes that are not ASCII."""
    (folder / name).write_bytes("naïve\ttext\f\x1b[1m\r\n猫\n".encode())

    assert len(run("embed", "-i", name).rows) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", ""], "--output is empty"),
        (["--column", "text="], "--column is NAME=COLUMN, with NAME one of text, each once: `text=`"),
        (["-i", "-", "-i", "-"], "standard input can be read only once"),
        (["-o", "out.txt"], "unknown output format: `out.txt`; use a name that ends in .parquet, .jsonl or .npy"),
        (["--output-format", "npy"], "--output-format is for a folder of parts: end --output with /"),
    ],
)
def test_options_that_say_nothing(
    run: Run, server: FakeServer, folder: Path, arguments: list[str], message: str
) -> None:
    """Contradictory options are refused before anything is sent."""
    (folder / "in.txt").write_text("text\n")

    assert fails(run("embed", "-i", "in.txt", *arguments), message, code=2)
    assert fails(run("classify", "text", "-o", "out.npy"), ".npy holds vectors only", code=2)
    assert server.calls == []


COLUMNS = [
    pa.array(["a", "b", "a"]).dictionary_encode(),
    pa.array([Decimal("1.10")] * 3),
    pa.array([[("a", 1)]] * 3, pa.map_(pa.string(), pa.int64())),
    pa.array([[{"a": 1}], None, []]),
    pa.array(["a", "b", None], pa.large_string()),
    pa.array(["a", "b", None], pa.string_view()),
    pa.array([["a"], [], None], pa.list_(pa.string_view())),
    pa.array([b"\xff"] * 3, pa.binary_view()),
    pa.nulls(3),
    pa.array([1, None, 2**62 + 1], pa.timestamp("ns")),
    pa.array([[1], None, [2]], pa.list_(pa.timestamp("ns"))),
    pa.array([1, None, 2**62 + 1], pa.duration("ns")),
    pa.array([2**61] * 3, pa.timestamp("us")),
    pa.array([-(10**6)] * 3, pa.date32()),
    pa.array([1.5] * 3, pa.float16()),
]


def test_columns_of_every_type_are_kept(run: Run, folder: Path) -> None:
    """Pass-through columns may have any type, in any output format; views become strings."""
    table = pa.table([TEXTS, *COLUMNS], ["text", *(str(column.type) for column in COLUMNS)])
    pq.write_table(table, "in.parquet")
    views = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    views |= {pa.list_(old): pa.list_(new) for old, new in views.items()}
    schema = pa.schema([(field.name, views.get(field.type, field.type)) for field in table.schema])

    for output in ("out.jsonl", "out.parquet", "out.npy"):
        assert run("embed", "-i", "in.parquet", "-o", output).code == 0
    kept = pq.read_table("out.parquet").drop_columns(["row_number", "vector"])
    assert [(column.type, column.to_string()) for column in kept.columns] == [
        (column.type, column.to_string()) for column in table.cast(schema).columns
    ]
    for name in table.column_names:
        assert [row[name] is None for row in read_jsonl("out.jsonl")] == table[name].is_null().to_pylist()
    assert np.load("out.npy").shape == (3, 8)


def not_unicode(kind: pa.DataType) -> pa.Array:
    """Return strings of which the middle one is not UTF-8."""
    return pa.array([b"one", b"caf\xe9", b"three"], pa.binary()).view(pa.string()).cast(kind, safe=False)


@pytest.mark.parametrize("output", ["out.jsonl", "out.parquet"])
@pytest.mark.parametrize("bad", ["text", "more", "list"])
def test_strings_of_parquet_that_are_not_utf8(run: Run, folder: Path, bad: str, output: str) -> None:
    """Only the row with invalid UTF-8 is rejected, whether its column is an input or passes through; not if dropped."""
    strings = not_unicode(pa.string())
    columns = {"text": pa.array(TEXTS), "more": pa.array(TEXTS), "list": pa.array([[text] for text in TEXTS])}
    columns[bad] = pa.ListArray.from_arrays([0, 1, 2, 3], strings) if bad == "list" else strings
    pq.write_table(pa.table(columns | {"when": pa.array([2**61] * 3, pa.timestamp("us"))}), "in.parquet")

    assert run("embed", "-i", "in.parquet", "-o", output).code == 3
    rows = read_jsonl(output) if output == "out.jsonl" else pq.read_table(output, columns=["vector"]).to_pylist()
    vectors = [row["vector"] for row in rows]
    assert np.float32(vectors).tolist() == np.float32([numbers(text) for text in ("one", "three")]).tolist()
    (rejects,) = read_jsonl(f"{output}.rejects.jsonl")
    assert (rejects["place"], rejects["reason"]) == ("`in.parquet`, row 2", "not UTF-8; convert the file")
    if bad != "text":
        assert run("embed", "-i", "in.parquet", "-o", output, "--drop", bad, "--force").code == 0


def test_tsv_without_quotes(run: Run, folder: Path) -> None:
    """Quotation marks in TSV stay unless they can only be quotes; a line counts them. --format csv takes them off."""
    rows = b'id\ttext\n0\t"plain"\n1\t"Good movie\r\n2\tbad" film\n3\t"\n4\t"say ""hi"""\n'
    (folder / "in.tsv").write_bytes(rows)
    (folder / "quoted.tsv").write_bytes(b'id\ttext\n0\t"plain"\n1\t"two\nlines"\n')
    texts = ['"plain"', '"Good movie', 'bad" film', '"', '"say ""hi"""']

    for result in (run("embed", "-i", "in.tsv"), run("embed", "-i", "-", "--format", "tsv", stdin=rows)):
        assert [(row["id"], row["vector"]) for row in result.rows] == [
            (str(number), numbers(text)) for number, text in enumerate(texts)
        ]
        assert (
            ": 1 rows have values in quotation marks, which stay; --format csv reads a .tsv with quotes" in result.err
        )
    assert [row["text"] for row in run("embed", "-i", "quoted.tsv", "--format", "csv").rows] == ["plain", "two\nlines"]


@pytest.mark.parametrize("output", ["out.parquet", "out/"])
def test_parquet_files_of_other_types(run: Run, folder: Path, output: str) -> None:
    """Columns of Parquet files are widened and completed as pyarrow does, or become text where it gives up."""
    when = pa.array([1, 2, 3], pa.timestamp("ms"))
    first = pa.table(
        {"text": TEXTS, "n": pa.array([1, 2, 3], pa.int32()), "when": when, "old": TEXTS, "tag": [1, 2, 3]}
    )
    second = pa.table(
        {
            "n": pa.array([2**60, None, 1]),
            "text": pa.array(TEXTS, pa.large_string()),
            "when": when.cast(pa.timestamp("us")),
            "tag": [["x"], [], None],
            "new": [{"a": 1}] * 3,
        }
    )
    pq.write_table(first, "a.parquet")
    pq.write_table(second, "b.parquet")
    result = run("embed", "-i", "a.parquet", "-i", "b.parquet", "-o", output)
    found = pq.read_table(output).drop_columns(["row_number", "file", "vector"])

    assert result.code == 0
    assert "no single type holds all values of `tag`: " in result.err
    assert found["tag"].to_pylist() == ["1", "2", "3", '["x"]', "[]", None]
    wanted = pa.concat_tables([item.drop_columns("tag") for item in (first, second)], promote_options="permissive")
    assert found.drop_columns("tag").equals(wanted)


def test_metadata_of_parquet_files(run: Run, folder: Path) -> None:
    """Metadata for pandas, GeoParquet and datasets stay if all inputs have the same and their columns stay."""
    metadata = {"pandas": '{"columns": []}', "geo": '{"columns": {"at": {}}}', "huggingface": '{"info": {}}'}
    table = pa.table({"text": TEXTS, "at": [b"1"] * 3}).replace_schema_metadata(metadata | {"other": "x"})
    pq.write_table(table, "a.parquet")
    pq.write_table(table.replace_schema_metadata(metadata | {"geo": '{"columns": {}}'}), "b.parquet")

    def kept(*arguments: str) -> set[str]:
        assert run("embed", *arguments, "-o", "out.parquet", "--force").code == 0
        found = pq.read_schema("out.parquet").metadata
        assert all(found[name.encode()].decode() == metadata[name] for name in metadata if name.encode() in found)
        return {name.decode() for name in found} - {"bertline"}

    assert kept("-i", "a.parquet") == set(metadata)
    assert kept("-i", "a.parquet", "--drop", "at") == {"pandas", "huggingface"}
    assert kept("-i", "a.parquet", "-i", "b.parquet") == {"pandas", "huggingface"}
    result = run("embed", "-i", "a.parquet", "-i", "b.parquet", "-o", "out.parquet", "--force")
    assert "bertline: the metadata `geo` differ between the inputs; the output has none\n" in result.err


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_folders_and_their_keys(run: Run, folder: Path, suffix: str) -> None:
    """Files in a folder are read, and its keys are columns, as in pyarrow's data sets; `01` stays text."""
    keys = [("2020", "01"), ("2021", "10"), ("__HIVE_DEFAULT_PARTITION__", "a%2Fb")]
    for (year, month), text in zip(keys, TEXTS, strict=True):
        path = folder / f"data/year={year}/month={month}/part-0.{suffix}"
        path.parent.mkdir(parents=True)
        if suffix == "parquet":
            pq.write_table(pa.table({"text": [text], "n": [1]}), path)
        else:
            path.write_text(json.dumps({"text": text, "n": 1}) + "\n")
    for name in ("_SUCCESS", ".part-1.crc", "_temporary/part-2.txt"):
        (folder / "data" / name).parent.mkdir(exist_ok=True)
        (folder / "data" / name).write_text("not a row")
    schema = pa.schema([("text", pa.string()), ("n", pa.int64()), ("year", pa.int64()), ("month", pa.string())])
    partitioning = pa.dataset.partitioning(schema.remove(0).remove(0), flavor="hive")
    wanted = pa.dataset.dataset(
        "data", schema, format=suffix.replace("jsonl", "json"), partitioning=partitioning
    ).to_table()

    for pattern in ("data", "data/", "data/*/*/*"):
        result = run(
            "embed",
            "-i",
            pattern,
            "-o",
            "out.parquet",
            "--keep",
            "text",
            "--keep",
            "n",
            "--keep",
            "year",
            "--force",
            "--keep",
            "month",
        )
        assert result.code == 0
        assert pq.read_table("out.parquet").select(schema.names).equals(wanted)
    assert run("embed", "-i", "data", "--column", "text=month", "--drop", "file").rows[1] == {
        **{"row_number": 1, "text": "two", "n": 1, "year": 2021, "month": "10", "vector": numbers("10")}
    }


@pytest.mark.parametrize("name", ["in.jsonl", "in.parquet"])
def test_numbers_that_json_lacks(run: Run, folder: Path, name: str) -> None:
    """NaN and infinities are written as null, also in rejected rows."""
    (folder / "in.jsonl").write_text(
        '{"text": "one", "n": NaN, "more": [1e999, 1.5]}\n{"text": "refuse", "n": -Infinity, "more": []}\n'
    )
    inf = float("inf")
    pq.write_table(pa.table({"text": ["one", "refuse"], "n": [-inf, inf], "more": [[inf, 1.5], []]}), "in.parquet")
    result = run("embed", "-i", name, "-o", "out.jsonl", "--keep", "n", "--keep", "more")

    assert result.code == 3
    (row,) = read_jsonl("out.jsonl")
    assert (row["n"], row["more"]) == (None, [None, 1.5])
    (rejects,) = read_jsonl("out.jsonl.rejects.jsonl")
    assert rejects["row"].get("n") is None


def test_names_of_results_that_are_taken(run: Run, folder: Path) -> None:
    """A column with the name of a result is renamed to `input_...`, repeated if that name is taken."""
    row = {"text": "x", "vector": 1, "input_vector": 2, "a.b": 3, "": 4, "ünï\n": 5, "row_number": 6}
    Path("in.jsonl").write_text(json.dumps(row) + "\n")
    pq.write_table(pa.table({name: [value] for name, value in row.items()}), "in.parquet")
    names = {"vector": "input_input_vector", "row_number": "input_row_number"}
    kept = {names.get(name, name): value for name, value in row.items()}
    wanted = {"row_number": 1, **kept, "vector": numbers("x")}

    assert run("embed", "-i", "in.jsonl").rows == run("embed", "-i", "in.parquet").rows == [wanted]
    for name in ("in.jsonl", "in.parquet"):
        assert run("embed", "-i", name, "-o", "out.parquet", "--force").code == 0
        assert {**pq.read_table("out.parquet").to_pylist()[0], "vector": numbers("x")} == wanted


def test_rows_of_a_table_without_values(run: Run, folder: Path) -> None:
    """--skip-empty skips rows of CSV without any value, as spreadsheets end with, but no row with an empty text."""
    Path("in.csv").write_text('id,text\n1,one\n,\n," "\n\n2,\n')

    assert run("embed", "-i", "in.csv").err.count("the line is empty; correct it, or skip such lines") == 3
    result = run("embed", "-i", "in.csv", "--skip-empty")
    assert ([row["id"] for row in result.rows], result.err.count("\n")) == (["1"], 1)


def test_no_rows(run: Run, folder: Path) -> None:
    """Files without rows give an output without rows."""
    Path("in.jsonl").write_text("")
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), "in.parquet")
    for name in ("in.jsonl", "in.parquet"):
        assert run("classify", "-i", name, "-o", "out.parquet", "--force").code == 0

        assert pq.read_table("out.parquet").num_rows == 0


def shell(line: str, target: str) -> subprocess.CompletedProcess[str]:
    """Run a line of bash with `bertline` as the command."""
    line = line.replace("bertline ", f"{sys.executable} -m bertline.cli ")
    environment = os.environ | {"BERTLINE_TARGET": target, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True, check=False, env=environment
    )


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("bertline embed -i in.txt --rejects r.jsonl | head -1 > first", 1, ""),
        ("bertline embed -i in.txt --rejects r.jsonl > /dev/full", 1, "No space left on device: `standard output`"),
        ("echo text | bertline embed -i - <&-", 1, "cannot read standard input: it is closed"),
        ("bertline embed -i in.txt >&-", 1, "cannot write standard output: it is closed"),
        ("bertline embed -i in.txt -o out.jsonl <&- >&- 2>&-", 0, ""),
    ],
)
def test_streams_that_are_closed_or_full(folder: Path, target: str, line: str, code: int, message: str) -> None:
    """Closed and full streams are reported, and no results go to the wrong one."""
    (folder / "in.txt").write_text("text\n" * 20_000 if "|" in line else "text\n")
    result = shell(line, target)

    assert (result.returncode, result.stdout) == (code, "")
    assert result.stderr.count("\n") == (1 if message else 0)
    assert message in result.stderr
    assert not (folder / "r.jsonl").exists()
    assert not (folder / "out.jsonl").exists() or len((folder / "out.jsonl").read_text().splitlines()) == 1


ENDLESS = {
    "in.txt": (b"one\ntwo\n", b"a" * 2000, 3),
    "in.jsonl": (b'{"text": "one"}\n', b'{"text": "' + b"a" * 2000 + b'"}\n', 2),
    "in.csv": (b"text\none\n", b'"' + b"a\n" * 1000 + b'"\n', 3),
    "in.tsv": (b"text\none\n", b"a" * 2000 + b"\n", 3),
}


@pytest.mark.parametrize(
    ("name", "way"), [*((name, "plain") for name in ENDLESS), ("in.csv", "gz"), ("in.txt", "stdin")]
)
def test_long_lines(run: Run, folder: Path, name: str, way: str) -> None:
    """A line that is longer than the limit ends the job with its number; with a higher limit, the job goes on."""
    before, after, line = ENDLESS[name]
    path, content = (name, before + after) if way == "plain" else (f"{name}.gz", gzip.compress(before + after))
    (folder / path).write_bytes(content)
    stdin = before + after if way == "stdin" else b""
    given = ["-i", "-", "--format", name[3:].replace("txt", "text")] if way == "stdin" else ["-i", path]
    source = "standard input" if way == "stdin" else f"`{path}`"

    result = run("embed", *given, "-o", "out.jsonl", "--max-line-bytes", "1500", stdin=stdin)

    assert fails(result, f"{source}, line {line}: longer than 1,500 bytes")
    assert "raise --max-line-bytes" in result.err
    assert not (folder / "out.jsonl").exists()
    assert run("embed", *given, "-o", "out.jsonl", "--truncate", stdin=stdin).code == 0
    assert len((folder / "out.jsonl").read_text().splitlines()) == line - (before[:4] == b"text") * 1


def test_wide_rows_are_few_at_a_time(folder: Path) -> None:
    """A chunk ends by the bytes of all columns, too, not only by rows and bytes of text."""
    with (folder / "in.jsonl").open("w") as file:
        for number in range(40):
            file.write(json.dumps({"text": str(number), "other": "a" * (1 << 20)}) + "\n")

    chunks = list(chunks_of(source_of(file_of("in.jsonl"), None, False), 0, ["text"], [], lambda row: 1))

    assert [len(chunk.rows) for chunk in chunks] == [16, 16, 8]
