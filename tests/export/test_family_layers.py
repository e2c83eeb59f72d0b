"""Graphs of families with custom layers in every precision and variant.

ModernBERT, Nomic BERT and DeBERTa. test_families compares fp32 with transformers.
"""

import itertools
import json

import numpy as np
import onnx
import pytest
import torch

from export import ExportConfig, export_checkpoint, graph_run
from export.autotune.model_directory import tune_model_directory
from export.autotune.workload import Workload, typical_lengths
from export.calibrate import calibrate
from export.graph import build_graph
from export.network import Network, Weights
from export.quality_gate import QualityLimits
from export.smoothquant import smooth
from export.source import read_source
from export.storage import save_graph
from export.variant import GraphPrecision, GraphVariant
from tasks.bundle.model_directory import read_model_directory
from tasks.features import Features
from tests.export.test_families import settings
from tests.export.test_variants import PRECISIONS, VARIANTS
from tests.families import CONFIGS, batch, create

CASES = [
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
        source = read_source(directory, task=task, settings=settings(task))
        model = source.load_model().eval()
        network = Network(model.config, Weights.from_model(model), source.task)
        features = [Features(**source.task.tokenizer.assemble(np.arange(5, 5 + length))) for length in range(1, 38)]
        features += rows_of(arrays_of(kind))  # tiny random networks have other ranges for other texts
        calibrated = {**vars(network), "ranges": calibrate(model, source.task, features, network.layers)}
        return Network(**calibrated), smooth(Network(**calibrated), model, features)

    return {case: make(*case) for case in CASES}


def arrays_of(kind, rows=3, length=33):
    """Return a padded batch."""
    names = ("input_ids", "attention_mask", "token_type_ids")
    return {name: value.numpy().astype(np.int32) for name, value in zip(names, batch(kind, rows, length), strict=True)}


def rows_of(arrays):
    """Return the sequences of a batch without padding."""
    lengths = arrays["attention_mask"].sum(1)
    pairs = zip(arrays["input_ids"], arrays["token_type_ids"], lengths, strict=True)
    return [Features(input_ids=ids[:length], token_type_ids=types[:length]) for ids, types, length in pairs]


def outputs(network, precision, variant, arrays):
    """Return the logits at unpadded positions."""
    found = graph_run(build_graph(network, precision, variant))(arrays)["logits"]
    return found[arrays["attention_mask"].astype(bool)] if network.task.token_outputs else found


PAIRS = [
    pytest.param(case, precision, marks=[pytest.mark.slow] if (row + column) % 2 else [])
    for row, case in enumerate(CASES)
    for column, precision in enumerate([*PRECISIONS, GraphPrecision(matmul="SmoothQuant int8")])
]
"""Every other pair is slow, so that each case and each precision is in many of the fast ones."""


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
    """With static int8, a sequence gets the same outputs alone and in a batch with longer ones."""
    network, arrays = networks[case][0], arrays_of(case[0])
    num_tokens = int(arrays["attention_mask"][-1].sum())
    alone = {key: value[-1:, :num_tokens] for key, value in arrays.items()}
    run = graph_run(build_graph(network, GraphPrecision(matmul="static int8"), GraphVariant()))

    together = run(arrays)["logits"][-1]

    kept = slice(0, num_tokens) if network.task.token_outputs else slice(None)
    np.testing.assert_allclose(together[kept], run(alone)["logits"][0], atol=1e-5)


def test_graphs_are_written_again_from_their_weights(networks, tmp_path):
    """Weights and tables of positions are read from graphs of every precision, cycling through the variants."""
    for (row, (network, _)), (column, precision) in itertools.product(
        enumerate(networks.values()), enumerate(PRECISIONS)
    ):
        variant = VARIANTS[(row + column) % len(VARIANTS)]
        save_graph(build_graph(network, precision, variant), tmp_path / "graph.onnx")
        found = Weights.from_graph(tmp_path / "graph.onnx")
        again = Network(**{**vars(network), "weights": found})
        assert build_graph(again, precision, variant).whole() == onnx.load(tmp_path / "graph.onnx")
        assert found.num_positions == 40


def test_standard_graphs_have_standard_operators_only(networks):
    """Standard graphs pass ONNX's checker without operators of ONNX Runtime."""
    for network, _ in networks.values():
        for precision in PRECISIONS:
            model = build_graph(network, precision, GraphVariant(standard=True)).whole()
            assert {node.domain for node in model.graph.node} == {""}
            onnx.checker.check_model(model, full_check=True)


def test_last_layer_of_modernbert_computes_only_what_is_read(networks):
    """With [CLS] pooling, the last layer computes one token; with mean pooling, all."""
    counts = {
        kind: sum(
            node.op_type == "Slice" and f"layer.{network.config.num_hidden_layers - 1}/" in node.name
            for node in build_graph(network, GraphPrecision(), GraphVariant()).proto.graph.node
        )
        for (kind, task), (network, _) in networks.items()
        if task == "classification"
    }

    assert counts["modernbert"] >= 2
    assert counts["modernbert, all options"] == 0


def of_deberta(networks):
    """Return the kinds and networks of DeBERTa."""
    return [(kind, network) for (kind, _), (network, _) in networks.items() if kind.startswith("deberta")]


def test_positions_of_deberta_are_projected_at_export(networks):
    """Graphs hold a table for each head, and no weights of the relative embeddings."""
    for kind, network in of_deberta(networks):
        initializers = build_graph(network, GraphPrecision(), GraphVariant()).proto.graph.initializer
        shapes = {item.name: list(item.dims) for item in initializers}
        assert shapes["bert.layers.1.relative_keys"] == [4, 16 if kind == "deberta-v2" else 32, 8]
        assert not [name for name in shapes if "position_key" in name or "relative_norm" in name]


def test_last_layer_of_deberta_computes_only_what_is_read(networks):
    """Where only [CLS] is read, the last layer needs no skewing; elsewhere, every layer does."""

    def skewed(network):
        nodes = build_graph(network, GraphPrecision(), GraphVariant()).proto.graph.node
        layers = {node.name.split("/")[0] for node in nodes if node.op_type == "Slice" and "attention" in node.name}
        return sorted(layer for layer in layers if layer.startswith("layer"))

    for _, network in of_deberta(networks):
        reads_only_cls = network.task.name == "classification"
        assert skewed(network) == (["layer.0"] if reads_only_cls else ["layer.0", "layer.1"])


@pytest.mark.parametrize(
    "changes",
    [
        {"relative_attention": False, "position_biased_input": True},
        {"pos_att_type": "c2p"},
        {"pos_att_type": "p2c", "type_vocab_size": 1},
        {"type_vocab_size": 2},
        {"num_hidden_layers": 1, "conv_kernel_size": 3},
    ],
    ids=str,
)
def test_options_of_deberta_equal_the_network(changes, tmp_path, monkeypatch):
    """Graphs of single options give the logits of PyTorch in all variants."""
    monkeypatch.setitem(CONFIGS, "deberta-v2", CONFIGS["deberta-v2"] | changes)
    create("deberta-v2", "classification", tmp_path)
    source = read_source(tmp_path, task="classification", settings=settings("classification"))
    model = source.load_model().eval()
    network = Network(model.config, Weights.from_model(model), source.task)
    arrays = arrays_of("deberta-v2")
    with torch.no_grad():
        expected = model(**{name: torch.from_numpy(value).long() for name, value in arrays.items()})["logits"]

    for variant in VARIANTS:
        found = outputs(network, GraphPrecision(), variant, arrays)
        np.testing.assert_allclose(found, expected.numpy(), atol=1e-4)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [("modernbert, all options", "local_attention", 8), ("deberta-v2, all options", "conv_kernel_size", 3)],
)
def test_checkpoint_is_exported_and_tuned(kind, key, value, precision, tmp_path):
    """A checkpoint of transformers becomes a model directory, which is tuned again, with the same outputs."""
    create(kind, "embedding", tmp_path / "checkpoint")
    config = ExportConfig(precision=precision, tune=False, limits=QualityLimits(min_cosine=0.9))
    before = export_checkpoint(tmp_path / "checkpoint", tmp_path / "models/1", config, task="embedding")
    arrays = arrays_of(kind)
    expected = graph_run(before.model_path)(arrays)["sentence_embedding"]

    tune_model_directory(before.path, Workload(typical_lengths(8, 32), 65))

    after = read_model_directory(before.path)
    found = graph_run(after.model_path, execution=after.manifest.execution)(arrays)["sentence_embedding"]
    np.testing.assert_allclose(found, expected, atol=1e-4 if precision == "fp32" else 0.1 * np.abs(expected).max())
    assert after.manifest.provenance["checkpoint"]["config"][key] == value


@pytest.mark.parametrize("kind", ["modernbert", "deberta-v2"])
def test_server_refuses_texts_longer_than_the_tables(kind, tmp_path):
    """A manifest with more tokens than the graph has positions or distances is refused."""
    create(kind, "embedding", tmp_path / "checkpoint")
    config = ExportConfig(tune=False)
    exported = export_checkpoint(tmp_path / "checkpoint", tmp_path / "models/1", config, task="embedding")
    manifest = exported.path / "manifest.json"
    values = json.loads(manifest.read_text())
    values["settings"]["max_seq_length"] = 41
    manifest.write_text(json.dumps(values))

    with pytest.raises(ValueError, match="it has 40 positions, fewer than max_seq_length `41`"):
        read_model_directory(exported.path)
