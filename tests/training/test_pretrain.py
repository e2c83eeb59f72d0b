"""Tests of pretraining: exact resuming, and the same losses for any split of the global batch."""

import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest
import torch
import transformers

from tests.commands import call
from tests.toy import TINY, make_text
from tests.training.gradients import write_gradients
from tests.training.interruption import interrupted_at
from training.checkpoint.reader import load_model, load_tokenizer
from training.checkpoint.task_card import read_task_card
from training.checkpoint.weights import checkpoint_digest
from training.corpus import CorpusRecipe, prepare_corpus
from training.data.pretraining import PretrainingExamples
from training.data.pretraining_batches import IGNORED, PretrainingData
from training.launch import launch
from training.loop.recipe import RunMismatchError
from training.loop.run_directory import read_metrics
from training.model.heads import BertForPreTraining
from training.objectives.masked_lm import MaskedLM
from training.pretrain import PretrainRecipe, main, pretrain, recipe_from_arguments
from training.reports.plot import plot_run


def losses(run):
    return [(line["step"], line["mlm"], line["nsp"]) for line in read_metrics(run) if "mlm" in line]


def recipe(corpus_dir, run, **changes):
    return PretrainRecipe(corpus=corpus_dir, run_dir=run, **{**TINY, "num_steps": 12, "checkpoint_every": 4} | changes)


def test_same_seed_gives_the_same_losses_and_another_seed_others(corpus_dir, tmp_path, alone):
    """The same seed repeats every loss bit for bit, and another seed gives other losses."""
    for name, seed in (("one", 1), ("two", 1), ("other", 2)):
        pretrain(recipe(corpus_dir, tmp_path / name, seed=seed, num_steps=3), alone)

    assert losses(tmp_path / "one") == losses(tmp_path / "two")
    assert losses(tmp_path / "one") != losses(tmp_path / "other")


def command(corpus_dir, run, *flags, processes=None):
    python = [sys.executable, "-m"]
    if processes is not None:
        python += ["training.launch", str(processes)]
    arguments = ["--corpus", str(corpus_dir), "--run-dir", str(run), "--max-position-embeddings", "64"]
    shape = ["--num-hidden-layers", "2", "--hidden-size", "32", "--num-attention-heads", "2", "--max-seq-length", "32"]
    steps = ["--global-batch-size", "8", "--micro-batch-size", "4", "--log-every", "1", "--dtype", "fp32"]
    return [*python, "training.pretrain", *arguments, *shape, *steps, *flags]


