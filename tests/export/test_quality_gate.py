"""Quality gate: limits, choice of the precision, and the most sensitive layers."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from export.calibrate import calibrate
from export.evaluation_set import random_ids
from export.network import Weights
from export.quality import Evaluator, Quality
from export.quality_gate import MAX_TIME, Decision, QualityError, QualityLimits, choose
from export.reporter import SILENT
from export.session import graph_run
from export.targets import TARGETS
from export.variant import GraphPrecision
from tasks import create_task, settings_from_dict
from tasks.embedding import Embedding
from tasks.text.tokenizer import Tokenizer
from tests.export.conftest import read_network
from training.checkpoint.evaluation import torch_run


def quality(cosine=1.0, agreement=None, **scores):
    return Quality(scores=scores, mean_cosine=cosine, min_cosine=cosine, worst=(), agreement=agreement or {})


def decision_of(found, reference, *, by_cosine):
    """Return the decision for fp32 of a task whose outputs are vectors, if the cosine is to be judged, too."""
    network = SimpleNamespace(task=Embedding(None, None) if by_cosine else None)
    return Decision(network, qualities={"PyTorch": reference, "fp32": found})


def shortfall(limits, found, reference, *, by_cosine):
    return decision_of(found, reference, by_cosine=by_cosine).shortfall(limits)


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
        (quality(0.98), False, "mean cosine to PyTorch"),
    ],
)
def test_limits_of_scores_and_vectors(found, by_cosine, message):
    """The first score that is no loss decides, or the cosine without labels; vectors need both."""
    reference = quality(loss=1.0, accuracy=0.8) if found.scores else quality()

    missed = shortfall(QualityLimits(), found, reference, by_cosine=by_cosine)

    assert bool(missed) == bool(message)
    assert re.search(message, missed)


@pytest.mark.parametrize(
    ("level", "agreement", "message"),
    [
        ("default", {"same_nearest": 0.5, "same_nearest_10": 0.5}, ""),
        ("high", {"same_nearest": 0.95, "same_nearest_10": 0.5}, ""),
        (
            "high",
            {"same_nearest": 0.9333, "same_nearest_10": 1.0},
            r"same for 93.3% of texts \(--min-same-nearest 0.95\)",
        ),
        ("high", {"same_prediction": 0.975}, r"97.5% of predictions stay the same \(--min-same-prediction 0.98\)"),
        ("high", {}, ""),
    ],
)
def test_levels_judge_agreement(level, agreement, message):
    """`high` has a limit for neighbours and predictions, unless the examples were too few to compare them."""
    missed = shortfall(QualityLimits(quality=level), quality(0.996, agreement), quality(), by_cosine=True)

    assert bool(missed) == bool(message)
    assert re.search(message, missed)


@pytest.mark.parametrize(
    ("found", "other", "is_less_close"),
    [
        (quality(0.5, {"same_prediction": 0.91}), quality(1.0, {"same_prediction": 0.961}), True),
        (quality(0.5, {"same_prediction": 0.952}), quality(1.0, {"same_prediction": 0.961}), False),
        (quality(1.0, {"same_prediction": 0.99}), quality(1.0, {"same_prediction": 0.91}), False),
        (
            quality(1.0, {"same_nearest": 0.9, "same_nearest_10": 0.8}),
            quality(1.0, {"same_nearest": 0.9, "same_nearest_10": 0.82}),
            True,
        ),
        (quality(0.998), quality(0.9995), True),
        (quality(0.999), quality(0.9995), False),
        (quality(float("nan")), quality(0.9995), True),
    ],
)
def test_a_graph_is_less_close_than_another(found, other, is_less_close):
    """Neighbours and predictions decide where they were compared; the mean cosine elsewhere."""
    assert found.is_less_close(other) == is_less_close


def test_flags_take_precedence_over_the_level():
    """A given limit replaces that of the level; the others stay."""
    limits = QualityLimits(quality="high", min_cosine=0.9)

    assert not shortfall(limits, quality(0.91), quality(), by_cosine=True)
    assert "--max-drop 0.25" in shortfall(limits, quality(f1=0.5), quality(f1=0.6), by_cosine=False)


@pytest.mark.parametrize(
    ("name", "measured"), [("same_nearest", "same_prediction"), ("same_prediction", "same_nearest")]
)
def test_given_limits_must_be_judged(name, measured):
    """A limit that was given, but is not measured, is an error; one of the level is not."""
    limits = QualityLimits(**{f"min_{name}": 0.9})

    limits.check_judged(quality(agreement={name: 0.1}))
    QualityLimits(quality="high").check_judged(quality())
    QualityLimits(**{f"min_{name}": 0}).check_judged(quality())
    for agreement in ({}, {measured: 1.0}):
        with pytest.raises(QualityError, match=f"--min-{name.replace('_', '-')} cannot be judged: it needs"):
            limits.check_judged(quality(agreement=agreement))


def test_flags_that_accept_a_quality_do():
    """The named flags, taken as they are printed, accept the quality; nothing accepts NaN."""
    found = quality(0.98765, {"same_nearest": 0.91239}, accuracy=0.71234)
    reference = quality(accuracy=0.8)
    limits = QualityLimits(quality="high")

    flags = decision_of(found, reference, by_cosine=True).accepting(limits)

    assert flags == "--max-drop 8.77 --min-cosine 0.9876 --min-same-nearest 0.912"
    values = dict(zip(*[iter(flags.split())] * 2, strict=True))
    given = {name.removeprefix("--").replace("-", "_"): float(value) for name, value in values.items()}
    assert not shortfall(replace(limits, **given), found, reference, by_cosine=True)
    assert decision_of(quality(float("nan")), quality(), by_cosine=True).accepting(limits) == ""


@pytest.fixture(scope="module")
def hard_network(checkpoints):
    """Network for embeddings with one layer that int8 cannot represent, and its evaluator."""
    model, network = read_network(checkpoints["plain"])
    model.bert.layers[1].intermediate.weight.data[:, 3] *= 300
    model.bert.layers[1].output.weight.data *= 0.01
    evaluation_set, weights = random_ids(network.task), Weights.from_model(model)
    ranges = calibrate(model, network.task, evaluation_set.features, network.layers)
    network = replace(network, weights=weights, ranges=ranges)
    return network, Evaluator(evaluation_set, torch_run(model, network.task))


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


def classification_like(task):
    """Return a classification with the tokenizer of another task."""
    values = {"labels": ["a", "b"], "max_seq_length": 32}
    return create_task("classification", task.tokenizer, settings_from_dict("classification", values))


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


class NamedEvaluator(FakeEvaluator):
    """Gives each precision the quality of its name."""

    def __init__(self, **cosines):
        self.cosines = {name.replace("_", " "): cosine for name, cosine in cosines.items()}
        self.measured = []

    def measure(self, network, *precisions):
        self.measured.extend(item.name for item in precisions)
        return {"PyTorch": quality(), **{item.name: quality(self.cosines.get(item.name, 0.9)) for item in precisions}}


def times_of(**times):
    """Return a timer that gives times by name; precisions without one are the fastest."""

    def timer(decisions):
        assert all(not item.shortfall(QualityLimits()) for item in decisions)
        return {item.precision.name: times.get(item.precision.matmul.replace(" ", "_"), 1.0) for item in decisions}

    return timer


@pytest.mark.parametrize(
    ("level", "smoothquant_time", "chosen"),
    [
        ("default", MAX_TIME, "SmoothQuant int8"),
        ("default", MAX_TIME + 0.01, "static int8"),
        ("high", MAX_TIME, "SmoothQuant int8"),
        ("high", MAX_TIME + 0.01, "static int8"),
    ],
)
def test_the_closest_vectors_that_are_hardly_slower_are_taken(level, smoothquant_time, chosen, hard_network):
    """For vectors, `default` compares SmoothQuant with the first within the limits, and `high` compares all."""
    network, _ = hard_network
    evaluator = NamedEvaluator(static_int8=0.996, dynamic_int8=0.9955, SmoothQuant_int8=0.998)
    timer = times_of(SmoothQuant_int8=smoothquant_time)

    decision = choose(
        network,
        "int8",
        evaluator=evaluator,
        limits=QualityLimits(quality=level),
        smoothquant=lambda: network,
        timer=timer,
    )

    assert decision.precision.name == chosen
    always = ["static int8", "dynamic int8", "SmoothQuant int8"]
    high = ["SmoothQuant int8, 1 layer in fp32", "SmoothQuant int8, 2 layers in fp32"]
    assert evaluator.measured == ["fp32", *always, *(high if level == "high" else [])]
    assert decision.qualities.keys() == {"PyTorch", *evaluator.measured}
    assert decision.times.keys() == ({*always} if level == "high" else {"static int8", "SmoothQuant int8"})
    slower = "SmoothQuant int8 is closer to PyTorch, but 6.0% slower than the fastest"
    expected = f"{slower} (limit 5%; --min-cosine 0.997 takes it)" if chosen == "static int8" else ""
    assert decision.closer_but_slower() == expected


@pytest.mark.parametrize(("static", "chosen"), [(0.995, "static int8"), (0.9, "SmoothQuant int8")])
def test_other_tasks_take_the_first_within_the_limits(static, chosen, hard_network):
    """A classifier's SmoothQuant is tried only if the others miss the limits; nothing is timed."""
    network = replace(hard_network[0], task=classification_like(hard_network[0].task))
    evaluator = NamedEvaluator(static_int8=static, SmoothQuant_int8=0.998)

    decision = choose(
        network, "int8", evaluator=evaluator, limits=QualityLimits(), smoothquant=lambda: network, timer=times_of()
    )

    assert decision.precision.name == chosen
    assert not decision.times
    assert ("SmoothQuant int8" in evaluator.measured) == (chosen == "SmoothQuant int8")


