"""Nomic BERT: config keys of the hub and of transformers 5, scaled positions. Outputs: test_architectures."""

import pytest
import torch

from tests.families import CONFIGS, batch, change_config_file, change_weights, create
from training.checkpoint.reader import load_model, read_shape
from training.model.architectures import ARCHITECTURES

KIND = "nomic_bert, all options"
NATIVE = "nomic_bert, transformers 5"
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1000.0, "factor": 2.0}


@pytest.mark.parametrize("kind", ["nomic_bert", KIND])
def test_files_with_both_kinds_of_keys(kind, tmp_path):
    """A file with the keys of the hub and of transformers 5, as on the hub since 2026, describes the same network."""
    create(kind, "embedding", tmp_path)
    expected = read_shape(tmp_path)
    both = ARCHITECTURES["nomic_bert"].write_config(expected)

    change_config_file(tmp_path, **{**both, **CONFIGS[kind]})

    assert read_shape(tmp_path) == expected


def test_sizes_that_the_code_of_the_hub_rounds_up(tmp_path):
    """The vocabulary and the feed-forward networks have the sizes that the hub's code gives them."""
    create("nomic_bert", "embedding", tmp_path)
    change_config_file(tmp_path, vocab_size=300, pad_vocab_size_multiple=64, n_inner=300)

    shape = read_shape(tmp_path)
    assert (shape.vocab_size, shape.intermediate_size) == (320, 512)
    change_config_file(tmp_path, n_inner=None)
    assert read_shape(tmp_path).intermediate_size == 256


def test_dynamic_positions_of_transformers_5(tmp_path):
    """The trained length is `max_position_embeddings` there; `n_positions` is the longest text."""
    create(NATIVE, "embedding", tmp_path)
    change_config_file(tmp_path, rope_parameters=DYNAMIC)
    assert not read_shape(tmp_path).scales_positions

    change_config_file(tmp_path, n_positions=90)

    shape = read_shape(tmp_path)
    assert (shape.num_positions, shape.max_trained_positions, shape.scales_positions) == (90, 40, True)


def test_weights_with_an_unknown_name_are_refused(tmp_path):
    """A weight below the prefix of the hub's code that is not part of the network is named."""
    create("nomic_bert", "classification", tmp_path)
    change_weights(tmp_path, lambda weights: weights.update({"bert.adapter.weight": torch.zeros(4)}))

    with pytest.raises(ValueError, match=r"has `bert\.adapter\.weight`, which is not part of a `nomic_bert`"):
        load_model(tmp_path, "classification")


@pytest.mark.parametrize("kind", ["nomic_bert", KIND])
def test_output_of_a_text_does_not_depend_on_its_neighbours(kind, tmp_path):
    """A text gives the same states alone and with longer ones, also where positions are scaled."""
    create(kind, "embedding", tmp_path)
    model = load_model(tmp_path, "embedding").eval()
    ids, mask, types = batch(kind, 3, 40)
    length = int(mask[2].sum())

    with torch.no_grad():
        together = model(ids, mask, types)["last_hidden_state"][2, :length]
        alone = model(ids[2:, :length], None, types[2:, :length])["last_hidden_state"][0]

    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)