@pytest.mark.slow
def test_killed_run_resumes_bit_for_bit(corpus_dir, tmp_path):
    """A run killed in the second epoch resumes with the losses and weights of an undisturbed run."""
    flags = ["--num-steps", "60", "--checkpoint-every", "7", "--dropout", "0.1", "--short-seq-prob", "0.5"]
    subprocess.run(command(corpus_dir, tmp_path / "whole", *flags), check=True, capture_output=True)
    process = subprocess.Popen(command(corpus_dir, tmp_path / "killed", *flags), stderr=subprocess.DEVNULL)
    while len(losses(tmp_path / "killed")) < 38:
        assert process.poll() is None, "the run ended before it could be killed"
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()

    subprocess.run(command(corpus_dir, tmp_path / "killed", *flags), check=True, capture_output=True)

    assert max(line["epoch"] for line in read_metrics(tmp_path / "whole") if "epoch" in line) >= 1
    assert losses(tmp_path / "killed") == losses(tmp_path / "whole")
    weights = [load_model(tmp_path / name / "checkpoint", "masked-lm").state_dict() for name in ("whole", "killed")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_micro_batches_change_nothing(corpus_dir, tmp_path, alone):
    """Micro-batches of 1, 3 and 8 give the same losses."""
    changes = {"num_steps": 5, "dropout": 0.0, "short_seq_prob": 0.9}  # short examples are packed
    for size in (8, 3, 1):
        pretrain(recipe(corpus_dir, tmp_path / str(size), micro_batch_size=size, **changes), alone)

    whole, *others = (losses(tmp_path / str(size)) for size in (8, 3, 1))
    for found in others:
        assert found == [pytest.approx(line, abs=2e-5) for line in whole]


def test_two_processes_train_as_one_until_an_interrupt(corpus_dir, tmp_path, alone):
    """Two processes have the losses of one; Ctrl-C ends them with exit code 130 and no traceback."""
    changes = {"dropout": 0.0, "short_seq_prob": 0.9, "warmup_ratio": 0.0, "num_steps": 10**6, "checkpoint_every": 0}
    with interrupted_at(5):
        pretrain(recipe(corpus_dir, tmp_path / "one", **changes), alone)
    flags = [word for name, value in changes.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    command_line = command(corpus_dir, tmp_path / "two", *flags, "--learning-rate", "1e-3", processes=2)
    with subprocess.Popen(
        command_line,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        start_new_session=True,
    ) as process:
        while len(losses(tmp_path / "two")) < 4:
            assert process.poll() is None, "the run ended before it could be interrupted"
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)

    assert process.returncode == 130
    assert "Traceback" not in stderr
    assert stdout.count("of the sentence pairs can be consecutive") == 1
    assert losses(tmp_path / "two")[:4] == [pytest.approx(line, abs=2e-5) for line in losses(tmp_path / "one")]


@pytest.mark.slow
def test_gradients_do_not_depend_on_the_split(corpus_dir, tmp_path):
    """1, 2 and 4 processes and any micro-batches give the same gradients, to 1e-6 of their norm."""
    write_gradients(corpus_dir, 8, tmp_path / "whole.pt")
    write_gradients(corpus_dir, 3, tmp_path / "micro.pt")
    write_gradients(corpus_dir, 1, tmp_path / "single.pt")
    for processes in (2, 4):
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        out = tmp_path / f"processes-{processes}.pt"
        arguments = ["-m", "tests.training.gradients", str(corpus_dir), "2", str(out)]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        subprocess.run([*torchrun, *arguments], check=True, capture_output=True, env=environment)

    whole = torch.load(tmp_path / "whole.pt")
    norm = torch.stack([value.norm() for value in whole.values()]).norm()
    for name in ("micro", "single", "processes-2", "processes-4"):
        other = torch.load(tmp_path / f"{name}.pt")
        assert other.keys() == whole.keys()
        assert max((other[key] - whole[key]).abs().max() for key in whole) < 1e-6 * norm, name


@pytest.fixture(scope="module")
def corpora(tokenizer_dir, tmp_path_factory):
    """Write corpora of 60 documents: `single` sentences, a `few` longer documents, and too `long` sentences."""
    directory = tmp_path_factory.mktemp("corpora")
    sentences = [line for line in make_text(60, seed=3).splitlines() if line]
    texts = {
        "single": sentences[:60],
        "few": ["\n".join(sentences[n : n + (4 if n % 10 == 0 else 1)]) for n in range(60)],
        "long": ["\n".join([" ".join(["the cat"] * 60)] * 3)] * 60,
    }
    for name, documents in texts.items():
        (directory / f"{name}.txt").write_text("\n\n".join(documents))
        data = (directory / f"{name}.txt",)
        prepare_corpus(CorpusRecipe(data=data, tokenizer=tokenizer_dir, out=directory / name, num_workers=1))
    return directory


@pytest.mark.parametrize("name", ["single", "long"])
def test_random_next_sentences_only_are_refused(name, corpora, tmp_path, alone, capfd):
    """The error names the flag that helps, and training without next sentences prints nothing about pairs."""
    wanted = recipe(corpora / name, tmp_path / "run", num_steps=1)
    single = {"single": 60, "long": 0}[name]

    with pytest.raises(
        ValueError,
        match=rf"none of the sentence pairs of `.*{name}` at 32 tokens can be consecutive "
        rf"\({single} of 60 .* --no-next-sentences$",
    ):
        pretrain(wanted, alone)
    assert not wanted.run_dir.exists()
    capfd.readouterr()
    pretrain(replace(wanted, next_sentences=False), alone)
    said = capfd.readouterr()
    assert "be next" not in said.out + said.err
    assert ("of the text, as long sentences are cut" in said.out) == (name == "long")


def test_few_next_sentences_get_a_warning(corpora, tmp_path, alone, capfd):
    """A warning for each length reports that few pairs can be consecutive."""
    pretrain(recipe(corpora / "few", tmp_path / "run", num_steps=2, long_seq_length=64, long_fraction=0.5), alone)
    said = capfd.readouterr()

    stated = re.findall(
        r"^an epoch at (\d+) tokens: ([0-9.]+)% of the sentence pairs can be consecutive \(", said.out, re.MULTILINE
    )
    warned = re.findall(r"^warning: ([0-9.]+)% of the sentence pairs of `.*` at (\d+) tokens", said.err, re.MULTILINE)

    assert [length for length, _ in stated] == ["32", "64"]
    assert [(length, fraction) for fraction, length in warned] == stated


def test_random_next_sentences_of_dev_are_not_scored(corpora, corpus_dir, tmp_path, alone, capfd):
    """A dev corpus without next sentences gives no nsp_accuracy."""
    for dev in ("single", "few"):
        changes = {"num_steps": 1, "dev_corpus": corpora / dev}
        scores = read_task_card(pretrain(recipe(corpus_dir, tmp_path / dev, **changes), alone)).scores
        said = capfd.readouterr().err

        assert ("nsp_accuracy" in scores["dev"]) == ("nsp_accuracy" in scores["unigram baseline"]) == (dev == "few")
        assert ("are random: nsp_accuracy is left out" in said) == (dev == "single")
        assert ('compare nsp_accuracy with always answering "random"' in said) == (dev == "few")


def test_run_started_differently_is_refused(corpus_dir, tmp_path, alone):
    """A run without a state can be corrected; a finished one stays unchanged, and the error names what differs."""
    run = tmp_path / "run"
    with pytest.raises(ValueError, match="less than one batch"):
        pretrain(recipe(corpus_dir, run, num_steps=2, global_batch_size=100_000), alone)
    pretrain(recipe(corpus_dir, run, num_steps=2), alone)
    before = losses(run)

    with pytest.raises(ValueError, match=r"started with learning_rate `0\.001`, not `0\.5`"):
        pretrain(recipe(corpus_dir, run, num_steps=2, learning_rate=0.5), alone)
    pretrain(recipe(corpus_dir, run, num_steps=2), alone)

    assert len(before) == 2
    assert losses(run) == before
    (run / "recipe.json").write_text("{")
    with pytest.raises(ValueError, match=r"recipe\.json`: .*choose another run directory"):
        pretrain(recipe(corpus_dir, run, num_steps=2), alone)


@pytest.fixture
def continued(corpus_dir, checkpoint, tmp_path):
    """Return a recipe that starts from a checkpoint and hardly changes its weights."""
    init = shutil.copytree(checkpoint, tmp_path / "init")
    return recipe(corpus_dir, tmp_path / "run", init=init, num_steps=1, learning_rate=1e-9)


def test_a_run_goes_on_from_another_checkpoint(continued, checkpoint, alone):
    """A run starts from the weights of the checkpoint, which the card names with its own pretraining."""
    found = pretrain(continued, alone)

    ours, theirs = (load_model(path, "masked-lm").state_dict() for path in (found, checkpoint))
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, atol=1e-6, rtol=0, msg=name)
    record = read_task_card(found).provenance["pretraining"]

    assert record["init"] == {"name": "init", "sha256": checkpoint_digest(checkpoint)}
    assert record["before"] == read_task_card(checkpoint).provenance["pretraining"]


