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


@pytest.mark.parametrize(
    ("arguments", "named"),
    [("spans --learnin_rate=1", ("--learnin_rate", "--learning-rate")), ("clasification", TASKS)],
)
def test_a_misspelt_word_names_the_right_ones(arguments, named, capsys):
    """The error of a flag suggests the nearest one, that of a task lists the tasks."""
    words = [*arguments.split(), "--checkpoint", "a", "--train", "b", "--run-dir", "c"]
    with pytest.raises(SystemExit) as caught:
        parse(FinetuneRecipe, "command", None, words)

    error = capsys.readouterr().err
    assert caught.value.code == 2
    assert [name for name in named if name not in error] == []


@pytest.mark.parametrize(
    ("module", "arguments", "message"),
    [
        ("finetune", "spans --checkpoint absent --train b --run-dir c", "no checkpoint at `absent`: there is no such"),
        ("evaluate", "file --data b", "not a checkpoint: `file` is a file; give the directory with config.json and"),
        ("pretrain", "tiny --corpus a --run-dir b --learning-rate -1", "--learning-rate must be above 0: `-1.0`"),
        ("pretrain", "--corpus a --run-dir b tiny", "a recipe comes before all flags: `tiny`"),
        (
            "distill",
            "embeding --checkpoint a --train b",
            f"unknown task: `embeding` (one of: {', '.join(['embedding', *MATCHINGS])})",
        ),
        ("evaluate", "somewhere --data", "--data stands without a value; it needs at least one"),
        ("evaluate", "file --data b --column text", "--column needs a field and the name of a column"),
    ],
)
def test_mistakes_are_one_line(module, arguments, message, tmp_path, monkeypatch):
    """The error names the flag or the path, and what is expected, in one line."""
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    monkeypatch.setattr(sys, "argv", ["command", *arguments.split()])

    with pytest.raises(SystemExit) as caught:
        import_module(f"training.{module}").main()

    assert str(caught.value.code).startswith(f"error: {message}")
    assert "\n" not in str(caught.value.code)


@pytest.mark.parametrize(
    "flags",
    [
        ["--columns.text", "a=b", "--columns.text-pair", "other"],
        ["--column", "text=a=b", "--column", "text_pair=other"],
        ["--column=text=a=b", "--column", "text-pair=other"],
    ],
)
def test_both_spellings_name_columns(flags):
    """One flag for each field, and the client's repeated flag, set the same columns."""
    words = ["classification", "--checkpoint", "c", "--train", "a.tsv", "--run-dir", "r"]

    columns = parse(FinetuneRecipe, "training.x", "", [*words, *flags]).columns

    assert (columns.text, columns.text_pair, columns.label) == ("a=b", "other", "label")


@pytest.mark.parametrize("flag", ["--skip-empty", "--columns.skip-empty"])
def test_rows_to_leave_out_are_flags(flag):
    """Empty rows have a flag of two spellings; marks of rows without labels may look like flags or numbers."""
    words = ["classification", "--checkpoint", "c", "--train", "a.tsv", "--run-dir", "r"]

    columns = parse(FinetuneRecipe, "x", "", [*words, flag, "--columns.no-label", "-1", "-", "n/a"]).columns

    assert (columns.skip_empty, columns.no_label) == (True, ("-1", "-", "n/a"))


@pytest.mark.parametrize(("error", "lines"), [("KeyboardInterrupt", 0), ("RuntimeError", 3)])
def test_an_interrupt_while_a_command_is_imported_is_quiet(error, lines):
    """An interrupt during the import of a command prints no traceback, and other errors do."""
    code = f"import sys; sys.argv = ['-m']; import training; raise {error}"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert result.returncode != 0
    assert len(result.stderr.splitlines()) == lines


@pytest.mark.parametrize(
    ("error", "ending", "message"),
    [
        (MemoryError(), SystemExit, "error: not enough memory; smaller batches"),
        (torch.OutOfMemoryError("CUDA"), SystemExit, "error: not enough memory"),
        (RuntimeError("[enforce fail] can't allocate memory: 9 GB"), SystemExit, "error: not enough memory"),
        (RuntimeError("shapes"), RuntimeError, "shapes"),
    ],
)
def test_a_lack_of_memory_is_one_line(error, ending, message):
    """A lack of memory is an error of one line, whichever library reports it; other errors keep their traceback."""

    def main():
        raise error

    with pytest.raises(ending, match=message):
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


def test_a_command_with_closed_output_fails_quietly():
    """A command whose output is closed ends with SIGPIPE's exit code and no message."""
    work = "lambda: [print('x', flush=True) for _ in range(9**5)]"
    code = f"from training.command_line.command import command; command({work})()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        error = process.stderr.read()

    assert (process.returncode, error) == (128 + signal.SIGPIPE, b"")
