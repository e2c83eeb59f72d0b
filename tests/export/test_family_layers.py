"""Model directories of families with custom layers, and options of DeBERTa."""

import json

import numpy as np
import pytest
import torch

from export import ExportConfig, export_checkpoint, graph_run
from export.autotune.model_directory import tune_model_directory
from export.autotune.workload import Workload, typical_lengths
from export.graph import build_graph
from export.network import Network, Weights
from export.quality_gate import QualityLimits
from export.source import read_source
from export.variant import GraphPrecision
from tasks.bundle.model_directory import read_model_directory
from tests.export.test_families import arrays_of, settings
from tests.export.test_variants import VARIANTS
from tests.families import CONFIGS, create


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
        found = graph_run(build_graph(network, GraphPrecision(), variant))(arrays)["logits"]
        np.testing.assert_allclose(found, expected.numpy(), atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "key", "value", "precision"),
    [
        ("modernbert, all options", "local_attention", 8, "int8"),
        ("deberta-v2, all options", "conv_kernel_size", 3, "fp32"),
    ],
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
