"""Tests of the loop: batches, reports, and resuming."""

import itertools
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.toy import TINY
from tests.training.loop.numbered_data import NumberedData
from training.checkpoint.reader import create_model, load_model
from training.loop import throughput_meter as meter_module
from training.loop.gradients import accumulate_gradients
from training.loop.loss_monitor import DivergedError, LossMonitor, Plateau
from training.loop.optimizer import create_optimizer, set_learning_rate
from training.loop.recipe import RecipeRecord
from training.loop.run_directory import RunDirectory, read_metrics
from training.loop.schedule import LearningRateSchedule
from training.loop.train import train
from training.loop.types import Batch, Evaluation, LoopSettings, Phase, Progress
from training.model.config import EncoderConfig
from training.pretrain import PretrainRecipe, pretrain
from training.text.corpus import Corpus

SHAPE = EncoderConfig(vocab_size=50, hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=32)


def objective(network, batch):
    ids = batch.inputs["input_ids"]
    hidden = network(ids, None, torch.zeros_like(ids))["pooler_output"]
    return {"loss": ((hidden - 0.5) ** 2).mean(-1).sum()}


def scoring(*scores, every):
    """Return an evaluation with given scores."""
    following = iter(scores)
    return Evaluation(scores=lambda: {"f1": next(following)}, every=every)


def tiny_train(path, alone, *, num_steps=12, phases=None, loss=objective, monitor=None, evaluation=None, **changes):
    torch.manual_seed(0)
    model = create_model("embedding", SHAPE, dropout=0.0)
    settings = LoopSettings(
        **{"global_batch_size": 4, "log_every": 1, "learning_rate": 1e-3, "dtype": "fp32", "checkpoint_every": 4}
        | changes
    )
    phases = phases or [Phase(data=NumberedData())]
    with RunDirectory(path, alone) as run:
        run.begin(RecipeRecord(LoopSettings(), {}, paths=()))
        options = {"num_steps": num_steps, "monitor": monitor, "evaluation": evaluation}
        progress = train(model, phases, loss, settings=settings, run=run, **options)
    return model, progress, run


def test_each_batch_is_seen_once_and_in_order(tmp_path, alone):
    """Training reads every batch once, in order, through epochs of different sizes and in micro-batches."""
    data = NumberedData()
    tiny_train(tmp_path / "run", alone, phases=[Phase(data=data)], micro_batch_size=3)

    expected = [(0, index) for index in range(5)] + [(1, index) for index in range(6)] + [(2, 0)]

    assert data.asked[:24] == [(*place, *part) for place in expected for part in ((0, 3), (3, 4))]


def test_phases_follow_each_other(tmp_path, alone):
    """The second phase begins at its fraction of the steps with its own first batch and micro-batches."""
    short, long = NumberedData(), NumberedData()
    phases = [Phase(data=short, end=0.75), Phase(data=long, micro_batch_size=1)]
    _, progress, _ = tiny_train(tmp_path / "run", alone, phases=phases)

    assert short.asked[-2:-1] == [(1, 3, 0, 4)]
    assert long.asked[:5] == [(0, 0, 0, 1), (0, 0, 1, 2), (0, 0, 2, 3), (0, 0, 3, 4), (0, 1, 0, 1)]
    assert (progress.phase, progress.epoch, progress.index, progress.step) == (1, 0, 3, 12)


def test_time_budget_ends_a_run(tmp_path, alone, monkeypatch, capsys):
    """The time budget ends a run with the learning rate at its end, and drives the progress bar and the warnings."""
    ticks = (0.1 * number for number in itertools.count())
    monkeypatch.setattr(meter_module, "time", SimpleNamespace(monotonic=ticks.__next__, perf_counter=time.perf_counter))
    monitor = LossMonitor(Plateau(loss="loss", value=-1.0, meaning="what cannot be", hint="give more time"))
    _, progress, run = tiny_train(
        *(tmp_path / "run", alone), num_steps=1_000_000, max_minutes=0.2, warmup_ratio=0.25, monitor=monitor
    )

    assert 50 < progress.step < 200
    assert 12 <= progress.elapsed_s < 13
    rates = [line["learning_rate"] for line in read_metrics(run.path)]
    assert max(rates) == pytest.approx(1e-3, rel=0.1)
    assert rates[-1] < 2e-4
    bar = capsys.readouterr().err
    assert "100%|" in bar
    assert "%/s" not in bar
    assert bar.count("no better than what cannot be") == 1
    assert [line["step"] > progress.step / 3 for line in read_metrics(run.path) if "warning" in line] == [True]


