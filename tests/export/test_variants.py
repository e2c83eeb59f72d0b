"""All variants of a graph compute the same; precisions differ by rounding only."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import get_args

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from export.builder import GraphBuilder
from export.calibrate import calibrate
from export.graph import build_graph
from export.linear import LinearLayers
from export.network import Network, Range, Weights, to_int8
from export.session import graph_run
from export.source import read_source
from export.storage import save_graph
from export.variant import Attention, GraphPrecision, GraphVariant
from tasks.bundle.manifest import Execution
from tasks.features import Features
from tests.export.conftest import SETTINGS

WORDS = "bert.embeddings.word.weight"

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


@pytest.fixture(scope="module")
def networks(checkpoints):
    """Return the calibrated network of each task."""

    def make(name, task):
        source = read_source(checkpoints[name], task=task, settings=SETTINGS.get(task))
        model = source.load_model()
        network = Network(model.config, Weights.from_model(model), source.task)
        assemble = source.task.tokenizer.assemble
        features = [Features(**assemble(np.arange(5, 5 + length))) for length in range(1, 30)]
        return replace(network, ranges=calibrate(model, source.task, features, network.layers))

    return {name: make(name, None if name == "plain" else name) for name in checkpoints}


def outputs(network, precision, variant, arrays):
    """Return the outputs at unpadded positions."""
    found = graph_run(build_graph(network, precision, variant))(arrays)
    mask = arrays["attention_mask"].astype(bool) if network.task.token_outputs else ...
    return {name: value[mask] for name, value in found.items()}


@pytest.mark.parametrize(
    "name", ["plain", "classification", "regression", "multiple-choice", "tagging", "spans", "masked-lm"]
)
@pytest.mark.parametrize("precision", PRECISIONS, ids=lambda precision: precision.name)
def test_all_variants_compute_the_same(name, precision, networks, random_batch):
    """All variants agree; in int8, sums in another order may round to another integer."""
    arrays = random_batch(5, 17)
    expected = outputs(networks[name], precision, GraphVariant(), arrays)

    for variant in VARIANTS:
        found = outputs(networks[name], precision, variant, arrays)
        for key, value in expected.items():
            atol = 1e-4 if precision.matmul == "fp32" else 0.04 * np.abs(value).max()
            np.testing.assert_allclose(found[key], value, atol=atol)


@pytest.mark.parametrize("name", ["plain", "spans"])
def test_static_int8_does_not_depend_on_the_batch(name, networks, random_batch):
    """With static int8, a sequence gets the same outputs alone and in a batch; with dynamic int8, it does not."""
    arrays = random_batch(4, 23, seed=3)
    network = networks[name]
    num_tokens = int(arrays["attention_mask"][-1].sum())
    alone = {key: value[-1:, :num_tokens] for key, value in arrays.items()}
    key = network.task.output_names[0]

    def difference(matmul):
        run = graph_run(build_graph(network, GraphPrecision(matmul=matmul), GraphVariant()))
        together = run(arrays)[key][-1]
        return np.abs((together[:num_tokens] if network.task.token_outputs else together) - run(alone)[key][0]).max()

    assert difference("static int8") < 1e-5
    assert difference("dynamic int8") > 1e-5


@pytest.mark.parametrize("standard", [False, True], ids=["fused", "standard"])
@pytest.mark.parametrize("matmul", ["dynamic int8", "static int8"])
def test_sums_of_integers_are_exact_on_every_cpu(matmul, standard, networks):
    """Sums of the largest integers are exact; without VNNI, CPUs add them in 16 bits, which overflow."""
    weights = Weights({"layer.weight": np.ones((64, 32), np.float32), "layer.bias": np.zeros(32, np.float32)})
    network = replace(networks["plain"], weights=weights, ranges={"layer": Range.between(0, 255)})
    graph = GraphBuilder()
    layers = LinearLayers(graph, network, GraphPrecision(matmul=matmul), GraphVariant(standard=standard))
    graph.output("y", layers.apply("layer", "x"))
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, None]) for name in "xy")

    (sums,) = graph_run(graph.model([x], [y]))({"x": np.full((8, 64), 255, np.float32)}).values()

    np.testing.assert_allclose(sums, 64 * 255, rtol=1e-5)


@pytest.mark.parametrize(("flags", "slower"), [({"avx2", "avx512f"}, True), ({"avx2", "avx_vnni"}, False)])
def test_slow_exact_sums_are_used_without_vnni_only(flags, slower, monkeypatch):
    """ONNX Runtime's slower exact matmul is selected only on CPUs without VNNI."""
    monkeypatch.setattr("tasks.bundle.manifest.cpu_flags", lambda: frozenset(flags))

    assert ("session.x64quantprecision" in Execution().session_config) == slower


