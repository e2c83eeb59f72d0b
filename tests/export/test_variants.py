"""All variants of a graph compute the same; precisions differ by rounding only."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from export.builder import GraphBuilder
from export.calibrate import calibrate
from export.graph import build_graph
from export.linear import LinearLayers
from export.network import Range, Weights
from export.session import graph_run
from export.smoothquant import smooth
from export.storage import save_graph
from export.variant import Attention, GraphPrecision, GraphVariant
from tasks.bundle.manifest import Execution
from tasks.features import Features
from tests.export.conftest import read_network
from tests.export.test_families import arrays_of, settings
from tests.families import create

VARIANTS = [
    *(GraphVariant(attention=attention) for attention in get_args(Attention)),
    GraphVariant(skip_layer_norm=True, embed_layer_norm=True),
    GraphVariant(bias_gelu=True),
    GraphVariant(standard=True),
    GraphVariant(standard=True, attention="MatMul"),
]
PRECISIONS = [
    GraphPrecision(),
    GraphPrecision(matmul="dynamic int8"),
    GraphPrecision(matmul="static int8"),
    GraphPrecision(matmul="static int8", fp32_layers=("bert.layers.0.qkv", "bert.layers.1.output")),
    GraphPrecision(matmul="static int8", fp32_layers=("bert.embeddings.word", "mlm.decoder")),
    GraphPrecision(matmul="fp16"),
]


CASES = [
    *(("bert", task) for task in ("embedding", "classification", "multiple-choice", "tagging", "spans", "masked-lm")),
    ("modernbert", "classification"),
    ("modernbert", "masked-lm"),
    ("modernbert, all options", "classification"),
    ("modernbert, all options", "tagging"),
    ("modernbert, all options", "masked-lm"),
    ("nomic_bert", "classification"),
    ("nomic_bert, all options", "tagging"),
    ("nomic_bert, all options", "masked-lm"),
    ("deberta-v2", "classification"),
    ("deberta-v2", "masked-lm"),
    ("deberta-v2, all options", "classification"),
    ("deberta-v2, all options", "tagging"),
]


@pytest.fixture(scope="module")
def networks(tmp_path_factory):
    """Return calibrated networks, plain and smoothed, by kind and task."""

    def make(kind, task):
        directory = tmp_path_factory.mktemp("checkpoint")
        create(kind, task, directory)
        model, network = read_network(directory, task, **settings(task))
        assemble = network.task.tokenizer.assemble
        features = [Features(**assemble(np.arange(5, 5 + length))) for length in range(1, 38, 3)]
        features += rows_of(arrays_of(kind))  # tiny random networks have other ranges for other texts
        network = replace(network, ranges=calibrate(model, network.task, features, network.layers))
        return network, smooth(network, model, features)

    return {case: make(*case) for case in CASES}


def rows_of(arrays):
    """Return the sequences of a batch without padding."""
    lengths = arrays["attention_mask"].sum(1)
    pairs = zip(arrays["input_ids"], arrays["token_type_ids"], lengths, strict=True)
    return [Features(input_ids=ids[:length], token_type_ids=types[:length]) for ids, types, length in pairs]


def outputs(network, precision, variant, arrays):
    """Return the first output at unpadded positions."""
    found = graph_run(build_graph(network, precision, variant))(arrays)[network.task.output_names[0]]
    return found[arrays["attention_mask"].astype(bool)] if network.task.token_outputs else found


PAIRS = [
    pytest.param(case, precision, marks=[pytest.mark.slow] * bool((row + column) % 3))
    for row, case in enumerate(CASES)
    for column, precision in enumerate([*PRECISIONS, GraphPrecision(matmul="SmoothQuant int8")])
]
"""Two of three pairs are slow; each case and each precision is in some of the fast ones."""


@pytest.mark.parametrize(("case", "precision"), PAIRS, ids=lambda value: getattr(value, "name", str(value)))
def test_all_variants_compute_the_same(case, precision, networks):
    """All variants agree with fp32, as far as the precision allows."""
    plain, smoothed = networks[case]
    network = smoothed if precision.matmul == "SmoothQuant int8" else plain
    arrays = arrays_of(case[0])
    expected = outputs(plain, GraphPrecision(), GraphVariant(), arrays)
    first = outputs(network, precision, GraphVariant(), arrays)

    allowed = {"fp32": 1e-5, "fp16": 5e-3}.get(precision.matmul, 0.1)
    assert np.linalg.norm(first - expected) <= allowed * np.linalg.norm(expected)
    for variant in VARIANTS:
        found = outputs(network, precision, variant, arrays)
        atol = 1e-4 if precision.matmul == "fp32" else 0.04 * np.abs(expected).max()
        np.testing.assert_allclose(found, first, atol=atol)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_static_int8_does_not_depend_on_the_batch(case, networks):
    """With static int8, a sequence gets the same outputs alone and in a batch; with dynamic int8, it does not."""
    network, arrays = networks[case][0], arrays_of(case[0])
    num_tokens = int(arrays["attention_mask"][-1].sum())
    alone = {key: value[-1:, :num_tokens] for key, value in arrays.items()}
    kept = slice(0, num_tokens) if network.task.token_outputs else slice(None)
    name = network.task.output_names[0]

    def difference(matmul):
        run = graph_run(build_graph(network, GraphPrecision(matmul=matmul), GraphVariant()))
        return np.abs(np.atleast_1d(run(arrays)[name][-1])[kept] - run(alone)[name][0]).max()

    assert difference("static int8") < 1e-5
    if case[0] == "bert":
        assert difference("dynamic int8") > 1e-5


@pytest.mark.parametrize("standard", [False, True], ids=["fused", "standard"])
@pytest.mark.parametrize("matmul", ["dynamic int8", "static int8"])
def test_sums_of_integers_are_exact_on_every_cpu(matmul, standard, networks):
    """Sums of the largest integers are exact; without VNNI, CPUs add them in 16 bits, which overflow."""
    weights = Weights({"layer.weight": np.ones((64, 32), np.float32), "layer.bias": np.zeros(32, np.float32)})
    network = replace(networks["bert", "embedding"][0], weights=weights, ranges={"layer": Range.between(0, 255)})
    graph = GraphBuilder()
    layers = LinearLayers(graph, network, GraphPrecision(matmul=matmul), GraphVariant(standard=standard))
    graph.output("y", layers.apply("layer", "x"))
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, None]) for name in "xy")

    (sums,) = graph_run(graph.model([x], [y]))({"x": np.full((8, 64), 255, np.float32)}).values()

    np.testing.assert_allclose(sums, 64 * 255, rtol=1e-5)


@pytest.mark.parametrize(("flags", "slower"), [({"avx2", "avx512f"}, True), ({"avx2", "avx_vnni"}, False)])
def test_slow_exact_sums_are_used_without_vnni_only(flags, slower, monkeypatch):
    """ONNX Runtime's slower exact matmul is selected only on CPUs without VNNI."""
    monkeypatch.setattr("tasks.bundle.machine.cpu_flags", lambda: frozenset(flags))
    monkeypatch.setattr("platform.machine", lambda: "x86_64")

    assert ("session.x64quantprecision" in Execution().session_config) == slower


