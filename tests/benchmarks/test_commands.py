"""Command lines of the benchmarks."""

import re
import shlex
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import benchmarks
from benchmarks.engine import Engine
from tasks.manifest import Execution
from tests.commands import call
from tests.serving.models import WORDS, write_model

FOLDER = Path(benchmarks.__file__).parent
COMMANDS = [path.stem for path in FOLDER.glob("*.py") if "def main(" in path.read_text("utf-8")]
COMMANDS += [path.parent.name for path in FOLDER.glob("*/__main__.py")]


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(WORDS[:3] * 85), encoding="utf-8")
    return path


def main_of(name):
    """Return the function that a command runs."""
    module = f"benchmarks.{name}" + ".__main__" * (FOLDER / name).is_dir()
    return import_module(module).main


def mistake(name, words, monkeypatch, capfd):
    """Return the only line that a command prints."""
    ended = call(main_of(name), shlex.split(words), monkeypatch, capfd)

    assert (ended.returncode, ended.stdout) == (1, "")
    assert re.fullmatch(r"error: .*\n", ended.stderr)
    return ended.stderr


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_usage_names_the_module(name, monkeypatch, capfd):
    """`--help` of every benchmark names the module, not a path."""
    ended = call(main_of(name), ["--help"], monkeypatch, capfd)

    assert ended.returncode == 0
    assert ended.stdout.startswith(f"usage: python -m benchmarks.{name} ")


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_unknown_flag_prints_one_line(name, monkeypatch, capfd):
    """An unknown flag prints one line that names it."""
    assert "unknown flag `--nosuch`" in mistake(name, "--nosuch", monkeypatch, capfd)


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("client", "--calls 0", "--calls must be at least 1"),
        ("int8_graphs", "--checkpoint nosuch", "no checkpoint at `nosuch`"),
        ("int8_graphs", "--rounds 0", "--rounds must be at least 1"),
        ("jobs", "memory nosuch --texts nosuch.txt", "cannot use `nosuch.txt`"),
        ("jobs", "memory nosuch --texts nosuch.txt --more-texts 9", "--more-texts must be at least 10"),
        ("loading", "nosuch --texts nosuch.txt", "no directory of models: `nosuch`"),
        ("packing", "", "give one of --train, labelled texts, and --corpus"),
        ("packing", "--corpus nosuch --rounds 1", "--rounds must be at least 2"),
        ("scaling", "--lengths 128 3", "--lengths must be at least 4 and at most 512"),
        ("scaling", "--lengths 1024", "--lengths must be at least 4 and at most 512"),
        ("scaling", "--lengths 8192", "--lengths must be at least 4 and at most 512"),
        ("students", "models/embed/1 --texts nosuch.txt", "give at least two different model directories"),
        ("students", "a a/ --texts nosuch.txt", "two different"),
        ("students", "a b --texts nosuch.txt --seconds 0", "--seconds must be"),
        ("served_scores", "--model m --checkpoint nosuch --data nosuch.tsv", "no checkpoint at `nosuch`"),
        ("http_serving", "embeddings nosuch --texts nosuch.txt", "cannot use `nosuch.txt`"),
        ("serving", "throughput nosuch --texts nosuch.txt", "cannot use `nosuch.txt`"),
        ("serving", "start nosuch --texts nosuch.txt --seconds 0", "--seconds must be above 0"),
        ("training_step", "--steps 1", "--steps must be at least 2"),
        ("training_step", "--length 1024", "--length must be at least 4 and at most 512"),
        (
            "tuner",
            "--shape 1 8 2 --engine openvino --matmul 'dynamic int8'",
            "--engine openvino does not run dynamic int8",
        ),
        ("tuner", "--num-tunings 0", "--num-tunings must be at least 1"),
    ],
)
def test_mistakes_print_one_line(name, words, message, monkeypatch, capfd):
    """An invalid value prints one line that names it."""
    assert message in mistake(name, words, monkeypatch, capfd)


def test_peers_need_as_many_texts_as_one_call_takes(texts, monkeypatch, capfd):
    """The error gives the number of texts that are there, and the number that are needed."""
    found = mistake("serving_peers", f"nosuch --checkpoint nosuch --texts {texts}", monkeypatch, capfd)

    assert "has 255 texts, one per line; at least 256 are needed" in found


class Peer:
    """Stand-in for sentence-transformers, with the methods that run before the server is called."""

    batch_size = 8

    def __init__(self, checkpoint, texts):
        pass

    def embed(self, texts):
        return np.ones((len(texts), 8))


def test_refusal_of_the_server_prints_one_line(tmp_path, texts, monkeypatch, capfd):
    """The client requests 64 vectors in one call, more than the server accepts."""
    texts.write_text("the cat\n" * 256, encoding="utf-8")
    write_model(tmp_path / "models")
    monkeypatch.setattr("benchmarks.serving_peers.SentenceTransformers", Peer)
    words = f"{tmp_path / 'models'} --checkpoint nosuch --texts {texts} --flags=--log-level=error --flags=--max-texts=8"

    assert "too many inputs: `64` (maximum `8`)" in mistake("serving_peers", words, monkeypatch, capfd)


def test_mistake_under_load_prints_one_line(tmp_path, monkeypatch, capfd):
    """The worker process reads the texts, and its error reaches the command."""
    write_model(tmp_path / "models")
    words = f"overload {tmp_path / 'models'} --texts nosuch.txt --flags=--log-level=error --flags=--max-texts=8"

    assert "cannot use `nosuch.txt`" in mistake("serving", words, monkeypatch, capfd)


def test_engine_uses_at_most_one_thread_per_core(tmp_path, texts):
    """Like the server, the engine uses at most one thread per core."""
    write_model(tmp_path / "models", execution=Execution(num_threads=1000))

    engine = Engine(tmp_path / "models" / "tiny" / "1")
    assert engine.examples_per_s(texts.read_text("utf-8").splitlines(), 0.05) > 0
