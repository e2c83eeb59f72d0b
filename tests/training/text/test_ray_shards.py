"""Tests of preparing a corpus on a Ray cluster of two nodes: it equals the corpus of one machine."""

import importlib.util
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.ray_cluster import NODE, kill_a_node, two_nodes
from training.corpus import CorpusRecipe, _with_address, prepare_corpus
from training.text.documents import read_blocks
from training.text.ray_shards import file_ranges, make_shard_on_node

HAS_RAY = importlib.util.find_spec("ray") is not None
needs_ray = pytest.mark.skipif(not HAS_RAY, reason="pip install --group ray")


@pytest.fixture(scope="module")
def cluster():
    with two_nodes() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def data(text_file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    (folder / "a.txt").write_text(text_file.read_text() * 400)
    (folder / "b.txt").write_text(text_file.read_text() * 10)
    return folder


@pytest.fixture(scope="module")
def local(data, tokenizer_dir, tmp_path_factory):
    """Return the corpus that a local run writes."""
    out = tmp_path_factory.mktemp("local") / "corpus"
    prepare_corpus(CorpusRecipe(data=(data,), tokenizer=tokenizer_dir, out=out, chunk_bytes=60_000, num_workers=1))
    return out


def start(address, data, tokenizer_dir, out):
    flags = f"--data {data} --tokenizer {tokenizer_dir} --out {out} --chunk-bytes 60000 --ray {address}"
    command = [sys.executable, "-m", "training.corpus", *flags.split()]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]
    )


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def wait_for_shards(partial, number, process):
    while len(list(partial.glob("shard-*"))) < number:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


@needs_ray
@pytest.mark.slow
def test_a_node_that_dies_changes_nothing(cluster, data, local, tokenizer_dir, tmp_path):
    """The corpus stays the same byte for byte, and no partial file remains."""
    with start(cluster.address, data, tokenizer_dir, tmp_path / "out") as process:
        wait_for_shards(tmp_path / "out.partial", 5, process)
        kill_a_node(cluster)
        was_running = not (tmp_path / "out").exists()
        output, errors = process.communicate()
    cluster.add_node(**NODE)

    assert process.returncode == 0, errors
    assert was_running
    assert len(output.splitlines()) == 2  # counts, and statistics of pairs
    assert contents(tmp_path / "out") == contents(local)


@needs_ray
@pytest.mark.slow
def test_a_killed_command_keeps_finished_shards(cluster, data, local, tokenizer_dir, tmp_path):
    """A restarted command keeps finished shards, on the cluster and on one machine."""
    out, partial = tmp_path / "out", tmp_path / "out.partial"
    with start(cluster.address, data, tokenizer_dir, out) as process:
        wait_for_shards(partial, 5, process)
        process.kill()
    time.sleep(3)  # Ray needs time to end the workers
    kept = {path.name: path.stat().st_mtime_ns for path in partial.glob("shard-*")}
    half = shutil.copytree(partial, tmp_path / "other.partial")
    with start(cluster.address, data, tokenizer_dir, out) as process:
        _, errors = process.communicate()
    recipe = CorpusRecipe(data=(data,), tokenizer=tokenizer_dir, out=tmp_path / "other", chunk_bytes=60_000)
    prepare_corpus(recipe)

    assert process.returncode == 0, errors
    assert 5 <= len(kept) < len(list(local.glob("shard-*")))
    assert kept.items() <= {path.name: path.stat().st_mtime_ns for path in out.iterdir()}.items()
    assert contents(out) == contents(local) == contents(tmp_path / "other")
    assert not half.exists()


@needs_ray
@pytest.mark.slow
def test_malformed_text_is_an_error_of_one_line(cluster, tokenizer_dir, tmp_path):
    """Ray runs report malformed text like local runs, and leave no files."""
    (tmp_path / "bad.txt").write_bytes(b"Fine words.\n\nnot \xff fine\n")
    with start(cluster.address, tmp_path / "bad.txt", tokenizer_dir, tmp_path / "out") as process:
        _, errors = process.communicate()

    assert process.returncode == 1
    assert errors.splitlines()[-1].endswith("bad.txt`, line 3: not UTF-8 (invalid start byte); convert the file")
    assert [path.name for path in tmp_path.iterdir()] == ["bad.txt"]


@needs_ray
@pytest.mark.parametrize(
    ("address", "message"),
    [("127.0.0.1:1", "no Ray cluster at `127.0.0.1:1`"), ("a", "--ray must be `auto`, `local` or host:port")],
)
def test_no_cluster_is_one_line(address, message, text_file, tokenizer_dir, tmp_path):
    """A missing cluster raises an error immediately, and keeps the prepared files."""
    recipe = CorpusRecipe(data=(text_file,), tokenizer=tokenizer_dir, out=tmp_path / "out", ray=address)
    with pytest.raises(ChildProcessError, match=message):
        prepare_corpus(recipe)

    assert (tmp_path / "out.partial").exists()


def test_errors_name_a_node_without_the_shared_folder(text_file, tokenizer_dir, tmp_path):
    """The error names a node that lacks the shared output folder or the data."""
    (tmp_path / "mark").touch()
    (place,) = file_ranges(list(read_blocks(text_file)))
    moved = replace(place, path=tmp_path / "a.txt")
    for mark, text, message in (
        ("other", place, "node .* does not share `.*` with this machine"),
        ("mark", moved, r"node .* has no `.*a.txt`; share the data"),
    ):
        with pytest.raises(ChildProcessError, match=message):
            make_shard_on_node(tmp_path / mark, tmp_path / "shard-00000.arrow", [text], 0, str(tokenizer_dir))

    assert [path.name for path in tmp_path.iterdir()] == ["mark"]


def test_words_are_the_same_on_nodes(tokenizer_dir, tmp_path, monkeypatch):
    """Nodes use the same word segmenter and write the same bytes."""
    (tmp_path / "text.txt").write_text("我们 在 图书馆 读书 。 The cat .\n\n今天 很 好 。\n", encoding="utf-8")
    recipe = CorpusRecipe(
        data=(tmp_path / "text.txt",), tokenizer=tokenizer_dir, out=tmp_path / "here", words="spaces", num_workers=1
    )
    prepare_corpus(recipe)
    in_turn = lambda function, arguments, **_: (function(*items) for items in arguments)  # noqa: E731
    monkeypatch.setattr("training.text.ray_shards.map_on_ray", in_turn)
    prepare_corpus(replace(recipe, out=tmp_path / "there", ray="auto"))

    assert contents(tmp_path / "there") == contents(tmp_path / "here")


@pytest.mark.parametrize(
    ("words", "seen"),
    [
        ("--ray", "--ray auto"),
        ("--ray --out b", "--ray auto --out b"),
        ("--ray a:1 --out b", "--ray a:1 --out b"),
        ("--ray=a:1", "--ray=a:1"),
        ("--out b", "--out b"),
    ],
)
def test_the_address_is_optional(words, seen):
    """`--ray` without an address means `--ray auto`."""
    assert _with_address(words.split()) == seen.split()
