"""Runs on packed batches: the same losses as padded ones, exact resuming, and notes where packing is impossible."""

import pytest
import torch

from tests.toy import TINY, write_spans
from tests.training.interruption import interrupted_at
from training.checkpoint.reader import load_model
from training.finetuning.run import finetune
from training.loop.run_directory import read_metrics
from training.model import encoder
from training.pretrain import PretrainRecipe, pretrain


@pytest.fixture
def num_packed(monkeypatch):
    """Number of packed batches, as a function."""
    count, find = [], encoder.find_packing

    def counted(*arguments):
        packing = find(*arguments)
        count.extend([1] * (packing is not None))
        return packing

    monkeypatch.setattr(encoder, "find_packing", counted)
    return lambda: len(count)


def losses(run, name):
    return [line[name] for line in read_metrics(run) if name in line]


def recipe(corpus_dir, run, **changes):
    short = {"short_seq_prob": 1.0, "next_sentences": False, "num_steps": 12, "checkpoint_every": 4}
    return PretrainRecipe(corpus=corpus_dir, run_dir=run, **{**TINY, **short} | changes)


def test_pretraining_has_the_losses_of_padded_batches(corpus_dir, tmp_path, alone, num_packed):
    """Every loss of pretraining is that of a run with `--packing off`."""
    for packing in ("off", "auto"):
        assert num_packed() == 0
        pretrain(recipe(corpus_dir, tmp_path / packing, packing=packing, dropout=0.0), alone)

    assert num_packed() > 3
    assert losses(tmp_path / "auto", "mlm") == pytest.approx(losses(tmp_path / "off", "mlm"), abs=2e-5)


def test_fine_tuning_has_the_losses_of_padded_batches(finetuning, tmp_path, alone, num_packed):
    """Every loss of fine-tuning is that of a run with `--packing off`, and so are the scores."""
    files = write_spans(tmp_path / "a.json", 64, 0), write_spans(tmp_path / "b.json", 20, 1)
    runs = {}
    for packing in ("off", "auto"):
        assert num_packed() == 0
        settings = {"task": "spans", "log_every": 1, "num_epochs": 2.0, "max_query_length": 16, "packing": packing}
        run = tmp_path / packing
        finetune(finetuning(*files, run_dir=run, **settings), alone)
        runs[packing] = losses(run, "loss"), losses(run, "eval_f1")

    assert num_packed() > 0
    assert runs["auto"][0] == pytest.approx(runs["off"][0], abs=2e-5)
    assert runs["auto"][1] == runs["off"][1] != []


def test_an_interrupted_packed_run_resumes_bit_for_bit(corpus_dir, tmp_path, alone, num_packed):
    """With dropout, a resumed run has the losses and weights of an undisturbed one."""
    whole, resumed = (recipe(corpus_dir, tmp_path / name) for name in ("whole", "resumed"))
    pretrain(whole, alone)
    with interrupted_at(7):
        pretrain(resumed, alone)
    pretrain(resumed, alone)

    assert num_packed() > 6
    assert losses(tmp_path / "resumed", "mlm") == losses(tmp_path / "whole", "mlm")
    weights = [load_model(item.run_dir / "checkpoint", "masked-lm").state_dict() for item in (whole, resumed)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_packing_may_change_when_a_run_resumes(corpus_dir, tmp_path, alone):
    """A run that began on padded batches goes on with packed ones."""
    with interrupted_at(7):
        pretrain(recipe(corpus_dir, tmp_path / "run", packing="off"), alone)
    pretrain(recipe(corpus_dir, tmp_path / "run"), alone)

    assert len(losses(tmp_path / "run", "mlm")) == 12


def test_a_network_that_cannot_pack_gets_a_note(corpus_dir, tmp_path, alone, num_packed, monkeypatch, capsys):
    """Networks whose texts cannot share a sequence print a one-line note, and train on padded batches."""
    monkeypatch.setattr("training.model.encoder.Encoder.unpackable", "its layers are special")
    pretrain(recipe(corpus_dir, tmp_path / "auto"), alone)
    noted = capsys.readouterr().out
    pretrain(recipe(corpus_dir, tmp_path / "off", packing="off"), alone)

    assert num_packed() == 0
    note = "note: batches are padded, not packed: its layers are special\n"
    assert noted.count(note) == 1
    assert "padded" not in capsys.readouterr().out


def test_compiled_networks_stay_padded(corpus_dir, tmp_path, alone, num_packed, monkeypatch):
    """A compiled network sees few shapes: its batches are padded."""
    monkeypatch.setattr(torch, "compile", lambda network, **options: network)

    pretrain(recipe(corpus_dir, tmp_path / "run", compile="on"), alone)

    assert num_packed() == 0