@pytest.mark.parametrize("case", [("bert", "embedding"), ("modernbert", "classification")], ids=str)
def test_last_layers_compute_only_what_is_read(case, networks):
    """If only [CLS] is read, the last layer's feed-forward network computes no other tokens."""

    def slices(case):
        nodes = build_graph(networks[case][0], GraphPrecision(), GraphVariant()).proto.graph.node
        return [node for node in nodes if node.op_type == "Slice" and node.name.startswith("layer.1")]

    assert len(slices(case)) > len(slices((case[0], "masked-lm")))


def test_graphs_have_unique_names(networks):
    """Nodes have unique names, which begin with the part of the network."""
    for network, _ in networks.values():
        names = [node.name for node in build_graph(network, GraphPrecision(), GraphVariant()).proto.graph.node]
        assert len(set(names)) == len(names)
        assert {name.split("/")[0] for name in names} >= {"embeddings", "layer.0", "layer.1", "head"}


def test_graphs_are_written_again_from_their_weights(networks, tmp_path):
    """Weights and tables of positions are read from graphs of every precision, cycling through the variants."""
    for row, (network, _) in enumerate(networks.values()):
        for column, precision in [*enumerate(PRECISIONS)][row % 2 :: 2]:
            variant = VARIANTS[(row + column) % len(VARIANTS)]
            save_graph(build_graph(network, precision, variant), tmp_path / "graph.onnx")
            found = Weights.from_graph(tmp_path / "graph.onnx")
            again = replace(network, weights=found)
            assert build_graph(again, precision, variant).whole() == onnx.load(tmp_path / "graph.onnx")
            assert found.num_positions == 40


