"""Quality gate: limits, choice of the precision, and the most sensitive layers."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from export.calibrate import calibrate
from export.evaluation_set import random_ids
from export.network import Network, Weights
from export.quality import Evaluator, Quality, ReferenceOutputs, measure_quality
from export.quality_gate import QualityError, QualityLimits, choose
from export.reporter import SILENT
from export.session import ort_run
from export.source import read_source
from export.targets import TARGETS
from export.variant import GraphPrecision
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
        (quality(accuracy=0.794), False, r"accuracy drops by 0.60 points \(--max-drop 0.5\)"),
        (quality(loss=9.0, accuracy=0.8), False, ""),
        (quality(loss=0.1, accuracy=0.79), False, "accuracy drops by 1.00 points"),
        (quality(accuracy=float("nan")), False, "accuracy drops by nan points"),
        (quality(0.5, accuracy=0.8), False, ""),
        (quality(0.989, accuracy=0.8), True, r"mean cosine to PyTorch is 0.9890 \(--min-cosine 0.99\)"),
        (quality(0.99, accuracy=0.81), True, ""),
    ],
)
def test_limits_of_scores_and_vectors(found, by_cosine, message):
    """The first score that is no loss decides if there are labels; vectors must also be close to PyTorch's."""
    shortfall = QualityLimits().shortfall(found, quality(loss=1.0, accuracy=0.8), by_cosine=by_cosine)

    assert bool(shortfall) == bool(message)
    assert re.search(message, shortfall)


def test_without_labels_the_cosine_decides():
    """Without scores, the mean cosine has to reach its limit."""
    assert QualityLimits().shortfall(quality(0.98), quality(), by_cosine=False)
    assert not QualityLimits().shortfall(quality(0.992), quality(), by_cosine=False)


@pytest.fixture
def hard_network(checkpoints):
    """Network for embeddings with one layer that int8 cannot represent, and its evaluator."""
    source = read_source(checkpoints["plain"])
    model = source.load_model()
    model.bert.layers[1].intermediate.weight.data[:, 3] *= 300
    model.bert.layers[1].output.weight.data *= 0.01
    evaluation_set = random_ids(source.task)
    network = Network(model.config, Weights.from_model(model), source.task)
    network = replace(network, ranges=calibrate(model, source.task, evaluation_set.features, network.layers))
    return network, Evaluator(evaluation_set, torch_run(model, source.task))


def test_static_int8_comes_first(hard_network):
    """Static int8 wins if all are good enough, and the decision holds everything that was measured."""
    network, evaluator = hard_network

    decision = choose(network, "int8", evaluator=evaluator, limits=QualityLimits(min_cosine=0.0))

    assert decision.precision.matmul == "static int8"
    assert list(decision.qualities) == ["PyTorch", "fp32", "static int8", "dynamic int8"]


def test_sensitive_layers_are_named_and_kept_in_fp32(hard_network):
    """Without `mixed` the error names them; with it they stay in fp32, and the rest is int8."""
    network, evaluator = hard_network
    kinds = GraphPrecision(matmul="static int8"), GraphPrecision(matmul="dynamic int8")
    measured = evaluator.measure(network, *kinds)
    best = max(measured[kind.name].mean_cosine for kind in kinds)
    limits = QualityLimits(min_cosine=1 - 0.7 * (1 - best))

    with pytest.raises(QualityError, match="--mixed keeps such layers in fp32") as rejected:
        choose(network, "int8", evaluator=evaluator, limits=limits)
    decision = choose(network, "int8", evaluator=evaluator, limits=limits, mixed=True)

    assert decision.precision.fp32_layers[0] in str(rejected.value)
    assert 0 < len(decision.precision.fp32_layers) < len(network.layers)
    assert decision.quality.mean_cosine >= limits.min_cosine
    assert "\n" not in str(rejected.value)