def test_time_of_training_goes_on_after_a_kill(tmp_path, alone, monkeypatch):
    """The elapsed time of a resumed run continues from its state and leaves out the break."""
    for starts_at, loss in ((0, exploding_at(7)), (1000, objective)):
        ticks = (starts_at + 0.1 * number for number in itertools.count())
        clock = SimpleNamespace(monotonic=ticks.__next__, perf_counter=time.perf_counter)
        monkeypatch.setattr(meter_module, "time", clock)
        with pytest.raises(DivergedError) if starts_at == 0 else nullcontext():
            tiny_train(tmp_path / "run", alone, loss=loss)

    times = [line["elapsed_s"] for line in read_metrics(tmp_path / "run")]

    assert len(times) == 12
    assert all(0 < later - earlier < 1 for earlier, later in itertools.pairwise(times))


def test_learning_rate_rises_and_falls_linearly():
    """The learning rate rises linearly to its peak, then falls linearly to 0 after the last step."""
    schedule = LearningRateSchedule(10, LoopSettings(learning_rate=1.0, warmup_ratio=0.4))
    rates = [schedule.learning_rate(Progress(step=step)) for step in range(11)]
    without_warmup = LearningRateSchedule(10, LoopSettings(learning_rate=1.0, warmup_ratio=0.0))

    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4:] == pytest.approx([1 - step / 6 for step in range(7)])
    assert without_warmup.learning_rate(Progress()) == 1.0


def test_schedule_by_time_is_that_by_steps():
    """The schedule follows the larger of the fractions of time and steps."""
    by_steps = LearningRateSchedule(300, LoopSettings())
    by_time = LearningRateSchedule(300, LoopSettings(max_minutes=1.0))

    for third in (0, 1, 2):
        expected = by_steps.learning_rate(Progress(step=100 * third))
        assert by_time.learning_rate(Progress(step=10, elapsed_s=20.0 * third + 1e-9)) == pytest.approx(
            expected if third else by_steps.learning_rate(Progress(step=10))
        )
        assert by_time.learning_rate(Progress(step=100 * third)) == pytest.approx(expected, rel=0.05)

    assert by_time.is_over(Progress(elapsed_s=60.0))
    assert not by_time.is_over(Progress(step=299, elapsed_s=59.9))


def exploding_at(step):
    seen = []

    def loss(network, batch):
        losses = objective(network, batch)
        seen.append(1)
        return {"loss": losses["loss"] * (math.inf if len(seen) == step else 1.0)}

    return loss


def test_infinite_loss_is_named_and_leaves_the_weights(tmp_path, alone):
    """The error names step and batch of an infinite loss; no state is saved after it, and weights do not change."""
    with pytest.raises(DivergedError, match=r"the loss is inf .*at step 7 \(epoch 1, batch 1\)"):
        tiny_train(tmp_path / "run", alone, loss=exploding_at(7), log_every=100, checkpoint_every=4, num_steps=20)

    assert [path.name for path in (tmp_path / "run" / "state").iterdir()] == ["step-00000004"]
    torch.manual_seed(0)
    model = create_model("embedding", SHAPE, dropout=0.0)
    optimizer = create_optimizer(model, weight_decay=0.01, betas=(0.9, 0.999))
    set_learning_rate(optimizer, 1e-3)
    monitor = LossMonitor()
    monitor.start(10, torch.device("cpu"))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    losses = objective(model, NumberedData().batch(0, 0, slice(0, 2)))
    (losses["loss"] * math.nan).backward()
    optimizer.found_inf = monitor.observe(Progress(), {"loss": losses["loss"] * math.nan}, torch.tensor(1.0))
    optimizer.step()

    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_losses_count_by_their_weights(alone):
    """The gradient weights each loss, by 1 if no weight is given."""
    model = create_model("embedding", SHAPE, dropout=0.0)
    batch = Batch({"input_ids": torch.arange(5, 13).view(2, 4)}, {}, {"one": 2, "two": 8}, 8)

    def losses(network, batch):
        ids = batch.inputs["input_ids"]
        outputs = network(ids, None, torch.zeros_like(ids))
        return {"one": outputs["pooler_output"].square().sum(), "two": outputs["last_hidden_state"].abs().sum()}

    settings = LoopSettings(dtype="fp32")
    accumulate_gradients(model, [batch], losses, settings, alone, weights={"two": 3.0})
    sums = losses(model, batch)
    expected = torch.autograd.grad(sums["one"] / 2 + 3 * sums["two"] / 8, list(model.parameters()))

    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_a_nan_score_is_never_the_best(tmp_path, alone):
    """A NaN score is never the best."""
    evaluation = scoring(math.nan, 0.2, 0.1, every=2)
    _, _, run = tiny_train(tmp_path / "run", alone, num_steps=6, checkpoint_every=5, evaluation=evaluation)

    assert [path.name for path in run.states("best")] == ["best-00000004"]


