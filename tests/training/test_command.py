"""The help of a command teaches how to call it."""

import signal
import subprocess
import sys
from importlib import import_module
from typing import get_args, get_type_hints

import pytest
import torch

from training.command import command
from training.finetune import FinetuneRecipe
from training.pretrain import RECIPES

TASKS = get_args(get_args(get_type_hints(FinetuneRecipe, include_extras=True)["task"])[0])


@pytest.mark.parametrize(
    ("module", "word", "values"),
    [
        ("training.pretrain", "[RECIPE]", RECIPES),
        ("training.finetune", "TASK", TASKS),
        ("training.contrastive", "MODE", ["unsupervised", "supervised"]),
        ("training.evaluate", "CHECKPOINT", []),
        ("training.verify_corpus", "CORPUS", []),
        ("export.__main__", "CHECKPOINT MODEL_DIR", []),
    ],
)
def test_help_lists_the_words_that_are_no_flags(module, word, values, monkeypatch, capsys):
    """In the usage line, which fits a terminal, and with all that each may be."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "argv", ["command", "--help"])

    with pytest.raises(SystemExit):
        import_module(module).main()

    usage, _, rest = capsys.readouterr().out.partition("\n")
    listed = rest.partition("positional arguments")[2].partition("╰")[0]
    assert usage.endswith(f" {word}")
    assert len(usage) <= 80
    assert [name for name in (*word.split(), *values) if name not in listed] == []


def test_a_flag_that_needs_values_is_named_where_it_has_none(monkeypatch):
    """Rather than data in which there is nothing."""
    monkeypatch.setattr(sys, "argv", ["command", "somewhere", "--data"])

    with pytest.raises(SystemExit, match="--data stands without a value; it needs at least one"):
        import_module("training.evaluate").main()


def test_a_recipe_behind_a_flag_is_refused(monkeypatch):
    """Its settings would not count."""
    monkeypatch.setattr(sys, "argv", ["command", "--corpus", "a", "--run-dir", "b", "tiny"])

    with pytest.raises(SystemExit, match="a recipe comes before all flags: `tiny`"):
        import_module("training.pretrain").main()


@pytest.mark.parametrize(("error", "lines"), [("KeyboardInterrupt", 0), ("RuntimeError", 3)])
def test_an_interrupt_while_a_command_is_imported_is_quiet(error, lines):
    """Other errors are not."""
    code = f"import sys; sys.argv = ['-m']; import training; raise {error}"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert result.returncode != 0
    assert len(result.stderr.splitlines()) == lines


@pytest.mark.parametrize(
    "error", [MemoryError(), torch.OutOfMemoryError("CUDA"), RuntimeError("[enforce fail] can't allocate memory: 9 GB")]
)
def test_a_lack_of_memory_is_one_line(error):
    """Whoever was refused it."""

    def main():
        raise error

    with pytest.raises(SystemExit, match="error: not enough memory; smaller batches"):
        command(main)()


def test_other_errors_of_the_run_time_are_ours():
    """With their traceback."""

    def main():
        raise RuntimeError("shapes")

    with pytest.raises(RuntimeError, match="shapes"):
        command(main)()


def test_a_command_whose_output_nobody_reads_fails_quietly():
    """It has not come to its end."""
    code = "from training.command import command; command(lambda: [print('x', flush=True) for _ in range(9**5)])()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        error = process.stderr.read()

    assert (process.returncode, error) == (128 + signal.SIGPIPE, b"")