class FakeEvaluator:
    """Finds a precision good enough once `needed` layers are in fp32."""

    target, reporter = TARGETS["cpu"], SILENT

    def __init__(self, needed):
        self.needed = needed
        self.measured = []

    def measure(self, network, *precisions):
        self.measured.extend(len(precision.fp32_layers) for precision in precisions)
        cosines = {item.name: float(len(item.fp32_layers) >= self.needed) for item in precisions}
        return {"PyTorch": quality(), **{name: quality(cosine) for name, cosine in cosines.items()}}

    def most_sensitive_layers(self, network, matmul):
        return [f"layer {index}" for index in range(13)]


@pytest.mark.parametrize(("needed", "tried"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 4, 3]), (5, [1, 2, 4, 8, 6, 5])])
def test_as_few_layers_as_needed_stay_in_fp32(needed, tried, hard_network):
    """The number doubles until the quality suffices, then it is bisected."""
    evaluator = FakeEvaluator(needed)

    decision = choose(hard_network[0], "int8", evaluator=evaluator, limits=QualityLimits(), mixed=True)

    assert decision.precision.fp32_layers == tuple(f"layer {index}" for index in range(needed))
    assert evaluator.measured[3:] == tried


def test_impossible_limits_are_rejected_even_mixed(hard_network):
    """If even mixed precision is rejected, the error suggests other remedies."""
    network, evaluator = hard_network

    with pytest.raises(QualityError, match="raise the limit, or export in fp32"):
        choose(network, "int8", evaluator=evaluator, limits=QualityLimits(min_cosine=1.1), mixed=True)


def test_worst_examples_are_named(exported, checkpoints):
    """A quality lists the examples with the largest differences, by location."""
    task = exported["spans"].load_task()
    evaluation_set = random_ids(task)
    run = ort_run(exported["spans"].model_path)

    def wrong_where_long(arrays):
        sign = np.where(arrays["attention_mask"].sum(1, keepdims=True) > 28, -1, 1)
        return {name: logits * sign for name, logits in run(arrays).items()}

    found = measure_quality(ReferenceOutputs(evaluation_set, run), {"wrong": wrong_where_long})

    assert found["PyTorch"].mean_cosine == pytest.approx(1)
    pairs = zip(evaluation_set.locations, evaluation_set.windows, strict=True)
    lengths = {location: len(windows[0]) for location, windows in pairs}
    assert all(lengths[location] > 28 for location, value in found["wrong"].worst if value < 0.9)
    assert found["wrong"].min_cosine < 0.5 < found["wrong"].mean_cosine


def test_long_sequences_are_not_worse_for_their_length(exported):
    """If every logit is equally wrong, long sequences are as close to PyTorch as short ones."""
    task = exported["tagging"].load_task()
    evaluation_set = random_ids(task)

    def constant(value):
        return lambda arrays: {"logits": np.full((*arrays["input_ids"].shape, 3), value, np.float32)}

    found = measure_quality(ReferenceOutputs(evaluation_set, constant(1.0)), {"off": constant(1.1)})["off"]

    assert len({len(features) for features in evaluation_set.features}) > 5
    np.testing.assert_allclose([found.mean_cosine, found.min_cosine], 1 - 0.1**2 / 2, rtol=1e-6)


def test_a_large_mean_does_not_hide_differences(checkpoints):
    """Outputs of a regression are compared relative to the mean of its labels."""
    settings = {"max_seq_length": 32, "label_mean": 50.0}
    task = create_task("regression", Tokenizer.load(checkpoints["plain"]), settings_from_dict("regression", settings))

    def constant(value):
        return lambda arrays: {"logits": np.full((len(arrays["input_ids"]), 1), value, np.float32)}

    reference = ReferenceOutputs(random_ids(task), constant(51.0))
    found = measure_quality(reference, {"off": constant(51.1)})["off"]

    np.testing.assert_allclose(found.mean_cosine, 1 - 0.1**2 / 2, rtol=1e-5)
