"""Tests of reading documents and sentences from files of many formats."""

import gzip
import lzma
import os

import pyarrow as pa
import pyarrow.parquet
import pytest

from training.text.documents import find_files, read_blocks, read_documents, read_lines

EXPECTED = [["One is here.", "Two is there."], ["Three is alone."]]
PLAIN = "One is here. Two is there.\r\n\n \nThree is alone.\n"
JSONL = '{"text": "One is here. Two is there."}\n\n{"text": "Three is alone."}\n{"text": ""}\n'


def test_every_format_gives_the_same_documents(tmp_path):
    """Every format gives the same documents, compressed or not, with lower- or upper-case file names."""
    (tmp_path / "a.txt").write_bytes(PLAIN.encode())
    for name in ("a.jsonl", "a.ndjson", "A.JSONL"):
        (tmp_path / name).write_text(JSONL)
    (tmp_path / "A.JSONL.GZ").write_bytes(gzip.compress(JSONL.encode()))
    with gzip.open(tmp_path / "b.txt.gz", "wb") as file:
        file.write(PLAIN.encode())
    with lzma.open(tmp_path / "b.jsonl.xz", "wb") as file:
        file.write(JSONL.encode())
    table = pa.table({"text": ["One is here. Two is there.", "Three is alone.", None]})
    pyarrow.parquet.write_table(table, tmp_path / "c.parquet")

    assert len(find_files([tmp_path])) == 8
    for path in find_files([tmp_path]):
        assert list(read_documents(path)) == EXPECTED, path


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("bad.txt", b"fine\nnot \xff fine\n", r"bad.txt`, line 2: not UTF-8"),
        ("bad.jsonl", b'{"text": "x"}\n{"txt": "x"}\n', r"line 2: expected a JSON object with a string `text`"),
        ("bad.jsonl", b"[" * 100_000, r"bad.jsonl`, line 1: broken JSON"),
        ("bad.jsonl", b'{"text": "a \\uDC00 b"}\n', r"bad.jsonl`, line 1: half of a surrogate pair"),
        (
            "bad.txt",
            "One.\n".encode("utf-16"),
            r"bad.txt` begins as UTF-16 or UTF-32, or with a NUL byte; convert text: iconv -f UTF-16",
        ),
        (
            "bad.jsonl.gz",
            gzip.compress('{"text": "x"}\n'.encode("utf-16-be"), mtime=0),
            r"bad.jsonl.gz` begins as UTF-16",
        ),
        ("mac.txt", b"One is here.\rAnd there.\r\n", r"carriage returns end the lines of `.*mac.txt`; convert it: tr"),
        ("mac.txt", b"One is here.\rAnd there.\r", r"carriage returns end the lines of `.*mac.txt`; convert it: tr"),
        ("bad.txt.gz", b"not packed", r"cannot read .*bad.txt.gz"),
    ],
)
def test_malformed_files_are_named(name, content, message, tmp_path):
    """The error names the file and the line."""
    (tmp_path / name).write_bytes(content)

    with pytest.raises(ValueError, match=message):
        list(read_documents(tmp_path / name))


def test_parquet_columns_must_hold_strings(tmp_path):
    """The reader refuses lists of words and bytes in the text column."""
    for value in (["the", "cat"], b"the cat"):
        pyarrow.parquet.write_table(pyarrow.table({"text": [value]}), tmp_path / "a.parquet")

        with pytest.raises(ValueError, match=r"a.parquet`: column `text` must hold strings"):
            list(read_documents(tmp_path / "a.parquet"))


def test_blocks_hold_whole_documents_and_all_of_the_file(tmp_path):
    """Blocks of any size hold whole documents with right line numbers, and their bytes add up to the file."""
    text = b"One is here.\n\n\nTwo is\nthere.\n \nThree." * 20
    for path in (tmp_path / "a.txt", tmp_path / "a.txt.gz", tmp_path / "a.jsonl"):
        content = b'{"text": "One."}\n' * 20 if path.suffix == ".jsonl" else text
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
        for block_bytes in (1, 50, 10_000):
            blocks = list(read_blocks(path, block_bytes))

            assert [document for block in blocks for document in block.documents()] == list(read_documents(path))
            assert sum(block.num_file_bytes for block in blocks) == path.stat().st_size
            assert b"".join(block.content for block in blocks) == content
            for block in blocks:
                assert content.split(b"\n")[block.first_line - 1].startswith(block.content.split(b"\n")[0])


@pytest.mark.parametrize(
    ("name", "line", "hint"),
    [("a.txt", "word\n", "line 5: .*put a blank line between"), ("a.jsonl", "x" * 40, "line 1: .*a separate line")],
)
def test_documents_too_large_for_memory_are_refused(name, line, hint, tmp_path, monkeypatch):
    """The error gives the line where the limit is exceeded, and the remedy."""
    monkeypatch.setattr("training.text.documents.MAX_DOCUMENT_BYTES", 20)
    (tmp_path / name).write_text(line * 100)

    with pytest.raises(ValueError, match=hint):
        list(read_documents(tmp_path / name))


@pytest.mark.parametrize(
    ("text", "documents"),
    [
        ("One here.\n\u3000\nTwo here.\n\u00a0 \nThree here.\n", [["One here."], ["Two here."], ["Three here."]]),
        ("word\rword\nnext\n", [["word\rword", "next"]]),
    ],
)
def test_spaces_of_unicode_and_carriage_returns(text, documents, tmp_path, monkeypatch):
    """A line of Unicode spaces ends a document, also for its size limit; a carriage return in a line is a space."""
    monkeypatch.setattr("training.text.documents.MAX_DOCUMENT_BYTES", 20)
    (tmp_path / "a.txt").write_bytes(text.encode())

    assert list(read_documents(tmp_path / "a.txt")) == documents


def test_lines_of_a_pipe_are_read():
    """The reader reads the lines of a pipe once, without seeking."""
    reading, writing = os.pipe()
    os.write(writing, b"One.\nTwo.\n")
    os.close(writing)

    assert list(read_lines(f"/dev/fd/{reading}")) == ["One.", "Two."]

    os.close(reading)


@pytest.mark.parametrize("name", ["a.tsv", "a.csv.gz"])
def test_tables_are_not_read_as_running_text(name, tmp_path):
    """The search refuses tables, also in a folder with text files."""
    (tmp_path / "a.txt").write_text("One.\n")
    (tmp_path / name).write_text("text\tlabel\na\t0\n")

    with pytest.raises(ValueError, match=rf"{name}` is a table, not running text; write its texts to a \.txt file"):
        find_files([tmp_path])


def test_folders_are_read_to_the_bottom(tmp_path):
    """The search finds files in subfolders and skips hidden ones."""
    for name in ("a.txt", "more/b.txt", "more/yet/c.txt", ".git/d.txt", "more/.e.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("One.\n")

    assert find_files([tmp_path]) == [tmp_path / name for name in ("a.txt", "more/b.txt", "more/yet/c.txt")]


def test_missing_paths_are_named(tmp_path):
    """The error names a missing path, an empty directory, or a pipe that cannot be read twice."""
    with pytest.raises(ValueError, match=r"no such file or directory: .*nowhere"):
        find_files([tmp_path / "nowhere"])
    with pytest.raises(ValueError, match="no files in"):
        find_files([tmp_path])
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="pipe` is a pipe or device"):
        find_files([tmp_path / "pipe"])
