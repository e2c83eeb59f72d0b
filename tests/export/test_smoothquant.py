"""SmoothQuant: smoothed activations lose less in int8, and the network computes the same otherwise."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays as np_arrays

from export import QualityLimits, graph_run
from export.autotune.model_directory import read_graph, tune_model_directory
from export.autotune.workload import Workload
from export.calibrate import calibrate, largest_by_channel
from export.evaluation_set import ExportData, random_ids
from export.graph import build_graph
from export.network import Weights
from export.quality import Evaluator
from export.quality_gate import Decision, choose
from export.smoothquant import channel_divisors, smooth
from export.variant import GraphPrecision, GraphVariant
from tests.export.conftest import int8, read_network
from tests.export.test_variants import VARIANTS
from training.checkpoint.evaluation import torch_run

SMOOTHQUANT = GraphPrecision(matmul="SmoothQuant int8")
CHANNEL = 3


@pytest.fixture(scope="module")
def outlier_checkpoint(save_checkpoint, tmp_path_factory):
    """With ReLU, a channel can be scaled up and its weights down without changing the outputs."""
    return save_checkpoint(tmp_path_factory.mktemp("checkpoints") / "relu", hidden_act="relu")


def read(checkpoint, factor=1.0):
    """Return a network whose `output` layers have one input channel scaled up, its model and evaluation set."""
    model, network = read_network(checkpoint)
    for layer in model.bert.layers:
        layer.intermediate.weight.data[CHANNEL] *= factor
        layer.intermediate.bias.data[CHANNEL] *= factor
        layer.output.weight.data[:, CHANNEL] /= factor
    evaluation_set, weights = random_ids(network.task), Weights.from_model(model)
    ranges = calibrate(model, network.task, evaluation_set.features, network.layers)
    network = replace(network, weights=weights, ranges=ranges)
    return network, model, evaluation_set


@given(np_arrays(np.float32, st.integers(1, 9), elements=st.floats(0, 2**10, width=32, allow_subnormal=False)))
def test_only_large_channels_are_divided(largest):
    """Channels shrink to twice the median, or the largest by 32 if the median is close to 0."""
    divisors = channel_divisors(largest)

    limit = max(2 * np.median(largest), largest.max() / 32)
    assert divisors.dtype == np.float32
    assert ((divisors >= 1) & (divisors <= 32)).all()
    assert (divisors[largest <= limit] == 1).all()
    assert (largest <= 1.001 * limit * divisors).all()


def test_largest_by_channel(outlier_checkpoint):
    """The maximum is over all tokens of all sequences."""
    _, model, evaluation_set = read(outlier_checkpoint, 500)
    name = "bert.layers.0.output"

    found = largest_by_channel(model, evaluation_set.task, evaluation_set.features, [name])[name]

    assert found.shape == (64,)
    assert found.argmax() == CHANNEL


def test_large_channels_lose_less_when_smoothed(outlier_checkpoint):
    """The loss is less than half of plain int8's, and the quality gate tries it when that falls short."""
    network, model, evaluation_set = read(outlier_checkpoint, 500)
    evaluator = Evaluator(evaluation_set, torch_run(model, network.task))
    kinds = GraphPrecision(matmul="static int8"), GraphPrecision(matmul="dynamic int8")
    measured = evaluator.measure(network, *kinds)
    best = max(measured[kind.name].mean_cosine for kind in kinds)
    limits = QualityLimits(min_cosine=1 - 0.5 * (1 - best))
    smoothquant = partial(smooth, network, model, evaluation_set.features)

    decision = choose(network, "int8", evaluator=evaluator, limits=limits, smoothquant=smoothquant)

    assert decision.precision == SMOOTHQUANT
    assert decision.network.smoothing_factors.keys() < set(network.layers)


@pytest.mark.parametrize("name", ["plain", "masked-lm"])
def test_smoothquant_supports_all_variants(name, checkpoints, random_batch):
    """Every variant computes the same, and a layer can stay in fp32."""
    network, model, evaluation_set = read(checkpoints[name])
    network = smooth(network, model, evaluation_set.features)
    inputs = random_batch(3, 9)
    key = network.task.output_names[0]
    mask = inputs["attention_mask"].astype(bool) if network.task.token_outputs else ...

    def outputs(precision, variant):
        return graph_run(build_graph(network, precision, variant))(inputs)[key][mask]

    mixed = replace(SMOOTHQUANT, fp32_layers=("bert.layers.0.qkv", "bert.layers.1.intermediate"))
    for precision in (SMOOTHQUANT, mixed):
        expected = outputs(precision, GraphVariant())
        for variant in VARIANTS:
            np.testing.assert_allclose(outputs(precision, variant), expected, atol=0.04 * np.abs(expected).max())
    in_fp32 = outputs(replace(SMOOTHQUANT, fp32_layers=tuple(network.quantizable_layers)), GraphVariant())
    np.testing.assert_allclose(in_fp32, torch_run(model, network.task)(inputs)[key][mask], atol=1e-4)


@pytest.mark.usefixtures("untimed")
def test_smoothquant_model_directories_can_be_tuned(export, texts_file, monkeypatch):
    """Weights and ranges stay the same, bit for bit."""
    monkeypatch.setattr("export.pipeline.choose", _choose_smoothquant)
    directory = export("classification", int8(min_cosine=0.9), data=ExportData(texts=texts_file))
    before, precision = read_graph(directory)

    tune_model_directory(directory.path, Workload((5, 9), 65))

    after, again = read_graph(directory)
    assert precision == again == SMOOTHQUANT
    assert before.ranges == after.ranges
    for layer in before.layers:
        name = f"{layer}.weight"
        np.testing.assert_array_equal(after.weights.int8(name).values, before.weights.int8(name).values)
        np.testing.assert_array_equal(after.weights.int8(name).scales, before.weights.int8(name).scales)
        if not layer.endswith("attention_output"):
            np.testing.assert_array_equal(after.smoothing_factors[layer], before.smoothing_factors[layer])


def _choose_smoothquant(network, precision, *, evaluator, smoothquant, **options):
    return Decision(smoothquant(), SMOOTHQUANT)
