"""Activations whose channels are made more alike lose less as integers, and are the same numbers otherwise."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays as np_arrays

from export import Limits, Wishes, export_checkpoint, ort_run
from export.autotune.model_directory import read_graph, retune
from export.autotune.workload import Workload
from export.calibrate import calibrate, largest_by_channel
from export.data import Data
from export.evaluation_set import random_ids
from export.graph import build_graph
from export.network import Network, Weights
from export.quality_gate import Gate
from export.smoothquant import balanced, channel_divisors
from export.source import read_source
from export.variant import Form, Numbers
from tests.export.test_variants import FORMS
from training.evaluate import torch_run

BALANCED = Numbers(products="balanced int8")
CHANNEL = 3


@pytest.fixture(scope="module")
def outlier_checkpoint(save_checkpoint, tmp_path_factory):
    """With ReLU, which lets a channel be made larger, and its weights smaller, without a change of what is computed."""
    return save_checkpoint(tmp_path_factory.mktemp("checkpoints") / "relu", hidden_act="relu")


def gate_of(checkpoint, factor=1.0):
    """Of a network in which a channel of what each `output` takes is larger than it was."""
    source = read_source(checkpoint)
    model = source.load_model()
    for layer in model.bert.layers:
        layer.intermediate.weight.data[CHANNEL] *= factor
        layer.intermediate.bias.data[CHANNEL] *= factor
        layer.output.weight.data[:, CHANNEL] /= factor
    evidence = random_ids(source.task)
    network = Network(model.config, Weights.of(model), source.task)
    network = replace(network, ranges=calibrate(model, source.task, evidence.features, network.layers))
    balance = partial(balanced, network, model, evidence.features)
    return Gate(network, evidence, torch_run(model, source.task), Limits(), balance=balance), model


@given(np_arrays(np.float32, st.integers(1, 9), elements=st.floats(0, 2**10, width=32, allow_subnormal=False)))
def test_only_large_channels_are_divided(largest):
    """To twice the median; or the largest one by 32, where the median is next to nothing."""
    divisors = channel_divisors(largest)

    limit = max(2 * np.median(largest), largest.max() / 32)
    assert divisors.dtype == np.float32
    assert ((divisors >= 1) & (divisors <= 32)).all()
    assert (divisors[largest <= limit] == 1).all()
    assert (largest <= 1.001 * limit * divisors).all()


def test_largest_by_channel(outlier_checkpoint):
    """Of what a layer takes, over all tokens of all sequences."""
    gate, model = gate_of(outlier_checkpoint, 500)
    name = "bert.layers.0.output"

    found = largest_by_channel(model, gate.evidence.task, gate.evidence.features, [name])[name]

    assert found.shape == (64,)
    assert found.argmax() == CHANNEL


def test_large_channels_cost_less_when_balanced(outlier_checkpoint):
    """Less than half of what other integers lose; the gate turns to them where those fall short."""
    gate, _ = gate_of(outlier_checkpoint, 500)
    gate.judge(Numbers(products="static int8"), Numbers(products="dynamic int8"))
    best = max(gate.qualities[name].mean_cosine for name in ("static int8", "dynamic int8"))
    gate.limits = Limits(min_cosine=1 - 0.5 * (1 - best))

    assert gate.choose(mixed=False) == BALANCED
    assert gate.network.factors.keys() < set(gate.network.layers)


@pytest.mark.parametrize("name", ["plain", "masked-lm"])
def test_balanced_numbers_have_all_forms(name, checkpoints, random_batch):
    """Every form computes the same, and a layer may stay in floats."""
    gate, _ = gate_of(checkpoints[name])
    network = gate.balance()
    inputs = random_batch(3, 9)
    key = network.task.output_names[0]
    mask = inputs["attention_mask"].astype(bool) if network.task.token_outputs else ...

    def outputs(numbers, form):
        return ort_run(build_graph(network, numbers, form))(inputs)[key][mask]

    for numbers in (BALANCED, replace(BALANCED, fp32_layers=("bert.layers.0.qkv", "bert.layers.1.intermediate"))):
        expected = outputs(numbers, Form())
        for form in FORMS:
            np.testing.assert_allclose(outputs(numbers, form), expected, atol=0.04 * np.abs(expected).max())
    in_floats = outputs(replace(BALANCED, fp32_layers=tuple(network.int8_parts)), Form())
    np.testing.assert_allclose(in_floats, gate.reference(inputs)[key][mask], atol=1e-4)


def test_balanced_model_directories_are_tuned_again(checkpoints, tmp_path, texts, monkeypatch):
    """With the numbers that they have, bit for bit."""
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    monkeypatch.setattr(Gate, "choose", _choose_balanced)
    directory = export_checkpoint(
        checkpoints["classification"],
        tmp_path / "topic/1",
        Wishes(precision="int8", tune=False, limits=Limits(min_cosine=0.9)),
        data=Data(texts=tmp_path / "texts.txt"),
    )
    before, numbers = read_graph(directory)

    retune(directory.path, Workload((5, 9), 65))

    after, again = read_graph(directory)
    assert numbers == again == BALANCED
    assert before.ranges == after.ranges
    for layer in before.layers:
        name = f"{layer}.weight"
        np.testing.assert_array_equal(after.weights.int8(name).values, before.weights.int8(name).values)
        np.testing.assert_array_equal(after.weights.int8(name).scales, before.weights.int8(name).scales)
        if not layer.endswith("attention_output"):
            np.testing.assert_array_equal(after.factors[layer], before.factors[layer])


def _choose_balanced(gate, precision, *, mixed):
    gate.network = gate.balance()
    gate.judge(BALANCED)
    return BALANCED
