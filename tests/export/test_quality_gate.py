"""Integers are taken where they are good enough, and layers are named where they are not."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from export.calibrate import calibrate
from export.evaluation_set import random_ids
from export.network import Network, Weights
from export.quality import Expected, Quality, judge
from export.quality_gate import Gate, Limits, QualityError
from export.session import ort_run
from export.source import read_source
from export.variant import Numbers
from tasks import create_task, settings_from_dict
from tasks.tokenizer import Tokenizer
from training.evaluate import torch_run


def quality(cosine=1.0, **scores):
    return Quality(scores=scores, mean_cosine=cosine, min_cosine=cosine, worst=())


@pytest.mark.parametrize(
    ("found", "by_cosine", "message"),
    [
        (quality(accuracy=0.796), False, ""),
        (quality(accuracy=0.8 - 0.005), False, ""),
        (quality(accuracy=0.794), False, r"accuracy falls by 0.60 points \(--max-drop 0.5\)"),
        (quality(loss=9.0, accuracy=0.8), False, ""),
        (quality(loss=0.1, accuracy=0.79), False, "accuracy falls by 1.00 points"),
        (quality(accuracy=float("nan")), False, "accuracy falls by nan points"),
        (quality(0.5, accuracy=0.8), False, ""),
        (quality(0.989, accuracy=0.8), True, r"mean cosine to PyTorch is 0.9890 \(--min-cosine 0.99\)"),
        (quality(0.99, accuracy=0.81), True, ""),
    ],
)
def test_limits_of_scores_and_vectors(found, by_cosine, message):
    """Labels decide where there are any, and of scores the first that is no loss; vectors must also be near
    PyTorch's."""
    shortfall = Limits().shortfall(found, quality(loss=1.0, accuracy=0.8), by_cosine=by_cosine)

    assert bool(shortfall) == bool(message)
    assert re.search(message, shortfall)


def test_without_labels_the_cosine_decides():
    """There is nothing else."""
    assert Limits().shortfall(quality(0.98), quality(), by_cosine=False)
    assert not Limits().shortfall(quality(0.992), quality(), by_cosine=False)


@pytest.fixture
def gate(checkpoints):
    """Of embeddings, with one layer whose weights integers cannot hold."""
    source = read_source(checkpoints["plain"])
    model = source.load_model()
    model.bert.layers[1].intermediate.weight.data[:, 3] *= 300
    model.bert.layers[1].output.weight.data *= 0.01
    evidence = random_ids(source.task)
    network = Network(model.config, Weights.of(model), source.task)
    network = replace(network, ranges=calibrate(model, source.task, evidence.features, network.layers))
    return Gate(network, evidence, torch_run(model, source.task), Limits())


def test_static_integers_come_first(gate):
    """Where both are good enough; and everything that was tried is known."""
    gate.limits = Limits(min_cosine=0.0)

    assert gate.choose(mixed=False).products == "static int8"
    assert list(gate.qualities) == ["PyTorch", "fp32", "static int8", "dynamic int8"]


def test_layers_to_blame_are_named_and_left_in_floats(gate):
    """Without --mixed the refusal names them; with it they stay in floats, and the rest is of integers."""
    gate.judge(Numbers(products="static int8"), Numbers(products="dynamic int8"))
    best = max(gate.qualities[name].mean_cosine for name in ("static int8", "dynamic int8"))
    limit = 1 - 0.7 * (1 - best)
    gate.limits = Limits(min_cosine=limit)

    with pytest.raises(QualityError, match="--mixed leaves such parts in floats") as refused:
        gate.choose(mixed=False)
    numbers = gate.choose(mixed=True)

    assert numbers.fp32_layers[0] in str(refused.value)
    assert 0 < len(numbers.fp32_layers) < len(gate.network.layers)
    assert gate.qualities[numbers.name].mean_cosine >= limit
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("needed", "tried"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 4, 3]), (5, [1, 2, 4, 8, 6, 5])])
def test_no_more_parts_stay_in_floats_than_it_takes(needed, tried, gate, monkeypatch):
    """After twice as many each time, numbers between are tried."""
    seen = []

    def judged(self, *candidates):
        seen.extend(len(numbers.fp32_layers) for numbers in candidates)

    monkeypatch.setattr(Gate, "judge", judged)
    monkeypatch.setattr(Gate, "shortfall", lambda self, numbers: "" if len(numbers.fp32_layers) >= needed else "short")
    monkeypatch.setattr(Gate, "dearest_parts", lambda self, products: [f"part {number}" for number in range(13)])
    gate.qualities = {f"{kind} int8": quality() for kind in ("static", "dynamic")}

    numbers = gate.choose(mixed=True)

    assert numbers.fp32_layers == tuple(f"part {number}" for number in range(needed))
    assert seen[3:] == tried


def test_impossible_limits_are_refused_even_mixed(gate):
    """With another remedy."""
    gate.limits = Limits(min_cosine=1.1)

    with pytest.raises(QualityError, match="loosen the limit, or export in fp32"):
        gate.choose(mixed=True)


def test_worst_examples_are_named(exported, checkpoints):
    """Those that differ most, by the place where they stand."""
    task = exported["spans"].load_task()
    evidence = random_ids(task)
    run = ort_run(exported["spans"].model_path)

    def wrong_where_long(arrays):
        sign = np.where(arrays["attention_mask"].sum(1, keepdims=True) > 28, -1, 1)
        return {name: logits * sign for name, logits in run(arrays).items()}

    found = judge(Expected(evidence, run), {"wrong": wrong_where_long})

    assert found["PyTorch"].mean_cosine == pytest.approx(1)
    lengths = {place: len(windows[0]) for place, windows in zip(evidence.places, evidence.windows, strict=True)}
    assert all(lengths[place] > 28 for place, value in found["wrong"].worst if value < 0.9)
    assert found["wrong"].min_cosine < 0.5 < found["wrong"].mean_cosine


def test_long_sequences_are_not_worse_for_their_length(exported):
    """Where every token has numbers, and every number is as far off, no sequence is far from PyTorch."""
    task = exported["tagging"].load_task()
    evidence = random_ids(task)

    def constant(value):
        return lambda arrays: {"logits": np.full((*arrays["input_ids"].shape, 3), value, np.float32)}

    found = judge(Expected(evidence, constant(1.0)), {"off": constant(1.1)})["off"]

    assert len({len(features) for features in evidence.features}) > 5
    np.testing.assert_allclose([found.mean_cosine, found.min_cosine], 1 - 0.1**2 / 2, rtol=1e-6)


def test_numbers_far_from_zero_do_not_hide_how_they_differ(checkpoints):
    """Numbers of a regression are compared about the mean of its labels."""
    settings = {"max_seq_length": 32, "label_mean": 50.0}
    task = create_task("regression", Tokenizer.load(checkpoints["plain"]), settings_from_dict("regression", settings))

    def constant(value):
        return lambda arrays: {"logits": np.full((len(arrays["input_ids"]), 1), value, np.float32)}

    found = judge(Expected(random_ids(task), constant(51.0)), {"off": constant(51.1)})["off"]

    np.testing.assert_allclose(found.mean_cosine, 1 - 0.1**2 / 2, rtol=1e-5)
