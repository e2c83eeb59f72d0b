"""Command lines of the benchmarks."""

import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest

import benchmarks
from benchmarks.engine import Engine
from tasks.bundle.manifest import Execution
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


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("int8_graphs", "--checkpoint nosuch", "no checkpoint at `nosuch`"),
        ("int8_graphs", "--rounds 0", "--rounds must be at least 1"),
        ("peers", "nosuch --texts nosuch.txt", "cannot use `nosuch.txt`"),
        ("peers", "nosuch --texts nosuch.txt --seconds 0", "--seconds must be above 0"),
        ("scaling", "--num-models 0", "--num-models must be at least 1"),
        ("training_step", "--steps 1", "--steps must be at least 2"),
        ("training_step", "--length 1024", "--length must be at most 512"),
    ],
)
def test_mistakes_print_one_line(name, words, message, monkeypatch, capfd):
    """An invalid value prints one line that names it."""
    assert message in mistake(name, words, monkeypatch, capfd)


def test_engine_uses_at_most_one_thread_per_core(tmp_path, texts):
    """Like the server, the engine uses at most one thread per core."""
    write_model(tmp_path / "models", execution=Execution(num_threads=1000))

    engine = Engine(tmp_path / "models" / "tiny" / "1")
    assert engine.examples_per_s(texts.read_text("utf-8").splitlines(), 1.0) > 0
