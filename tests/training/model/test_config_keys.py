"""Errors in `config.json` name the key that stands in the file, in every family."""

import copy
import functools
import json
import tempfile
from dataclasses import fields
from pathlib import Path

import pytest

from tests.families import CONFIGS, change_config_file, create, family
from training.checkpoint.reader import read_shape

IMPOSSIBLE = ("impossible", -3, {"a": 1})
"""Values that no field allows."""
DEBERTA, MODERN, NOMIC = "deberta-v2", "modernbert, all options", "nomic_bert, all options"
NOT_COMPUTED = [
    ("roberta", {"position_embedding_type": "relative_key"}, "relative_key"),
    ("electra", {"summary_activation": "tanh"}, "tanh"),
    ("albert", {"num_hidden_groups": 2}, "num_hidden_groups `2`"),
    ("mpnet", {"relative_attention_num_buckets": 64}, "64"),
    ("distilbert", {"activation": "mish"}, "mish"),
    ("camembert", {"is_decoder": True}, "is_decoder"),
    ("bert", {"add_cross_attention": True}, "add_cross_attention"),
    (DEBERTA, {"pos_att_type": "c2p|p2p"}, "`pos_att_type` must be '', 'c2p', 'p2c' or 'c2p|p2c': `\"c2p|p2p\"`"),
    (DEBERTA, {"attention_head_size": 16}, "attention_head_size `16` is not supported (only `8`)"),
    (DEBERTA, {"pooler_hidden_size": 16}, "pooler_hidden_size `16` is not supported (only `32`)"),
    (DEBERTA, {"conv_kernel_size": 4}, "conv_kernel_size must be odd: `4`"),
    (DEBERTA, {"conv_kernel_size": 3, "conv_groups": 5}, "is not a multiple of conv_groups `5`"),
    (DEBERTA, {"position_buckets": 1}, "position_buckets `1`"),
    (DEBERTA, {"position_buckets": 16, "max_relative_positions": 9}, "no rows for distances between 8 and"),
    (DEBERTA, {"relative_attention": False}, "no positions"),
    (DEBERTA, {"pos_att_type": None}, "no positions"),
    (MODERN, {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling"),
    (MODERN, {"rope_parameters": {"rope_type": "default", "rope_theta": 1.0}}, "must be given for full_attention and"),
    (MODERN, {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "only rope_type default"),
    (MODERN, {"rope_theta": 5.0}, "rope_theta `5.0` is not supported"),
    (MODERN, {"layer_types": [*["full_attention"] * 3, *["sliding_attention"] * 2]}, "only every n-th layer"),
    (MODERN, {"layer_types": ["full_attention"] * 4}, "layer_types must have an entry for each"),
    (MODERN, {"head_dim": 16}, "head_dim `16` is not supported"),
    (MODERN, {"partial_rotary_factor": 0.5}, "partial_rotary_factor `0.5` is not supported"),
    (MODERN, {"num_attention_heads": 32}, "make heads of 1 channels; rotary positions need an even number"),
    (NOMIC, {"num_experts": 8, "moe_top_k": 2, "activation_function": "gelu"}, "num_experts `8` is not supported"),
    (NOMIC, {"activation_function": "gelu"}, "`gelu` is not supported (only `swiglu`, `geglu`)"),
    (NOMIC, {"activation_function": None}, "activation_function `gelu_new` is not supported"),
    (NOMIC, {"rotary_emb_fraction": None}, "rotary_emb_fraction `0.0` is not supported (only `1.0`)"),
    (NOMIC, {"rotary_emb_interleaved": True}, "rotary_emb_interleaved `true` is not supported (only `false`)"),
    (NOMIC, {"prenorm": True}, "prenorm `true` is not supported"),
    (NOMIC, {"num_heads_kv": 2}, "num_heads_kv `2` is not supported"),
    (NOMIC, {"mlp_fc2_bias": False}, "mlp_fc2_bias differs from mlp_fc1_bias"),
    (NOMIC, {"head_dim": 16}, "head_dim `16` is not supported (only 8)"),
    (NOMIC, {"n_head": 32}, "n_embd `32` and n_head `32` make heads of 1 channels; rotary positions need"),
    (NOMIC, {"rope_parameters": {"rope_type": "yarn"}}, 'rope_parameters `{"rope_type": "yarn"}` is not supported'),
    (NOMIC, {"rope_parameters": [1000.0]}, "rope_parameters `[1000.0]` is not supported"),
]


def set_value(values, path, value):
    """Return a copy of a JSON object with one value changed, in nested objects too."""
    changed = copy.deepcopy(values)
    *parents, last = path.split(".")
    inner = changed
    for parent in parents:
        inner = inner[parent]
    inner[last] = value
    return changed


@functools.cache
def config_file(kind):
    """Return the contents of a family's `config.json`."""
    with tempfile.TemporaryDirectory() as directory:
        create(kind, "embedding", Path(directory))
        return (Path(directory) / "config.json").read_text(encoding="utf-8")


def keys_of_fields(architecture, values):
    """Return the keys of all fields that a file of the family can set."""
    optional = {"embedding_size", "skips_padding_positions", "relative_attention_num_buckets", "pooler_act"}
    optional |= {"prediction_act"}
    optional |= {"shares_layers", "model_type"}  # set by the family unless it has defaults for them
    names = {item.name for item in fields(architecture.config_type)} - architecture.fixed.keys()
    return {
        architecture.key_of(name, values) for name in names if name not in optional or name in architecture.defaults
    }


def refusal(directory):
    """Return the error of reading a checkpoint's shape, or the shape."""
    try:
        return "", read_shape(directory)
    except ValueError as error:
        return str(error), None


@pytest.mark.parametrize("value", IMPOSSIBLE, ids=str)
@pytest.mark.parametrize("kind", sorted(CONFIGS))
def test_errors_name_the_key_of_the_file(value, kind, tmp_path):
    """An impossible value is refused with the file and its key, or the key is not read at all."""
    path = tmp_path / "config.json"
    path.write_text(config_file(kind), encoding="utf-8")
    values = json.loads(config_file(kind))
    expected, keys = read_shape(tmp_path), keys_of_fields(family(kind), values)
    refused = set()

    for key in sorted({*values, *keys} - {"model_type"}):
        path.write_text(json.dumps(set_value(values, key, value)), encoding="utf-8")
        message, found = refusal(tmp_path)
        before, named_file, text = message.partition(f"`{path}`")
        assert key in text if named_file else (before, found) == ("", expected)
        refused |= {key} if named_file else set()

    assert keys <= refused


@pytest.mark.parametrize(("kind", "changes", "message"), NOT_COMPUTED, ids=str)
def test_options_that_are_not_computed_are_refused(kind, changes, message, tmp_path):
    """Keys of `config.json` that change the network are computed or refused in one line, with the file's name."""
    (tmp_path / "config.json").write_text(config_file(kind), encoding="utf-8")
    change_config_file(tmp_path, **changes)

    with pytest.raises(ValueError, match=r"config\.json") as caught:
        read_shape(tmp_path)

    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
