"""Tests of the commands' help, flags and errors."""

import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import torch

import training
from training.command_line.command import command, parse
from training.finetuning.recipe import FinetuneRecipe
from training.objectives.distillation import MATCHINGS
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
def test_help_lists_positional_arguments(module, word, values, monkeypatch, capsys):
    """The usage line names the positional arguments and fits a terminal, and the help lists their values."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "argv", ["command", "--help"])

    with pytest.raises(SystemExit):
        import_module(module).main()

    usage, _, rest = capsys.readouterr().out.partition("\n")
    listed = rest.partition("positional arguments")[2].partition("╰")[0]

    assert usage.endswith(f" {word}")
    assert len(usage) <= 80
    assert [name for name in (*word.split(), *values) if name not in listed] == []


def test_help_after_a_task_describes_the_whole_command(capsys):
    """The help describes the whole command and all tasks, also after a given task."""
    with pytest.raises(SystemExit):
        parse(FinetuneRecipe, "training.finetune", None, ["spans", "--checkpoint", "a", "--help"])

    lines = [line.strip("│ ") for line in capsys.readouterr().out.splitlines()]

    assert [task for task in TASKS if not any(line.startswith(f"- {task}: ") for line in lines)] == []


def help_by_flag(text):
    """Return the help text of each flag."""
    lines = text.splitlines()
    column = next(line.index("show this") for line in lines if "show this" in line)
    found = {}
    for line in lines:
        if line.startswith("│ --"):
            flag = line[2:].split()[0]
            found[flag] = line[column:] if line[column - 1] == " " else ""
        elif found and line.startswith("│") and not line[1:column].strip():
            found[flag] += line[column:]
    return {flag: text.strip(" │") for flag, text in found.items()}


ROOT = Path(training.__file__).parent
COMMANDS = [path.relative_to(ROOT) for path in ROOT.rglob("*.py") if "import command, parse" in path.read_text()]


@pytest.mark.parametrize("path", sorted(COMMANDS), ids=str)
def test_every_flag_has_a_help_text(path, monkeypatch, capsys):
    """Every flag has a help text besides its default."""
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "argv", ["command", "--help"])
    with pytest.raises(SystemExit):
        import_module(".".join(["training", *path.with_suffix("").parts])).main()

    helps = help_by_flag(capsys.readouterr().out)

    assert [flag for flag, text in helps.items() if text.startswith("(") or not text] == []


def test_an_unknown_flag_names_the_nearest_one(capsys):
    """The error suggests the nearest flag."""
    with pytest.raises(SystemExit) as caught:
        parse(
            FinetuneRecipe,
            "command",
            None,
            ["spans", "--checkpoint", "a", "--train", "b", "--run-dir", "c", "--learnin_rate=1"],
        )

    error = capsys.readouterr().err
    assert caught.value.code == 2
    assert "--learnin_rate" in error
    assert "--learning-rate" in error


def test_a_misspelt_task_names_the_tasks(capsys):
    """The error lists the tasks."""
    with pytest.raises(SystemExit):
        parse(FinetuneRecipe, "command", None, ["clasification", "--checkpoint", "a", "--train", "b", "--run-dir", "c"])

    error = capsys.readouterr().err
    assert [task for task in TASKS if task not in error] == []


def test_a_misspelt_task_of_distillation_names_vectors_too(monkeypatch):
    """Distillation also has the task `embedding`, and not all of fine-tuning."""
    monkeypatch.setattr(sys, "argv", ["command", "embeding", "--checkpoint", "a", "--train", "b"])

    with pytest.raises(SystemExit) as caught:
        import_module("training.distill").main()

    tasks = ", ".join(["embedding", *MATCHINGS])
    assert caught.value.code == f"error: unknown task: `embeding` (one of: {tasks})"


@pytest.mark.parametrize("module", ["training.finetune", "training.evaluate"])
@pytest.mark.parametrize("kind", ["missing", "file"])
def test_a_missing_checkpoint_is_one_line(module, kind, tmp_path, monkeypatch):
    """The error names the path, the problem and the expected checkpoint in one line."""
    path = tmp_path / "checkpoint"
    if kind == "file":
        path.write_text("")
    words = {
        "training.finetune": ["spans", "--checkpoint", str(path), "--train", "a", "--run-dir", str(tmp_path / "run")],
        "training.evaluate": [str(path), "--data", "a"],
    }[module]
    monkeypatch.setattr(sys, "argv", ["command", *words])

    with pytest.raises(SystemExit) as caught:
        import_module(module).main()

    message = {
        "missing": f"error: no checkpoint at `{path}`: there is no such directory; give one with config.json",
        "file": f"error: not a checkpoint: `{path}` is a file; give the directory with config.json and weights",
    }[kind]

    assert str(caught.value.code).startswith(message)


@pytest.mark.parametrize("module", ["training.finetune", "training.pretrain"])
def test_a_value_that_cannot_be_is_one_line(module, monkeypatch, capsys):
    """A value outside its range is an error of one line that names the flag."""
    words = {"training.finetune": "spans --checkpoint a --train b", "training.pretrain": "tiny --corpus a"}[module]
    monkeypatch.setattr(sys, "argv", ["command", *words.split(), "--run-dir", "c", "--learning-rate", "-1"])

    with pytest.raises(SystemExit) as caught:
        import_module(module).main()

    assert caught.value.code == "error: --learning-rate must be above 0: `-1.0`"


def test_a_flag_without_values_is_named(monkeypatch):
    """A flag without its values is an error that names it."""
    monkeypatch.setattr(sys, "argv", ["command", "somewhere", "--data"])

    with pytest.raises(SystemExit, match="--data stands without a value; it needs at least one"):
        import_module("training.evaluate").main()


def test_a_recipe_behind_a_flag_is_refused(monkeypatch):
    """A recipe's name after a flag is refused."""
    monkeypatch.setattr(sys, "argv", ["command", "--corpus", "a", "--run-dir", "b", "tiny"])

    with pytest.raises(SystemExit, match="a recipe comes before all flags: `tiny`"):
        import_module("training.pretrain").main()