def test_the_checkpoint_to_go_on_from_stays_the_same(continued, tmp_path, alone):
    """The checkpoint to start from may move but not change."""
    pretrain(continued, alone)
    moved = shutil.move(continued.init, tmp_path / "moved")
    pretrain(replace(continued, init=moved), alone)
    (moved / "model.safetensors").write_bytes((continued.run_dir / "checkpoint" / "model.safetensors").read_bytes())

    with pytest.raises(
        RunMismatchError, match="was started with other contents of `init`; choose another run directory"
    ):
        pretrain(replace(continued, init=moved), alone)
    with pytest.raises(RunMismatchError, match=r"was started with init `.*`, not `None`"):
        pretrain(replace(continued, init=None), alone)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_position_embeddings": 128, "max_seq_length": 96}, "has 64 positions, too few for 96 tokens"),
        ({"init": "other words"}, "the vocabulary of `.*` is not that of corpus"),
        ({"init": Path("nowhere")}, "no checkpoint at `nowhere`: there is no such directory; give one with config"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(changes, message, continued, alone):
    """A checkpoint that does not fit is refused before the first step."""
    if changes.get("init") == "other words":
        for name in ("tokenizer.json", "vocab.txt"):
            text = (continued.init / name).read_text()
            (continued.init / name).write_text(text.replace("river", "mount"))
        changes = {}

    with pytest.raises(ValueError, match=message):
        pretrain(replace(continued, **changes), alone)
    assert not continued.run_dir.exists()


def test_the_card_counts_tokens_of_the_selected_weights(corpus_dir, tmp_path, alone, monkeypatch, capsys):
    """The card counts steps and tokens of the selected weights; a note states that the dev corpus is the corpus."""
    scores = iter([3.0, 1.0, 2.0, 1.0])
    monkeypatch.setattr("training.pretrain.evaluate_pretraining", lambda *_, **__: {"mlm_loss": next(scores)})
    changes = {"num_steps": 6, "eval_every": 2, "dev_corpus": corpus_dir, "select": "best"}

    path = pretrain(recipe(corpus_dir, tmp_path / "run", **changes), alone)

    seen = {line["step"]: line["num_tokens"] for line in read_metrics(tmp_path / "run") if "num_tokens" in line}
    record = read_task_card(path).provenance["pretraining"]

    assert (record["num_steps"], record["num_tokens"]) == (4, seen[4])
    assert "note: the dev corpus is the training corpus" in capsys.readouterr().out


def test_nan_scores_select_nothing(corpus_dir, tmp_path, alone, monkeypatch):
    """The error for NaN scores names the flag that helps, and with it the run finishes."""
    monkeypatch.setattr("training.pretrain.evaluate_pretraining", lambda *_, **__: {"mlm_loss": math.nan})
    changes = {"num_steps": 2, "eval_every": 1, "dev_corpus": corpus_dir}
    last, best = (recipe(corpus_dir, tmp_path / "run", **changes, select=select) for select in ("last", "best"))

    with pytest.raises(ValueError, match=r"all scores on dev were NaN or infinite in `.*run`; use --select last"):
        pretrain(best, alone)
    assert (pretrain(last, alone) / "model.safetensors").is_file()
    with pytest.raises(RunMismatchError, match="was started with select `last`, not `best`"):
        pretrain(best, alone)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"generator_layers": 3}, "--generator-layers `3` has no effect here: it is for --objective replaced-tokens"),
        ({"long_fraction": 0.5}, "--long-fraction `0.5` has no effect here: it needs --long-seq-length"),
        ({"family": "modernbert"}, "trained without next sentences: give --no-next-sentences"),
        (
            {"family": "modernbert", "next_sentences": False, "objective": "replaced-tokens"},
            "--objective `replaced-tokens` has no effect here: it is not for family `modernbert`: give --family bert",
        ),
        ({"family": "modernbert", "init": Path("run")}, "--init gives trained ones: leave out one of them"),
        ({"objective": "distillation", "teacher": Path("t"), "compile": "on"}, "does not work with --compile on"),
        ({"max_seq_length": 1024}, r"--max-seq-length `1024` is above --max-position-embeddings `\d+`"),
    ],
)
def test_settings_that_exclude_others_are_refused(changes, message, corpus_dir, tmp_path):
    """Settings without an effect, and those that conflict, are refused with the flags that help."""
    with pytest.raises(ValueError, match=message):
        recipe(corpus_dir, tmp_path, **changes)