def test_a_rejection_names_what_would_pass(hard_network):
    """A layer in fp32, a lower limit, or the default quality, each as a flag."""
    network, _ = hard_network
    evaluator = NamedEvaluator(static_int8=0.9931, **{"static_int8,_4_layers_in_fp32": 0.9961})
    reject = {"evaluator": evaluator, "limits": QualityLimits(quality="high")}

    with pytest.raises(QualityError) as rejected:
        choose(network, "int8", **reject)

    assert str(rejected.value).startswith("graph rejected: with static int8 the mean cosine to PyTorch is 0.9931")
    for remedy in (
        "--mixed keeps such layers in fp32: 4 of 13 suffice",
        "--quality default accepts static int8",
        "--min-cosine 0.9931 accepts static int8",
        "export in fp32",
    ):
        assert remedy in str(rejected.value)
    evaluator.measured.clear()
    assert choose(network, "int8", **reject, mixed=True).precision.name == "static int8, 4 layers in fp32"
    assert len(evaluator.measured) == len({*evaluator.measured})
    assert choose(network, "int8", evaluator=evaluator, limits=QualityLimits(min_cosine=0.993)).precision.is_static


def test_worst_examples_are_named(exported):
    """A quality lists the examples with the largest differences, by location; those with NaN come first."""
    task = exported["spans"].load_task()
    evaluation_set = random_ids(task)
    run = graph_run(exported["spans"].model_path)

    def where_long(factor):
        def changed(arrays):
            is_long = arrays["attention_mask"].sum(1, keepdims=True) > 28
            return {name: np.where(is_long, factor * logits, logits) for name, logits in run(arrays).items()}

        return changed

    runs = {"wrong": where_long(-1), "nan": where_long(np.nan)}
    found = Evaluator(evaluation_set, run).measure_runs("", runs)

    assert found["PyTorch"].mean_cosine == pytest.approx(1)
    pairs = zip(evaluation_set.locations, evaluation_set.windows, strict=True)
    lengths = {location: len(windows[0]) for location, windows in pairs}
    assert all(lengths[location] > 28 for location, value in found["wrong"].worst if value < 0.9)
    assert found["wrong"].min_cosine < 0.5 < found["wrong"].mean_cosine
    worst = [np.isnan(value) for _, value in found["nan"].worst]
    assert worst[0]
    assert worst == sorted(worst, reverse=True)


