"""Tests of a run directory: its lock, complete files, full disks, damaged files, and resuming."""

import json
import resource
import shutil
import signal
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch import nn

from training.checkpoint.reader import create_model
from training.checkpoint.task_card import TaskCard
from training.checkpoint.writer import save_checkpoint
from training.data.columns import Columns
from training.finetuning.recipe import FinetuneRecipe
from training.loop.loss_monitor import LossMonitor
from training.loop.recipe import RecipeRecord, RunMismatchError
from training.loop.run_directory import RunDirectory, read_metrics
from training.loop.types import LoopSettings, Progress
from training.model.config import EncoderConfig
from training.reports.plot import plot_run
from training.reports.result import PATH_FIELDS

ASKED = RecipeRecord(LoopSettings(), {}, paths=())


def network(size=4):
    model = nn.Linear(size, size)
    return model, torch.optim.AdamW(model.parameters())


def write_states(path, alone, *steps, size=4):
    """Write a run with states, as if killed after the last one."""
    with RunDirectory(path, alone) as run:
        run.begin(ASKED)
        for step in steps:
            run.save_state(*network(size), Progress(step=step), LossMonitor(), keep=9)


def resume(path, alone):
    with RunDirectory(path, alone) as run:
        run.begin(ASKED)
        return run.load_state(*network(), LossMonitor())


def test_a_run_is_one_process_at_a_time(tmp_path, alone):
    """A second process is refused until the first one ends, with or without an error."""
    with RunDirectory(tmp_path, alone) as first:
        first.begin(ASKED)
        with (
            RunDirectory(tmp_path, alone) as second,
            pytest.raises(ValueError, match=r"another process is writing `.*`; wait"),
        ):
            second.begin(ASKED)
    (tmp_path / "metrics.jsonl").write_text("damaged\n")
    with pytest.raises(ValueError, match="broken JSON"):
        resume(tmp_path, alone)
    (tmp_path / "metrics.jsonl").unlink()

    assert resume(tmp_path, alone) == Progress()