@pytest.mark.parametrize("task", ["embedding", "masked-lm"])
def test_word_embeddings_are_int8_and_stored_once(task, networks):
    """Word embeddings are stored once, as int8 in int8 graphs, also if the masked LM head shares them."""
    network = networks["bert", task][0]
    config = network.config
    shapes = {(config.vocab_size, config.hidden_size), (config.hidden_size, config.vocab_size)}

    def tables(precision):
        found = build_graph(network, precision, GraphVariant()).proto.graph.initializer
        return [item.data_type for item in found if tuple(item.dims) in shapes]

    assert tables(GraphPrecision()) == [onnx.TensorProto.FLOAT]
    assert tables(GraphPrecision(matmul="static int8")) == [onnx.TensorProto.INT8]
    kept = GraphPrecision(matmul="dynamic int8", fp32_layers=tuple(network.quantizable_layers))
    assert tables(kept) == [onnx.TensorProto.FLOAT]


def test_standard_graphs_have_standard_operators_only(networks):
    """Standard graphs pass ONNX's checker without operators of ONNX Runtime; static int8 is written as QDQ."""
    for row, (network, _) in enumerate(networks.values()):
        for precision in PRECISIONS[row % 2 :: 2]:
            model = build_graph(network, precision, GraphVariant(standard=True)).whole()

            assert {node.domain for node in model.graph.node} == {""}
            onnx.checker.check_model(model, full_check=True)
            kinds = {node.op_type for node in model.graph.node}
            assert ("DequantizeLinear" in kinds) == (precision.matmul == "static int8")


@pytest.mark.parametrize("activation", ["gelu_new", "gelu_fast", "relu", "silu"])
def test_standard_activations(activation, networks):
    """Standard graphs compute activation functions like fused graphs."""
    network = networks["bert", "embedding"][0]
    network = replace(network, config=replace(network.config, hidden_act=activation))

    found, expected = (
        outputs(network, GraphPrecision(), GraphVariant(standard=standard), arrays_of("bert"))
        for standard in (True, False)
    )

    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("standard", [False, True])
def test_only_weights_are_in_half_precision(standard, networks):
    """In fp16, inputs and outputs are not in half precision."""
    for network, _ in networks.values():
        graph = build_graph(network, GraphPrecision(matmul="fp16"), GraphVariant(standard=standard)).whole().graph
        layers = {item.data_type for item in graph.initializer if item.name.startswith("bert.layers.0.output.")}
        assert layers == {onnx.TensorProto.FLOAT16}
        assert {value.type.tensor_type.elem_type for value in graph.input} == {onnx.TensorProto.INT32}
        assert {value.type.tensor_type.elem_type for value in graph.output} == {onnx.TensorProto.FLOAT}


def test_padding_has_no_effect_in_half_precision(networks):
    """Padded tokens do not change the outputs, and the mask is finite in fp16."""
    network, arrays = networks["bert", "embedding"][0], arrays_of("bert")
    other = arrays | {"input_ids": np.where(arrays["attention_mask"] == 1, arrays["input_ids"], 7)}

    found, expected = (
        outputs(network, GraphPrecision(matmul="fp16"), GraphVariant(), item) for item in (arrays, other)
    )

    assert np.isfinite(found).all()
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("low", "high"), [(-1, 3), (0.5, 2), (-4, -1), (0, 0)])
def test_zero_is_exact_in_every_range(low, high):
    """Zero is exact, and both ends of the range can be represented."""
    known = Range.between(low, high)

    assert 0 <= known.zero_point <= 255
    ends = (np.array([0, 255]) - known.zero_point) * known.scale
    assert ends[0] <= min(low, 0) + known.scale / 2
    assert ends[1] >= max(high, 0) - known.scale / 2