def monitored(losses, **settings):
    monitor = LossMonitor(**settings)
    monitor.start(len(losses), torch.device("cpu"))
    warnings = []
    for step, loss in enumerate(losses, start=1):
        monitor.observe(Progress(step=step - 1), {"mlm": torch.tensor(loss)}, torch.tensor(1.0))
        monitor.check_finite()
        if warning := monitor.warning(step, {"mlm": loss}, loss):
            warnings.append((step, warning))
    return warnings


def test_collapse_is_reported_once():
    """A loss that rises and stays high gives one warning, and noise gives none."""
    noise = [3 + 0.4 * (-1) ** step for step in range(60)]

    assert monitored(noise) == []
    ((step, warning),) = monitored([*noise, *[7.0] * 40])
    assert 60 < step < 70
    assert "has risen from" in warning


def test_the_rise_is_of_the_weighted_sum():
    """The warning has the numbers of `loss` in the metrics, not those of losses without weights."""
    monitor = LossMonitor()
    monitor.start(100, torch.device("cpu"))
    losses = [(2.0, 0.1)] * 30 + [(2.0, 0.4)] * 30
    warnings = [monitor.warning(step, {"a": a, "b": b}, a + 50 * b) for step, (a, b) in enumerate(losses)]

    (warning,) = filter(None, warnings)
    assert warning.startswith("the loss has risen from 7.0")


def test_plateau_is_reported_in_the_second_half():
    """The warning about a plateau comes in the second half of the run, and only without progress."""
    plateau = Plateau(loss="mlm", value=5.8, meaning="token frequencies alone", hint="train longer")

    ((step, warning),) = monitored([5.81] * 40, plateau=plateau)

    assert step == 20
    assert "no better than token frequencies alone (5.800): train longer" in warning
    assert monitored([5.81] * 19 + [5.0] * 60, plateau=plateau) == []
    assert monitored([10.3] + [5.0] * 19, plateau=plateau) == []  # the first losses are soon forgotten


def largest_changes(path, alone, **settings):
    """Return the largest change of a weight of each layer from the top down, and of the word embeddings."""
    torch.manual_seed(0)
    before = create_model("embedding", SHAPE, dropout=0.0).state_dict()
    model, _, _ = tiny_train(path, alone, warmup_ratio=0.0, weight_decay=0.0, **settings)
    names = [*(f"bert.layers.{number}.qkv.weight" for number in (2, 1, 0)), "bert.embeddings.word.weight"]
    return [float((model.state_dict()[name] - before[name]).abs().max()) for name in names]


def test_lower_layers_of_a_run_learn_slower_and_later(tmp_path, alone):
    """A run applies the learning-rate decay by layer and the unfreezing by step."""
    slower = largest_changes(tmp_path / "slower", alone, num_steps=1, layer_decay=0.5)
    later = largest_changes(tmp_path / "later", alone, num_steps=3, unfreeze_every=1)

    assert slower == pytest.approx([1e-3 * 0.5**depth for depth in (1, 2, 3, 4)], rel=0.01)
    assert [change > 0 for change in later] == [True, True, False, False]