def test_cls_pooling_skips_other_tokens(networks):
    """If only [CLS] is read, the last layer's feed-forward network computes no other tokens."""
    nodes = build_graph(networks["classification"], GraphPrecision(), GraphVariant()).proto.graph.node
    slices = [node for node in nodes if node.op_type == "Slice" and node.name.startswith("layer.1")]

    assert len(slices) == 1
    assert not [
        node
        for node in build_graph(networks["spans"], GraphPrecision(), GraphVariant()).proto.graph.node
        if "layer.1/Slice" in node.name
    ]


def test_graphs_are_valid_and_named(networks):
    """ONNX's checker accepts the graphs, and their nodes have unique names."""
    for network in networks.values():
        model = build_graph(network, GraphPrecision(), GraphVariant()).whole()
        onnx.checker.check_model(model)
        names = [node.name for node in model.graph.node]
        assert len(set(names)) == len(names)
        has_head = network.task.name != "token-embedding"  # without layers, the states of the last one are its output
        assert {name.split("/")[0] for name in names} >= {"embeddings", "layer.0", "layer.1", *["head"] * has_head}


def test_weights_are_read_from_graphs(networks, tmp_path):
    """Weights are read from every variant and precision, as floats, integers or half precision."""
    for precision in PRECISIONS:
        for variant in VARIANTS:
            network = networks["masked-lm"]
            save_graph(build_graph(network, precision, variant), tmp_path / "graph.onnx")

            found = Weights.from_graph(tmp_path / "graph.onnx")

            for layer in network.layers:
                name = f"{layer}.weight"
                if precision.is_int8 and layer not in precision.fp32_layers:
                    np.testing.assert_array_equal(found.int8(name).values, network.weights.int8(name).values)
                    np.testing.assert_array_equal(found.int8(name).scales, network.weights.int8(name).scales)
                    known = f"{layer}.input.scale" in found.floats or layer.endswith("qkv")
                    assert known or precision.matmul == "dynamic int8"
                elif layer != "mlm.decoder":
                    np.testing.assert_array_equal(found[name], network.weights[name].astype(precision.dtype))
            if not precision.int8_embeddings:
                np.testing.assert_array_equal(found[WORDS], network.weights[WORDS].astype(precision.dtype))
            again = replace(network, weights=found)
            assert build_graph(again, precision, variant).whole() == onnx.load(tmp_path / "graph.onnx")


@pytest.mark.parametrize("name", ["plain", "masked-lm"])
def test_word_embeddings_are_int8_and_stored_once(name, networks):
    """Word embeddings are stored once, as int8 in int8 graphs, also if the masked LM head shares them."""
    config = networks[name].config
    shapes = {(config.vocab_size, config.hidden_size), (config.hidden_size, config.vocab_size)}

    def tables(precision):
        found = build_graph(networks[name], precision, GraphVariant()).proto.graph.initializer
        return [item.data_type for item in found if tuple(item.dims) in shapes]

    assert tables(GraphPrecision()) == [onnx.TensorProto.FLOAT]
    assert tables(GraphPrecision(matmul="static int8")) == [onnx.TensorProto.INT8]
    kept = GraphPrecision(matmul="dynamic int8", fp32_layers=tuple(networks[name].quantizable_layers))
    assert tables(kept) == [onnx.TensorProto.FLOAT]


