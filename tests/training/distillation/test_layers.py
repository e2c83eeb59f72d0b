"""Tests of students that start with some layers of a network, in every family."""

import pytest
import torch

from tests.families import CONFIGS, create
from training.checkpoint.reader import load_model
from training.model.heads import MODELS
from training.model.layer_subset import take_layers

FIRST = [name for name in CONFIGS if "albert" not in name]


@pytest.mark.parametrize("family", FIRST)
@pytest.mark.parametrize("task", ["embedding", "tagging"])
def test_first_layers_are_the_network_without_the_others(family, task, tmp_path):
    """The student's states are those after its last layer; with all layers they are the network's own."""
    create(family, task, tmp_path)
    model = load_model(tmp_path, task, new_head=True).eval()
    count = model.config.num_hidden_layers
    inputs = torch.arange(1, 21).view(2, 10), torch.ones(2, 10, dtype=torch.long), torch.zeros(2, 10, dtype=torch.long)
    key = "last_hidden_state" if task == "embedding" else "logits"
    with torch.no_grad():
        whole, same = model(*inputs)[key], take_layers(model, range(count)).eval()(*inputs)[key]
        student = take_layers(model, range(count - 1)).eval()
        fewer = student(*inputs)[key]
        del model.bert.layers[count - 1]

        assert torch.equal(whole, same)
        assert student.config.num_hidden_layers == count - 1
        assert not torch.equal(whole, fewer)
        assert torch.equal(model(*inputs)[key], fewer)
    assert type(student) is MODELS[task]


def test_layers_in_another_order(tmp_path):
    """BERT's layers may stand anywhere."""
    create("bert", "embedding", tmp_path)
    model = load_model(tmp_path, "embedding", new_head=True)
    student = take_layers(model, [1])

    assert torch.equal(student.bert.layers[0].intermediate.weight, model.bert.layers[1].intermediate.weight)


@pytest.mark.parametrize(
    ("family", "layers", "message"),
    [
        ("bert", [2], r"--take-layers `2`: the checkpoint has 2 layers, numbered from 0"),
        ("bert", [0, 0], "a layer is named twice"),
        ("albert", [0], "all layers of this network have the same weights"),
        ("modernbert", [1], "layer `1` cannot be layer 0, as one of both attends to all tokens"),
        ("modernbert, all options", [2], "the first layer of this network differs from the others; name 0 first"),
        ("deberta-v2, all options", [1], "the first layer of this network differs from the others; name 0 first"),
    ],
)
def test_layers_that_cannot_be_taken(family, layers, message, tmp_path):
    """The error names the layer and the reason."""
    create(family, "embedding", tmp_path)
    model = load_model(tmp_path, "embedding", new_head=True)

    with pytest.raises(ValueError, match=message):
        take_layers(model, layers)