@pytest.mark.parametrize(
    ("scores", "has_older", "best"),
    [
        ([0.2, 0.8, 0.1, 0.1], True, 6),
        ([0.1, 0.1, 0.1, 0.1], True, 2),
        ([0.1, 0.3, 0.1, 0.1], False, 6),
    ],
)
def test_a_resumed_run_forgets_later_best_states(scores, has_older, best, tmp_path, alone):
    """A resumed run forgets best states later than its own state, and keeps earlier ones that exist."""
    run = partial(tiny_train, tmp_path / "run", alone, num_steps=8)
    with pytest.raises(DivergedError):
        run(loss=exploding_at(8), evaluation=scoring(0.1, 0.5, 0.2, 0.2, 0.2, 0.2, 0.6, every=1))
    states = tmp_path / "run" / "state"
    assert {path.name for path in states.iterdir()} == {"best-00000002", "step-00000004", "best-00000007"}
    if not has_older:
        shutil.rmtree(states / "best-00000002")

    model, _, done = run(evaluation=scoring(*scores, every=1))

    assert [path.name for path in done.states("best")] == [f"best-0000000{best}"]
    assert done.load_best(model).step == best


def test_best_state_is_kept_and_can_be_loaded(tmp_path, alone):
    """The run keeps the state with the best score in addition to the latest, and can load it."""
    scores, networks, weights = iter([0.1, 0.2, 0.9, 0.3, 0.4]), [], []

    def loss(network, batch):
        networks.append(network)
        return objective(network, batch)

    def evaluate():
        weights.append({name: value.clone() for name, value in networks[-1].state_dict().items()})
        return {"f1": next(scores)}

    settings = {"num_steps": 10, "checkpoint_every": 5, "keep_last": 1}
    evaluation = Evaluation(scores=evaluate, every=2)
    model, _, run = tiny_train(tmp_path / "run", alone, loss=loss, evaluation=evaluation, **settings)

    assert [path.name for path in run.states("best")] == ["best-00000006"]
    assert [path.name for path in run.states()] == ["step-00000010"]
    assert run.load_best(model).step == 6
    assert all(torch.equal(weights[2][name], value) for name, value in model.state_dict().items())


DEV = (0.1, 0.3, 0.3, math.nan, 0.2, 0.4, 0.5)


@pytest.mark.parametrize(("patience", "last", "best"), [(2, 4, 2), (3, 5, 2), (4, 11, 7), (None, 12, 7)])
@pytest.mark.parametrize("breaks_at", [None, 1, 3])
def test_patience_ends_a_run(patience, last, best, breaks_at, tmp_path, alone, monkeypatch, capsys):
    """Evaluations without a better score end a run, also if it resumes in between; the best weights are selected."""
    monkeypatch.setattr(LoopSettings, "dev", ("dev.tsv",), raising=False)
    settings = {"patience": patience, "select": "macro_f1" if patience else "best", "checkpoint_every": 2}
    run = partial(tiny_train, tmp_path / "run", alone, **settings)

    def scores(path=tmp_path / "run"):
        done = sum("eval_macro_f1" in line for line in read_metrics(path))
        score = (*DEV, *[0.0] * 9)[done]
        if done == breaks_at:
            raise OSError("broken off")
        return {"macro_f1": score, "accuracy": done}

    evaluation = Evaluation(scores=scores, every=1)
    if breaks_at:
        with pytest.raises(OSError, match="broken off"):
            run(evaluation=evaluation)
        breaks_at = None
    _, progress, done = run(evaluation=evaluation)
    again = run(evaluation=evaluation)[1]

    assert progress.step == again.step == best
    assert read_metrics(done.path)[-1]["step"] == last
    stops = f"stopped after step {last}: no better score on dev in {patience} evaluations"
    assert (stops in capsys.readouterr().out) == (last < 12)