@pytest.mark.parametrize(("error", "lines"), [("KeyboardInterrupt", 0), ("RuntimeError", 3)])
def test_an_interrupt_while_a_command_is_imported_is_quiet(error, lines):
    """An interrupt during the import of a command prints no traceback, and other errors do."""
    code = f"import sys; sys.argv = ['-m']; import training; raise {error}"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert result.returncode != 0
    assert len(result.stderr.splitlines()) == lines


@pytest.mark.parametrize(
    "error", [MemoryError(), torch.OutOfMemoryError("CUDA"), RuntimeError("[enforce fail] can't allocate memory: 9 GB")]
)
def test_a_lack_of_memory_is_one_line(error):
    """A lack of memory is an error of one line, whichever library reports it."""

    def main():
        raise error

    with pytest.raises(SystemExit, match="error: not enough memory; smaller batches"):
        command(main)()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_that_end_a_process_are_interrupts(number):
    """Signals that end a process run the clean-up and set the exit code."""
    tidied = []

    def main():
        try:
            signal.raise_signal(number)
        finally:
            tidied.append(number)

    before = signal.signal(number, signal.SIG_DFL)
    try:
        with pytest.raises(SystemExit) as ended:
            command(main)()

        assert (ended.value.code, tidied) == (128 + number, [number])
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_other_errors_of_the_run_time_are_ours():
    """Other runtime errors keep their traceback."""

    def main():
        raise RuntimeError("shapes")

    with pytest.raises(RuntimeError, match="shapes"):
        command(main)()


def test_a_command_with_closed_output_fails_quietly():
    """A command whose output is closed ends with SIGPIPE's exit code and no message."""
    work = "lambda: [print('x', flush=True) for _ in range(9**5)]"
    code = f"from training.command_line.command import command; command({work})()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        error = process.stderr.read()

    assert (process.returncode, error) == (128 + signal.SIGPIPE, b"")
