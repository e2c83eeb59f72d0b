"""Graphs of every family of encoders, for every task and in all variants, equal transformers."""

import itertools

import numpy as np
import pytest
import torch

from export import graph_run
from export.graph import build_graph
from export.variant import GraphPrecision, GraphVariant
from tasks.bundle.manifest import Execution
from tasks.bundle.providers import OPENVINO
from tests.export.conftest import read_network
from tests.families import CONFIGS, SETTINGS, batch, create, reference_outputs
from training.model.heads import MODELS

VARIANTS = [
    GraphVariant(attention="MatMul"),
    GraphVariant(attention="fused-QKV MatMul", skip_layer_norm=True, embed_layer_norm=True, bias_gelu=True),
    GraphVariant(attention="fused-QKV MultiHeadAttention"),
    GraphVariant(attention="Attention", skip_layer_norm=True),
    GraphVariant(standard=True),
]
SHAPES = [(1, 1), (2, 20), (7, 40)]
"""Rows and length of batches; the last length is the maximum."""


def settings(task):
    """Return settings of a task that its checkpoint does not have."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in SETTINGS.get(task, {}).items()}


def arrays_of(kind, rows=3, length=33):
    """Return a padded batch."""
    names = ("input_ids", "attention_mask", "token_type_ids")
    return {name: value.numpy().astype(np.int32) for name, value in zip(names, batch(kind, rows, length), strict=True)}


def compare_with_transformers(kind, task, variants, tmp_path, *, shapes=SHAPES, execution=None):
    """Check that the graph variants give the outputs of transformers, to 1e-4, in batches of any shape."""
    reference = create(kind, task, tmp_path)
    _, network = read_network(tmp_path, task, **settings(task))
    graphs = [build_graph(network, GraphPrecision(), variant) for variant in variants]
    runs = [graph_run(graph, execution=execution) for graph in graphs]

    for rows, length in shapes:
        ids, mask, types = batch(kind, rows, length)
        expected = reference_outputs(reference, task, ids, mask, types)
        if task == "embedding":
            expected = {"sentence_embedding": expected["last_hidden_state"][:, 0]}
        arrays = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
        arrays = {name: value.numpy().astype(np.int32) for name, value in arrays.items()}
        for (name, values), run in itertools.product(expected.items(), runs):
            found = torch.from_numpy(run(arrays)[name])
            kept = mask.bool() if network.task.token_outputs else slice(None)
            torch.testing.assert_close(found[kept], values[kept], atol=1e-4, rtol=1e-4)


OTHERS = sorted(MODELS.keys() - {"embedding"})


@pytest.mark.parametrize("is_embedding", [True, False])
@pytest.mark.parametrize("number", range(len(CONFIGS)), ids=sorted(CONFIGS))
def test_graphs_equal_transformers(number, is_embedding, tmp_path):
    """Each family has the outputs of transformers: vectors in all variants, one other task in one of them."""
    task = "embedding" if is_embedding else OTHERS[number % len(OTHERS)]
    variants = VARIANTS if is_embedding else [VARIANTS[number % len(VARIANTS)]]

    compare_with_transformers(sorted(CONFIGS)[number], task, variants, tmp_path)


@pytest.mark.parametrize(
    ("kind", "changes"), [("roberta", {"hidden_act": "relu"}), ("mpnet", {"pad_token_id": 3, "hidden_act": "silu"})]
)
def test_constants_of_families(kind, changes, tmp_path, monkeypatch):
    """The head of masked LM has GELU, and MPNet skips id 1, regardless of the config."""
    monkeypatch.setitem(CONFIGS, kind, {**CONFIGS[kind], **changes})

    compare_with_transformers(kind, "masked-lm", VARIANTS[:2], tmp_path)


@pytest.mark.parametrize("kind", ["bert", "roberta", "modernbert", "nomic_bert, all options", "deberta-v2"])
def test_any_number_of_positions_in_openvino(kind, tmp_path, monkeypatch):
    """OpenVINO, whose batches are padded to few lengths, runs texts up to the last position, whatever the table."""
    name = "n_positions" if "n_positions" in CONFIGS[kind] else "max_position_embeddings"
    monkeypatch.setitem(CONFIGS, kind, {**CONFIGS[kind], name: CONFIGS[kind][name] - 3})
    shapes, execution = [(1, 20), (2, 36), (7, 37)], Execution(provider=OPENVINO)

    compare_with_transformers(
        kind, "tagging", [GraphVariant(standard=True)], tmp_path, shapes=shapes, execution=execution
    )


@pytest.mark.slow
@pytest.mark.parametrize("task", sorted(MODELS))
@pytest.mark.parametrize("kind", sorted(CONFIGS))
def test_all_variants_equal_transformers(kind, task, tmp_path):
    """Each family has the outputs of transformers for each task in each variant."""
    compare_with_transformers(kind, task, VARIANTS, tmp_path)