@contextmanager
def limited(size):
    """Limit the size of files, like a full disk, and restore the limit at the end."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_state_that_does_not_fit_is_named(tmp_path, alone):
    """The error names the state file and the reason, and keeps the state before."""
    write_states(tmp_path, alone, 1, size=4)

    message = r"File too large: '.*/state/step-00000002/state\.pt'"
    with pytest.raises(OSError, match=message), limited(100_000):
        write_states(tmp_path, alone, 2, size=200)

    assert [path.name for path in (tmp_path / "state").iterdir()] == ["step-00000001"]
    assert resume(tmp_path, alone).step == 1


@pytest.mark.parametrize(("size", "name"), [(20, "metrics.jsonl"), (70, "tensorboard/events")])
def test_metrics_that_do_not_fit_are_named(size, name, tmp_path, alone):
    """The error names the metrics file or the TensorBoard file."""

    def log():
        with RunDirectory(tmp_path, alone) as run:
            run.begin(ASKED)
            run.load_state(*network(), LossMonitor())
            with limited(size):
                run.log({"step": 1, "loss": 1.25})

    with pytest.raises(OSError, match=f"File too large: '.*/{name}"):
        log()


def test_a_checkpoint_that_does_not_fit_is_named(checkpoint, tmp_path):
    """The error names the planned path of the checkpoint, and no file remains."""
    shape = EncoderConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    model, card = create_model("embedding", shape), TaskCard(task="embedding", settings=None)

    message = r"File too large .*: '.*/there/model\.safetensors'"
    with pytest.raises(OSError, match=message), limited(20_000):
        save_checkpoint(tmp_path / "there", model, tokenizer_from=checkpoint, card=card)

    assert list(tmp_path.iterdir()) == []


def test_a_damaged_line_of_the_metrics_is_named(tmp_path, alone):
    """Plotting and resuming name the file and the line of damaged metrics; a line cut by a kill is left out."""
    write_states(tmp_path, alone, 1)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"ste')
    assert read_metrics(tmp_path) == [{"step": 1}, {"step": 2}]
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n\xff\xfe\n')

    for use in (read_metrics, plot_run, lambda path: resume(path, alone)):
        with pytest.raises(ValueError, match=r"metrics\.jsonl`, line 2: broken JSON .*correct it, or choose another"):
            use(tmp_path)


def damage(state, how):
    data = state.read_bytes()
    if how == "cut":
        state.write_bytes(data[: len(data) // 2])
    elif how == "gone":
        state.unlink()
    else:
        whole = torch.load(state)
        torch.save({"list": [1], "other": {"weights": {}}, "fields": whole | {"progress": {"place": 1}}}[how], state)


@pytest.mark.parametrize("how", ["cut", "gone", "list", "other", "fields"])
def test_a_damaged_state_is_named(how, tmp_path, alone):
    """The error names a damaged state and the remedy, and the run then resumes from the state before."""
    write_states(tmp_path, alone, 1, 2)
    damage(tmp_path / "state" / "step-00000002" / "state.pt", how)

    with pytest.raises(ValueError, match=r"cannot read state `.*state\.pt`: .*remove `.*step-00000002` to resume"):
        resume(tmp_path, alone)

    for item in (tmp_path / "state" / "step-00000002").iterdir():
        item.unlink()
    (tmp_path / "state" / "step-00000002").rmdir()

    assert resume(tmp_path, alone).step == 1


def test_a_checkpoint_without_weights_is_no_result(tmp_path, alone):
    """A checkpoint without weights is refused; after its removal the run resumes, or trains again without a state."""
    write_states(tmp_path, alone, 1)
    for remedy in ("resumes", "trains again from the start"):
        (tmp_path / "checkpoint").mkdir()
        with pytest.raises(RunMismatchError, match=f"checkpoint` has no weights; remove it, .* command {remedy}"):
            resume(tmp_path, alone)
        (tmp_path / "checkpoint").rmdir()
        assert resume(tmp_path, alone).step == (remedy == "resumes")
        shutil.rmtree(tmp_path / "state", ignore_errors=True)


def test_leftovers_of_a_kill_are_removed(tmp_path, alone):
    """The next start removes the states next to a result and partial files, and keeps foreign files."""
    write_states(tmp_path, alone, 1)
    leftovers = (".checkpoint.x/config.json", ".metrics.jsonl.x", "state/.s/a")
    for name in ("checkpoint/model.safetensors", ".mine", *leftovers):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()

    with RunDirectory(tmp_path, alone) as run:
        assert not run.begin(ASKED)

    assert {path.name for path in tmp_path.iterdir()} == {"recipe.json", "checkpoint", ".mine", ".lock"}


def test_a_resumed_run_repeats_no_warning(tmp_path, alone):
    """A resumed run repeats no warning."""
    monitor, resumed = LossMonitor(), LossMonitor()
    for item in (monitor, resumed):
        item.start(10, torch.device("cpu"))
    warnings = [monitor.warning(step, {"loss": loss}, loss) for step, loss in enumerate((1.0, 99.0, 99.0))]
    with RunDirectory(tmp_path, alone) as run:
        run.begin(ASKED)
        run.save_state(*network(), Progress(step=1), monitor, keep=9)
    with RunDirectory(tmp_path, alone) as run:
        run.begin(ASKED)
        run.load_state(*network(), resumed)

    assert list(map(bool, warnings)) == [False, True, False]
    assert resumed.state_dict() == monitor.state_dict()
    assert resumed.warning(3, {"loss": 99.0}, 99.0) == ""


def test_a_changed_field_of_the_recipe_is_named(tmp_path):
    """The error names the first field that differs or the run's stage; paths may differ if the data are the same."""
    recipe = FinetuneRecipe(
        task="classification", checkpoint=tmp_path, train=(tmp_path,), run_dir=tmp_path, columns=Columns(text="a")
    )
    asked = RecipeRecord(recipe, {"data": {"train": ["1"]}}, paths=PATH_FIELDS)
    before = json.loads(json.dumps(asked.values))
    asked.check(before | {"train": ["elsewhere"]}, tmp_path)

    for change, message in (
        ({"select": "best"}, "select `best`, not `last`"),
        ({"columns": {"text": "b"}}, "columns.text `b`, not `a`"),
        ({"data": {"train": ["2"]}}, r"data.train `\['2'\]`, not `\['1'\]`"),
        ({"task": 5}, "task `5`, not `classification`"),
        ({"dev": ["elsewhere"]}, r"dev `\['elsewhere'\]`, not `\[\]`"),
    ):
        with pytest.raises(RunMismatchError, match=f"was started with {message}; choose another run directory"):
            asked.check(before | change, tmp_path)
    asked.check(before | {"select": "best"}, tmp_path, is_finished=False)
    with pytest.raises(RunMismatchError, match="was started with select `macro_f1`, not `last`"):
        asked.check(before | {"select": "macro_f1"}, tmp_path, is_finished=False)
    older = {name: value for name, value in before.items() if name not in ("label_smoothing", "patience", "seed")}
    asked.check(older, tmp_path)
    with pytest.raises(RunMismatchError, match=r"was started with label_smoothing `0\.0`, not `0\.1`"):
        RecipeRecord(replace(recipe, label_smoothing=0.1), {}, paths=PATH_FIELDS).check(older, tmp_path)
    with pytest.raises(RunMismatchError, match=r"`.*` is a run of pretraining; choose another run directory"):
        asked.check(before | {"stage": "pretraining"}, tmp_path)


def test_a_refused_run_leaves_nothing(tmp_path, alone):
    """A refused run leaves no directory, and a run that had begun stays."""

    def refuse(path):
        with RunDirectory(path, alone) as run:
            run.begin(ASKED)
            raise ValueError("no good")

    for name, steps in (("new", ()), ("begun", (1,))):
        if steps:
            write_states(tmp_path / name, alone, *steps)
            resume(tmp_path / name, alone)
        with pytest.raises(ValueError, match="no good"):
            refuse(tmp_path / name)

    assert [path.name for path in tmp_path.iterdir()] == ["begun"]
    assert resume(tmp_path / "begun", alone).step == 1