def test_settings_follow_from_others(corpus_dir, tmp_path):
    """A network that learns from a teacher is not compiled; a starting checkpoint has its own number of positions."""
    assert recipe(corpus_dir, tmp_path, objective="distillation", teacher=Path("teacher")).compile == "off"
    assert recipe(corpus_dir, tmp_path, init=Path("long"), max_seq_length=1024).max_seq_length == 1024


def test_modernbert_from_new_weights(corpus_dir, tmp_path, alone):
    """The network has about BERT's parameters, learns, and loads in transformers as a ModernBERT."""
    changes = {"family": "modernbert", "next_sentences": False, "num_steps": 8, "learning_rate": 1e-2}
    checkpoint = pretrain(recipe(corpus_dir, tmp_path / "run", **changes), alone)

    model, report = transformers.AutoModelForMaskedLM.from_pretrained(checkpoint, output_loading_info=True)
    assert isinstance(model, transformers.ModernBertForMaskedLM)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    tokenizer = load_tokenizer(checkpoint)
    assert model.config.pad_token_id == tokenizer.pad_id
    found = [line["mlm"] for line in read_metrics(tmp_path / "run") if "mlm" in line]
    assert found[-1] < found[0]


def test_training_learns_and_reports(corpus_dir, tmp_path, alone, monkeypatch):
    """The loss falls, and the run directory holds metrics, plot, recipe and task card, but no state."""
    monkeypatch.setattr("training.reports.plot.plot_run", plot_run)
    run = tmp_path / "run"
    checkpoint = pretrain(recipe(corpus_dir, run, num_steps=10, dev_corpus=corpus_dir), alone)
    lines = read_metrics(run)

    assert lines[-2]["mlm"] < lines[0]["mlm"]
    assert {"eval_mlm_loss", "eval_mlm_accuracy", "eval_nsp_accuracy"} <= lines[-1].keys()
    assert {path.name for path in run.iterdir()} == {
        "metrics.jsonl",
        "recipe.json",
        "curves.png",
        "checkpoint",
        "tensorboard",
        ".lock",
    }
    assert (run / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert read_task_card(checkpoint).provenance["pretraining"]["num_tokens"] > 0
    assert isinstance(load_model(checkpoint, "masked-lm"), BertForPreTraining)


def test_replaced_tokens(corpus_dir, tmp_path, alone):
    """Replaced-token detection learns, resumes bit for bit, and gives a BERT checkpoint."""
    changes = {"objective": "replaced-tokens", "num_steps": 24, "dev_corpus": corpus_dir, "checkpoint_every": 8}
    changes |= {"initialization": "local", "log_every": 1}
    pretrain(recipe(corpus_dir, tmp_path / "whole", **changes), alone)
    with interrupted_at(14):
        pretrain(recipe(corpus_dir, tmp_path / "halted", **changes), alone)
    pretrain(recipe(corpus_dir, tmp_path / "halted", **changes), alone)

    lines = [line for line in read_metrics(tmp_path / "whole") if "discriminator" in line]
    for name in ("generator", "discriminator", "corrector"):
        assert mean(line[name] for line in lines[-8:]) < mean(line[name] for line in lines[:8]), name
    parts = {"generator": 1, "discriminator": 50, "corrector": 1, "nsp": 1}
    assert lines[0]["loss"] == pytest.approx(sum(weight * lines[0][name] for name, weight in parts.items()))
    checkpoint = tmp_path / "whole" / "checkpoint"
    weights = [load_model(tmp_path / name / "checkpoint", "masked-lm").state_dict() for name in ("whole", "halted")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    _, loading = transformers.BertForPreTraining.from_pretrained(checkpoint, output_loading_info=True)
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    scores = read_task_card(checkpoint).scores
    assert {"discriminator_loss", "discriminator_accuracy", "generator_loss", "mlm_loss"} <= scores["dev"].keys()
    assert scores["unigram baseline"]["discriminator_accuracy"] == pytest.approx(1 - scores["dev"]["replaced"])


def test_batches_have_one_shape(corpus):
    """Batches have one shape, and their padding counts in no loss."""
    examples = PretrainingExamples(corpus, max_seq_length=32, short_seq_prob=0.5)
    data = PretrainingData(examples, 8, MaskedLM().targets)
    for index in range(5):
        batch = data.batch(0, index, slice(0, 8))
        labels = batch.targets["mlm"]
        assert batch.inputs["input_ids"].shape == (8, 32)
        assert len(labels) == len(batch.inputs["masked_positions_N"]) == 8 * examples.max_predictions
        states = batch.inputs["masked_positions_N"][labels != IGNORED]
        assert examples.max_predictions == 5
        assert states.max() < batch.inputs["input_ids"].numel()

    chosen = [examples.example(0, index) for index in range(32, 40)]
    assert batch.counts["mlm"] == int((labels != IGNORED).sum()) == sum(len(item.masked_labels) for item in chosen)


@pytest.mark.usefixtures("any_number")
def test_diverging_run_is_stopped(corpus_dir, tmp_path, alone):
    """A NaN loss ends the run with an error that names the step."""
    with pytest.raises(
        ValueError, match=r"the loss is nan .* at step \d+ \(epoch 0, batch \d+\).*lower --learning-rate"
    ):
        pretrain(recipe(corpus_dir, tmp_path / "run", learning_rate=1e30, warmup_ratio=0.0), alone)


def test_first_words_name_recipes():
    """A name sets the shape, and later flags take precedence; a checkpoint brings its own family."""
    paths = ["--corpus", "c", "--run-dir", "r"]
    base = recipe_from_arguments(["base", *paths, "--num-hidden-layers", "6"])
    new, continued = (recipe_from_arguments(["modern", *paths, *flags]) for flags in ([], ["--init=checkpoint"]))

    assert (base.num_hidden_layers, base.hidden_size, base.num_attention_heads) == (6, 768, 12)
    assert (new.family, new.initialization) == ("modernbert", "local")
    assert (continued.family, continued.initialization, continued.masking_rate) == ("bert", "bert", new.masking_rate)
    with pytest.raises(ValueError, match="unknown recipe: `huge`"):
        recipe_from_arguments(["huge"])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--num-steps", "0"], "--num-steps must be at least 1: `0`"),
        (["--run-dir", __file__], "test_pretrain.py`: File exists"),
    ],
)
def test_mistakes_get_one_line_and_a_non_zero_exit(corpus_dir, tmp_path, flags, message, monkeypatch, capfd):
    """A mistake is an error of one line."""
    arguments = command(corpus_dir, tmp_path / "run", *flags)[3:]
    result = call(main, arguments, monkeypatch, capfd)

    assert result.returncode == 1
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flag", "start", "end"),
    [
        ("--seed", "error: not a corpus", "run training.corpus"),
        ("--dtype", "╭─", "─╯"),
    ],
)
def test_mistakes_are_reported_once_by_several_processes(flag, start, end, tmp_path):
    """Several processes report a mistake once, without a line of the launcher."""
    command_line = command("nowhere", tmp_path / "run", flag, "1", processes=2)
    result = subprocess.run(command_line, capture_output=True, text=True, check=False)

    assert result.returncode == 2
    assert result.stderr.startswith(start)
    assert result.stderr.index(end) == len(result.stderr.strip()) - len(end)


@pytest.mark.parametrize(
    ("processes", "module", "message"),
    [(0, "pretrain", "processes must be at least 1"), (2, "x", "no such command"), (2, "pretrain.py", "no such")],
)
def test_impossible_launches_are_refused(processes, module, message):
    """An impossible launch is refused before any process starts."""
    with pytest.raises(ValueError, match=message):
        launch(processes, [], f"training.{module}", [])