@pytest.mark.parametrize("precision", PRECISIONS, ids=lambda precision: precision.name)
def test_standard_graphs_have_standard_operators_only(precision, networks):
    """Standard graphs use ONNX operators only; static int8 uses QuantizeLinear and DequantizeLinear."""
    for network in networks.values():
        for variant in VARIANTS:
            model = build_graph(network, precision, variant.as_standard()).whole()

            assert {node.domain for node in model.graph.node} == {""}
            assert [opset.domain for opset in model.opset_import] == [""]
            onnx.checker.check_model(model, full_check=True)
            kinds = {node.op_type for node in model.graph.node}
            assert ("DequantizeLinear" in kinds) == (precision.matmul == "static int8")


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "gelu_fast", "relu", "silu"])
def test_standard_activations(activation, networks, random_batch):
    """Standard graphs compute gelu, tanh gelu and relu like fused graphs."""
    network = networks["plain"]
    network = replace(network, config=replace(network.config, hidden_act=activation))
    arrays = random_batch(3, 9)

    (expected, *_), (found, *_) = (
        list(outputs(network, GraphPrecision(), variant, arrays).values())
        for variant in (GraphVariant(), GraphVariant(standard=True))
    )

    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("standard", [False, True])
@pytest.mark.parametrize("name", ["plain", "classification", "spans", "masked-lm"])
def test_fp16_is_close_to_fp32(name, standard, networks, random_batch):
    """Weights are in half precision, inputs and outputs are not, and outputs are close to fp32."""
    arrays, variant = random_batch(4, 19), GraphVariant(standard=standard)
    model = build_graph(networks[name], GraphPrecision(matmul="fp16"), variant).whole()
    expected = outputs(networks[name], GraphPrecision(), GraphVariant(), arrays)

    for key, value in outputs(networks[name], GraphPrecision(matmul="fp16"), variant, arrays).items():
        assert value.dtype == np.float32
        np.testing.assert_allclose(value, expected[key], atol=0.01 * np.abs(expected[key]).max())
    elements = {item.name: item.data_type for item in model.graph.initializer}
    assert {elements[name] for name in elements if name.startswith("bert.layers")} == {onnx.TensorProto.FLOAT16}
    assert {value.type.tensor_type.elem_type for value in model.graph.input} == {onnx.TensorProto.INT32}
    assert {value.type.tensor_type.elem_type for value in model.graph.output} == {onnx.TensorProto.FLOAT}


def test_padding_has_no_effect_in_half_precision(networks, random_batch):
    """Padded tokens do not change the outputs, and the mask is finite in fp16."""
    run = graph_run(build_graph(networks["plain"], GraphPrecision(matmul="fp16"), GraphVariant()))
    arrays = random_batch(3, 12)
    other = arrays | {"input_ids": np.where(arrays["attention_mask"] == 1, arrays["input_ids"], 7)}

    (found, *_), (expected, *_) = (list(run(item).values()) for item in (arrays, other))

    assert np.isfinite(found).all()
    np.testing.assert_array_equal(found, expected)


def test_int8_weights_are_close():
    """Quantized weights are within half a step of each column's scale, and zeros stay zeros."""
    matrix = np.random.default_rng(0).normal(size=(9, 5)).astype(np.float32) * [1, 10, 0.1, 0, 3]

    found = to_int8(matrix.astype(np.float32))

    assert (np.abs(found.values * found.scales - matrix).max(axis=0) <= found.scales / 2 + 1e-6).all()
    assert not found.values[:, 3].any()


@pytest.mark.parametrize(("low", "high"), [(-1, 3), (0.5, 2), (-4, -1), (0, 0)])
def test_zero_is_exact_in_every_range(low, high):
    """Zero is exact, and both ends of the range can be represented."""
    known = Range.between(low, high)

    assert 0 <= known.zero_point <= 255
    ends = (np.array([0, 255]) - known.zero_point) * known.scale
    assert ends[0] <= min(low, 0) + known.scale / 2
    assert ends[1] >= max(high, 0) - known.scale / 2


def test_names_of_precisions():
    """The name of a precision shows all its fields."""
    assert GraphPrecision().name == "fp32"
    assert GraphPrecision(matmul="static int8", fp32_layers=("a", "b")).name == "static int8, 2 layers in fp32"
    assert {item.name for item in fields(GraphPrecision)} == {"matmul", "fp32_layers"}
