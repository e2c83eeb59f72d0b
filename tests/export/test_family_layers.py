"""Model directories of families with custom layers, and options of DeBERTa."""

import json

import numpy as np
import pytest
import torch

from export import graph_run
from export.autotune.model_directory import tune_model_directory
from export.autotune.workload import Workload
from export.graph import build_graph
from export.variant import GraphPrecision
from tasks.bundle.model_directory import read_model_directory
from tests.export.conftest import UNTUNED, int8, read_network
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
    model, network = read_network(tmp_path, "classification", **settings("classification"))
    arrays = arrays_of("deberta-v2")
    with torch.no_grad():
        expected = model(**{name: torch.from_numpy(value).long() for name, value in arrays.items()})["logits"]

    for variant in VARIANTS:
        found = graph_run(build_graph(network, GraphPrecision(), variant))(arrays)["logits"]
        np.testing.assert_allclose(found, expected.numpy(), atol=1e-4)


@pytest.mark.usefixtures("untimed")
@pytest.mark.parametrize(
    ("kind", "key", "value", "precision"),
    [
        ("modernbert, all options", "local_attention", 8, "int8"),
        ("deberta-v2, all options", "conv_kernel_size", 3, "fp32"),
    ],
)
def test_checkpoint_is_exported_and_tuned(kind, key, value, precision, tmp_path, export):
    """A checkpoint of transformers becomes a model directory, which is tuned again, with the same outputs.

    A manifest with more tokens than the graph has positions or distances is refused.
    """
    create(kind, "embedding", tmp_path / "checkpoint")
    before = export(tmp_path / "checkpoint", int8(min_cosine=0.9) if precision == "int8" else UNTUNED, task="embedding")
    arrays = arrays_of(kind)
    expected = graph_run(before.model_path)(arrays)["sentence_embedding"]

    tune_model_directory(before.path, Workload((3, 9, 32), 65))

    after = read_model_directory(before.path)
    found = graph_run(after.model_path, execution=after.manifest.execution)(arrays)["sentence_embedding"]
    np.testing.assert_allclose(found, expected, atol=1e-4 if precision == "fp32" else 0.1 * np.abs(expected).max())
    assert after.manifest.provenance["checkpoint"]["config"][key] == value
    manifest = after.path / "manifest.json"
    values = json.loads(manifest.read_text())
    values["settings"]["max_seq_length"] = 41
    manifest.write_text(json.dumps(values))
    with pytest.raises(ValueError, match="it has 40 positions, fewer than max_seq_length `41`"):
        read_model_directory(after.path)