@pytest.mark.parametrize("scale", [0.0, 1e-30])
def test_tiny_vectors_are_compared(scale, exported):
    """Zero vectors are equal, and tiny vectors have a cosine."""
    evaluation_set, run = random_ids(exported["embedding"].load_task()), graph_run(exported["embedding"].model_path)

    def tiny(arrays):
        return {name: scale * vectors for name, vectors in run(arrays).items()}

    assert Evaluator(evaluation_set, tiny).measure_runs("", {"same": tiny})["same"].mean_cosine == pytest.approx(1)


def test_long_sequences_are_not_worse_for_their_length(exported):
    """If every logit is equally wrong, long sequences are as close to PyTorch as short ones."""
    task = exported["tagging"].load_task()
    evaluation_set = random_ids(task)

    def constant(value):
        return lambda arrays: {"logits": np.full((*arrays["input_ids"].shape, 3), value, np.float32)}

    found = Evaluator(evaluation_set, constant(1.0)).measure_runs("", {"off": constant(1.1)})["off"]

    assert len({len(features) for features in evaluation_set.features}) > 5
    np.testing.assert_allclose([found.mean_cosine, found.min_cosine], 1 - 0.1**2 / 2, rtol=1e-6)


def test_a_large_mean_does_not_hide_differences(checkpoints):
    """Outputs of a regression are compared relative to the mean of its labels."""
    settings = {"max_seq_length": 32, "label_mean": 50.0}
    task = create_task("regression", Tokenizer.load(checkpoints["plain"]), settings_from_dict("regression", settings))

    def constant(value):
        return lambda arrays: {"logits": np.full((len(arrays["input_ids"]), 1), value, np.float32)}

    found = Evaluator(random_ids(task), constant(51.0)).measure_runs("", {"off": constant(51.1)})["off"]

    np.testing.assert_allclose(found.mean_cosine, 1 - 0.1**2 / 2, rtol=1e-5)
