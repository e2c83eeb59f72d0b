"""Command lines of the benchmarks."""

import re
from importlib import import_module
from pathlib import Path

import pytest

import benchmarks
from benchmarks.engine import engine_rate
from tasks.bundle.manifest import Execution
from tests.commands import call
from tests.serving.models import WORDS, write_model

FOLDER = Path(benchmarks.__file__).parent
COMMANDS = [path.stem for path in FOLDER.glob("*.py") if "def main(" in path.read_text("utf-8")]


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_usage_names_the_module(name, monkeypatch, capfd):
    """`--help` of every benchmark names the module, not a path."""
    ended = call(import_module(f"benchmarks.{name}").main, ["--help"], monkeypatch, capfd)

    assert ended.returncode == 0
    assert ended.stdout.startswith(f"usage: python -m benchmarks.{name} ")


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("int8_graphs", "--checkpoint nosuch", "no checkpoint at `nosuch`"),
        ("peers", "nosuch --texts nosuch.txt", "cannot use `nosuch.txt`"),
        ("retrieval_scores", "--names a --models b", "give a folder of data, or tasks with --mteb"),
        ("retrieval_scores", "nosuch --names a --models b", "no file `nosuch/qrels/test.tsv`"),
        ("retrieval_scores", "nosuch --names a", "give a folder of --models to serve, or the --target"),
        ("scaling", "--num-models 0", "--num-models must be at least 1"),
        ("training_step", "--length 1024", "--length must be at most 512"),
    ],
)
def test_mistakes_print_one_line(name, words, message, monkeypatch, capfd):
    """An invalid value prints one line that names it."""
    ended = call(import_module(f"benchmarks.{name}").main, words.split(), monkeypatch, capfd)

    assert (ended.returncode, ended.stdout) == (1, "")
    assert re.fullmatch(rf"error: .*{message}.*\n", ended.stderr)


def test_engine_uses_at_most_one_thread_per_core(tmp_path):
    """Like the server, the engine uses at most one thread per core."""
    write_model(tmp_path / "models", execution=Execution(num_threads=1000))

    assert engine_rate(tmp_path / "models/tiny/1", WORDS[:3] * 85, 0.2) > 0
