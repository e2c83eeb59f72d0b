"""Nomic BERT: config keys of the hub and of transformers 5, scaled positions, training. Outputs: test_architectures."""

from dataclasses import replace

import pytest
import torch

from tests.families import CONFIGS, batch, change_config_file, create
from tests.training.model.test_architectures import change_weights
from training.checkpoint.reader import load_model, read_shape
from training.model.architectures import ARCHITECTURES
from training.model.nomic_encoder import NomicBertConfig

KIND = "nomic_bert, all options"
NATIVE = "nomic_bert, transformers 5"
SHAPE = NomicBertConfig(
    vocab_size=100,
    hidden_size=64,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=96,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1000.0, "factor": 2.0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_experts": 8, "moe_top_k": 2, "activation_function": "gelu"}, "num_experts `8` is not supported"),
        ({"activation_function": "gelu"}, "activation_function `gelu` is not supported (only `swiglu`, `geglu`)"),
        ({"activation_function": None}, "activation_function `gelu_new` is not supported"),
        ({"rotary_emb_fraction": 0.5}, "rotary_emb_fraction `0.5` is not supported (only `1.0`)"),
        ({"rotary_emb_fraction": None}, "rotary_emb_fraction `0.0` is not supported"),
        ({"rotary_emb_interleaved": True}, "rotary_emb_interleaved `true` is not supported (only `false`)"),
        ({"prenorm": True}, "prenorm `true` is not supported"),
        ({"num_heads_kv": 2}, "num_heads_kv `2` is not supported"),
        ({"mlp_fc2_bias": False}, "mlp_fc2_bias differs from mlp_fc1_bias"),
        ({"head_dim": 16}, "head_dim `16` is not supported (only 8)"),
        ({"n_head": 32}, "n_embd `32` and n_head `32` make heads of 1 channels; rotary positions need an even number"),
        ({"n_head": 16}, "n_head `16` make heads of 2 channels; rotary positions need"),
        ({"rope_parameters": {"rope_type": "yarn"}}, 'rope_parameters `{"rope_type": "yarn"}` is not supported'),
        ({"rope_parameters": [1000.0]}, "rope_parameters `[1000.0]` is not supported"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling"),
    ],
    ids=str,
)
def test_config_that_is_not_understood_is_refused(changes, message, tmp_path):
    """Keys of `config.json` that change the network are computed or refused, with the file's name."""
    create(KIND, "embedding", tmp_path)
    change_config_file(tmp_path, **changes)

    with pytest.raises(ValueError, match=r"config\.json") as caught:
        read_shape(tmp_path)

    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


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


def test_scaled_frequencies_follow_the_formula():
    """The base grows with the text beyond the trained length, and is the plain one below it."""
    config = replace(SHAPE, rotary_scaling_factor=2.0, max_trained_positions=100, max_position_embeddings=400)

    found = config.frequencies(torch.tensor([1, 100, 200, 400]))

    for row, growth in zip(found, (1, 1, 3, 7), strict=True):
        theta = 1000 * growth ** (16 / 14)
        expected = torch.tensor([theta ** (-2 * pair / 16) for pair in range(8)])
        torch.testing.assert_close(row, expected)


@pytest.mark.parametrize("kind", ["nomic_bert", KIND])
def test_gradients_equal_those_of_the_reference(kind, tmp_path):
    """The loss of masked LM has the same gradients in training mode on the CPU."""
    reference = create(kind, "masked-lm", tmp_path).train()
    ids, mask, types = batch(kind)
    labels = torch.where(mask.bool(), ids, -100).flatten()
    theirs = reference(ids, mask, types).logits
    torch.nn.functional.cross_entropy(theirs.flatten(0, 1), labels).backward()

    model = load_model(tmp_path, "masked-lm", dropout=0.0).train()
    ours = model(ids, mask, types)["logits"]
    torch.nn.functional.cross_entropy(ours.flatten(0, 1), labels).backward()

    layer = reference.encoder["layers"][1]
    pairs = [
        (model.bert.embeddings.word, reference.embeddings["word_embeddings"].weight.grad),
        (model.bert.layers[1].qkv, layer.attn["Wqkv"].weight.grad),
        (
            model.bert.layers[1].intermediate,
            torch.cat([layer.mlp["fc12"].weight.grad, layer.mlp["fc11"].weight.grad]),
        ),
        (model.mlm.dense, reference.cls["predictions"]["transform"]["dense"].weight.grad),
    ]
    for module, expected in pairs:
        torch.testing.assert_close(module.weight.grad, expected, atol=1e-5, rtol=1e-3)