def test_an_unknown_score_is_refused_before_training(tmp_path, alone, monkeypatch):
    """The error names the scores, before the first step."""
    monkeypatch.setattr(LoopSettings, "dev", ("dev.tsv",), raising=False)
    seen = []

    with pytest.raises(ValueError, match="no score `f2` on dev: --select is one of last, best, f1"):
        tiny_train(tmp_path / "run", alone, loss=seen.append, evaluation=scoring(0.1, every=1), select="f2")
    assert not seen


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"patience": 2}, "--patience needs --select best, or a score"),
        ({"patience": 2, "select": "f1"}, "--select f1 needs held-out data"),
        ({"select": "f1", "checkpoint_every": 0, "dev": True}, "--select f1 needs states"),
        ({"patience": 2, "select": "f1", "dev": True, "eval_every": 0}, "--patience needs evaluations along the way"),
    ],
)
def test_selection_needs_scores_and_states(changes, message, monkeypatch):
    """Early stopping and selection are refused without what they need."""
    for name in {"dev", "eval_every"} & {*changes}:
        monkeypatch.setattr(LoopSettings, name, changes.pop(name), raising=False)
    with pytest.raises(ValueError, match=message):
        LoopSettings(**changes)


def test_metrics_and_tensorboard_hold_the_same(tmp_path, alone):
    """The metrics file and TensorBoard hold the same values, with throughput, MFU and gradient norm in every line."""
    _, _, run = tiny_train(tmp_path / "run", alone)
    lines = read_metrics(run.path)
    events = EventAccumulator(str(run.path / "tensorboard")).Reload()

    names = ("loss", "learning_rate", "grad_norm", "tokens_per_s", "flops_per_s", "mfu", "data_wait", "num_tokens")
    for name in names:
        scalars = {event.step: event.value for event in events.Scalars(f"train/{name}")}
        assert scalars == pytest.approx({line["step"]: line[name] for line in lines}, rel=1e-4)

    assert all(line["flops_per_s"] > 0 and 0 <= line["mfu"] < 1 and 0 <= line["data_wait"] <= 1 for line in lines)
    assert [line["num_tokens"] for line in lines] == [16 * line["step"] for line in lines]


COMMAND = ["--max-position-embeddings", "64", "--num-hidden-layers", "2", "--hidden-size", "32", "--log-every", "1"]
COMMAND += ["--num-attention-heads", "2", "--max-seq-length", "32", "--global-batch-size", "8", "--dtype", "fp32"]


def pretraining_command(corpus_dir, run, *flags):
    arguments = ["--corpus", str(corpus_dir), "--run-dir", str(run), *COMMAND, *flags]
    return [sys.executable, "-m", "training.pretrain", *arguments]


def losses(run):
    return [(line["step"], line["mlm"], line["nsp"]) for line in read_metrics(run) if "mlm" in line]


@pytest.mark.slow
def test_kill_while_a_state_is_written_leaves_the_one_before(corpus_dir, tmp_path):
    """A run killed while it writes states resumes with the losses of an undisturbed run."""
    flags = ["--num-steps", "30", "--checkpoint-every", "1"]
    subprocess.run(pretraining_command(corpus_dir, tmp_path / "whole", *flags), check=True, capture_output=True)
    state = tmp_path / "killed" / "state"
    for _ in range(2):
        process = subprocess.Popen(
            pretraining_command(corpus_dir, tmp_path / "killed", *flags), stderr=subprocess.DEVNULL
        )
        before = len(losses(tmp_path / "killed"))
        while len(losses(tmp_path / "killed")) < before + 4 or not list(state.glob(".*")):
            assert process.poll() is None, "the run ended before it could be killed"
        process.send_signal(signal.SIGKILL)
        process.wait()
    subprocess.run(pretraining_command(corpus_dir, tmp_path / "killed", *flags), check=True, capture_output=True)

    assert losses(tmp_path / "killed") == losses(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_goes_on_from_its_last_step(number, corpus_dir, tmp_path):
    """Ctrl-C and SIGTERM end the run after its step, with a state and a line of output."""
    flags = ["--num-steps", "400", "--checkpoint-every", "0"]
    with subprocess.Popen(
        pretraining_command(corpus_dir, tmp_path / "run", *flags), stderr=subprocess.PIPE, text=True
    ) as process:
        while len(losses(tmp_path / "run")) < 3:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.01)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=60)
    before = losses(tmp_path / "run")

    assert process.returncode == 130
    assert f"interrupted after step {len(before)}; the same command resumes there" in stderr
    assert "Traceback" not in stderr
    assert [path.name for path in (tmp_path / "run" / "state").iterdir()] == [f"step-{len(before):08d}"]


