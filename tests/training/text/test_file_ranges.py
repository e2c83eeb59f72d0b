"""Tests of file ranges, which give the documents of their blocks on any machine."""

import gzip
import json
import lzma

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.toy import make_text
from training.text.documents import read_blocks
from training.text.ray_shards import file_ranges

TEXTS = make_text(60, seed=3).split("\n\n")


def write(path):
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"text": [*TEXTS, "", None, *TEXTS * 9]}), path, row_group_size=50)
        return
    lines = "\n\n".join(TEXTS) if "txt" in path.name else "".join(json.dumps({"text": text}) + "\n" for text in TEXTS)
    pack = {".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix, bytes)
    path.write_bytes(pack(lines.encode()))


@pytest.mark.parametrize("name", ["a.txt", "a.txt.xz", "a.jsonl", "a.jsonl.gz", "a.parquet"])
def test_ranges_hold_the_documents_of_their_blocks(name, tmp_path):
    """A range over consecutive blocks gives their documents, for every format."""
    write(tmp_path / name)
    blocks = list(read_blocks(tmp_path / name, 2000))
    first, second = blocks[: len(blocks) // 2], blocks[len(blocks) // 2 :]
    expected = [[document for block in half for document in block.documents()] for half in (first, second)]
    (first_place,), (second_place,) = file_ranges(first), file_ranges(second)

    assert all(expected)
    assert list(first_place.documents()) == expected[0]
    assert list(second_place.documents()) == expected[1]


def test_ranges_of_several_files_stay_apart(tmp_path):
    """Blocks of several files become one range a file, in their order."""
    for name in ("a.txt", "b.txt"):
        write(tmp_path / name)
    blocks = [block for name in ("a.txt", "b.txt") for block in read_blocks(tmp_path / name, 2000)]

    assert [place.path.name for place in file_ranges(blocks)] == ["a.txt", "b.txt"]


def test_changed_files_are_refused(tmp_path):
    """A range refuses a file whose text has changed, and an error names the line of the file."""
    write(tmp_path / "a.txt")
    _, *rest = read_blocks(tmp_path / "a.txt", 2000)
    (place,) = file_ranges(rest)
    text = (tmp_path / "a.txt").read_bytes()
    (tmp_path / "a.txt").write_bytes(text[:-3] + b"zq\n")

    with pytest.raises(ChildProcessError, match=r"a.txt` differs from the file on the machine"):
        list(place.documents())
    (tmp_path / "a.txt").write_bytes(text + b"\n\n\xff\n")
    (place,) = file_ranges(list(read_blocks(tmp_path / "a.txt", 2000))[1:])
    num_lines = text.count(b"\n")
    with pytest.raises(ValueError, match=f"line {num_lines + 3}: not UTF-8"):
        list(place.documents())
