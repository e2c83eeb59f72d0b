"""ModernBERT: config keys and windows. Outputs and gradients are compared in test_architectures."""

import json

import pytest
import torch
import transformers

from tests.families import assert_network_equals, change_config_file, create
from training.checkpoint.reader import read_shape
from training.model.rotary import rotary_frequencies, rotary_table

KIND = "modernbert, all options"


@pytest.mark.parametrize(("num_layers", "period"), [(1, 1), (5, 3), (4, 7)])
def test_keys_of_transformers_5(num_layers, period, tmp_path):
    """`layer_types` and `rope_parameters` describe the network that the keys of transformers 4 do."""
    create(KIND, "embedding", tmp_path)
    old = {"num_hidden_layers": num_layers, "global_attn_every_n_layers": min(period, num_layers)}
    change_config_file(tmp_path, **old, global_rope_theta=30.0, local_rope_theta=20.0)
    expected = read_shape(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    del values["global_rope_theta"], values["local_rope_theta"]
    kinds = ["sliding_attention" if number % period else "full_attention" for number in range(num_layers)]
    thetas = {"full_attention": 30.0, "sliding_attention": 20.0}
    values["rope_parameters"] = {key: {"rope_type": "default", "rope_theta": theta} for key, theta in thetas.items()}
    (tmp_path / "config.json").write_text(json.dumps(values | {"layer_types": kinds, "global_attn_every_n_layers": 4}))

    assert read_shape(tmp_path) == expected


@pytest.mark.parametrize("theta", [None, 500.0])
def test_local_theta_without_a_value_is_the_global_one(theta, tmp_path):
    """`local_rope_theta: null` means one base for all layers, as in transformers."""
    create(KIND, "embedding", tmp_path)
    change_config_file(tmp_path, local_rope_theta=theta, global_rope_theta=700.0)
    reference = transformers.AutoModel.from_pretrained(tmp_path).eval()

    assert_network_equals(reference, tmp_path, KIND)


@pytest.mark.parametrize("theta", [10_000.0, 160_000.0])
def test_rotary_table_equals_that_of_transformers(theta):
    """Angles are exact up to the last of 8192 positions."""
    config = transformers.ModernBertConfig(hidden_size=768, num_attention_heads=12, global_rope_theta=theta)
    rotary = transformers.models.modernbert.modeling_modernbert.ModernBertRotaryEmbedding(config)
    cos, sin = rotary(torch.zeros(1), torch.arange(8192)[None])

    found_cos, found_sin = rotary_table(8192, rotary_frequencies(64, theta))

    torch.testing.assert_close(torch.cat([found_cos, found_cos], -1), cos[0], atol=1e-6, rtol=0)
    torch.testing.assert_close(torch.cat([found_sin, found_sin], -1), sin[0], atol=1e-6, rtol=0)