@pytest.mark.parametrize(
    ("step", "last", "checkpoint_every"), [(5, 6, 0), pytest.param(12, 12, 4, id="with its own state")]
)
def test_a_signal_ends_a_run_in_any_step(step, last, checkpoint_every, tmp_path, alone):
    """A signal in any step saves a state from which the same command resumes."""
    seen = []

    def interrupted(network, batch):
        seen.append(batch)
        if len(seen) == step:
            signal.raise_signal(signal.SIGTERM)
        return objective(network, batch)

    with pytest.raises(KeyboardInterrupt, match=f"interrupted after step {last}; the same command resumes there"):
        tiny_train(tmp_path / "run", alone, loss=interrupted, checkpoint_every=checkpoint_every)

    _, progress, _ = tiny_train(tmp_path / "run", alone, loss=interrupted, checkpoint_every=checkpoint_every)

    assert (progress.step, len(seen)) == (12, 12)


@pytest.mark.slow
def test_killed_worker_is_replaced(corpus_dir, tmp_path):
    """Two processes resume from their last state after one is killed, if restarts are allowed."""
    flags = ["--num-steps", "60", "--checkpoint-every", "5", "--micro-batch-size", "4", "--dropout", "0"]
    command = pretraining_command(corpus_dir, tmp_path / "run", *flags)
    command[1:3] = ["-m", "training.launch", "2", "--max-restarts", "2", "training.pretrain"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        while len(losses(tmp_path / "run")) < 12:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.02)
        children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True)
        os.kill(int(children.stdout.split()[-1]), signal.SIGKILL)
        process.communicate(timeout=120)

    assert process.returncode == 0
    assert [step for step, *_ in losses(tmp_path / "run")] == list(range(1, 61))
    assert (tmp_path / "run" / "checkpoint" / "model.safetensors").is_file()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # raised by the tracing
def test_compiled_network_trains_alike(corpus_dir, tmp_path, alone, monkeypatch):
    """A compiled network gives the same losses and a checkpoint with plain names."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    for name in ("off", "on"):
        settings = TINY | {"num_steps": 3, "compile": name}
        pretrain(PretrainRecipe(corpus=corpus_dir, run_dir=tmp_path / name, **settings), alone)

    one, two = losses(tmp_path / "off"), losses(tmp_path / "on")

    assert [pytest.approx(line, rel=1e-5) for line in one] == two
    assert load_model(tmp_path / "on" / "checkpoint", "masked-lm")


def test_golden_losses(corpus_dir, tmp_path, alone):
    """The first steps of a fixed run give the recorded losses.

    After an intended change of training, remove the file and run the test twice.
    """
    recipe = PretrainRecipe(
        corpus=corpus_dir,
        run_dir=tmp_path / "run",
        **TINY | {"num_steps": 20, "long_seq_length": 64, "long_fraction": 0.25},
    )
    pretrain(recipe, alone)

    found = [[mlm, nsp] for _, mlm, nsp in losses(tmp_path / "run")]
    golden = Path(__file__).with_name("golden_losses.json")
    if not golden.exists():
        golden.write_text(json.dumps(found))
        pytest.fail(f"written anew: {golden}; look at it and run again")
    for step, (one, two) in enumerate(zip(found, json.loads(golden.read_text()), strict=True), start=1):
        assert one == pytest.approx(two, rel=1e-4), f"step {step}"


def test_a_corpus_changed_in_between_is_refused(corpus_dir, tmp_path, alone):
    """A changed corpus is refused by its digest."""
    recipe = PretrainRecipe(
        corpus=corpus_dir, dev_corpus=corpus_dir, run_dir=tmp_path / "run", **TINY | {"num_steps": 2}
    )
    pretrain(recipe, alone)
    record = json.loads((tmp_path / "run" / "recipe.json").read_text())

    assert record["corpus_digest"] == record["dev_corpus_digest"] == Corpus(corpus_dir).digest
    for change, message in (
        ({"corpus_digest": "0" * 64}, "other contents of `corpus`"),
        ({"dev_corpus_digest": "0" * 64}, "other contents of `dev corpus`"),
        ({"dev_corpus_digest": None}, "no `dev corpus`"),
    ):
        (tmp_path / "run" / "recipe.json").write_text(json.dumps(record | change))
        with pytest.raises(ValueError, match=f"started with {message}; choose another run directory"):
            pretrain(recipe, alone)
