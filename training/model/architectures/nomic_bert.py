"""Nomic BERT (Nussbaum et al. 2024, arXiv 2402.01613): nomic-embed-text-v1 and v1.5, nomic-bert-2048.

`config.json` has the keys of transformers 5, those of the model's own code on the Hugging Face hub, or both. That code
is not run. Weights are named as on the hub, which transformers 5 keeps in files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from training.model.architectures.base import Architecture, shown
from training.model.config import EncoderConfig
from training.model.nomic_encoder import NomicBertConfig

_HUB_KEYS = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "hidden_act": "activation_function",
    "hidden_dropout_prob": "resid_pdrop",
    "attention_probs_dropout_prob": "attn_pdrop",
    "layer_norm_eps": "layer_norm_epsilon",
    "rope_theta": "rotary_emb_base",
}
"""Key of transformers 5 -> key of the hub's code, which takes them from GPT-2."""
_HUB_DEFAULTS = {
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "activation_function": "gelu_new",
    "resid_pdrop": 0.1,
    "attn_pdrop": 0.1,
    "layer_norm_epsilon": 1e-5,
    "rotary_emb_base": 10_000,
    "rotary_emb_fraction": 0.0,
    "qkv_proj_bias": True,
    "mlp_fc1_bias": True,
    "mlp_fc2_bias": True,
}
"""Defaults of the hub's code for keys that a file lacks."""
_GATES = {"swiglu": "silu", "geglu": "gelu"}
"""`activation_function` of the hub's code -> activation of the gate."""

_POOLED = {"bert.pooler": "nomic_bert.pooler.dense", "classifier": "classifier"}
"""Head over [CLS]; other tasks have no pooler."""


class _NomicBert(Architecture):
    def key_of(self, name: str, values: Mapping[str, Any]) -> str:
        """Return the key of the hub's code if the file has it, else that of transformers 5."""
        if (key := _HUB_KEYS.get(name, "n_positions" if name == "max_position_embeddings" else "")) in values:
            return key
        nested = {"rope_theta": "rope_theta", "rotary_scaling_factor": "factor"}.get(name)
        is_nested = nested in (values.get("rope_parameters") or ())
        return f"rope_parameters.{nested}" if is_nested and name not in values else super().key_of(name, values)

    def _read(self, values: Mapping[str, Any]) -> EncoderConfig:
        found = _with_rotary_fields({key: value for key, value in values.items() if value is not None})
        if any(key in found for key in _HUB_KEYS.values()):
            found = _with_keys_of_transformers(found)
        if "n_positions" in found:
            found["max_position_embeddings"] = found["n_positions"]
        if found.get("mlp_fc2_bias", False) != found.get("mlp_fc1_bias", False):
            raise ValueError("mlp_fc2_bias differs from mlp_fc1_bias, which is not supported")
        config = super()._read(found)
        if found.get("head_dim", config.head_size) != config.head_size:
            raise ValueError(f"head_dim {shown(found['head_dim'])} is not supported (only {config.head_size})")
        return config

    def write_config(self, config: EncoderConfig) -> dict[str, Any]:
        """Return the values of `config.json` under the keys of transformers 5; the hub's for what it lacks."""
        assert isinstance(config, NomicBertConfig)
        values = super().write_config(config) | {"n_positions": config.max_position_embeddings}
        rotary: dict[str, Any] = {"rope_type": "default", "rope_theta": values.pop("rope_theta")}
        if config.rotary_scaling_factor:
            rotary |= {"rope_type": "dynamic", "factor": config.rotary_scaling_factor}
            values["max_position_embeddings"] = config.max_trained_positions
        return values | {"rope_parameters": rotary, "mlp_fc2_bias": config.mlp_bias}

    def from_hugging_face(self, weights: Mapping[str, Tensor], num_layers: int, task: str = "") -> dict[str, Tensor]:
        """Return the weights under our names; biases that a head of masked LM lacks are zero."""
        found = super().from_hugging_face(weights, num_layers, task)
        if "mlm.dense.weight" in found:
            found.setdefault("mlm.dense.bias", found["mlm.dense.weight"].new_zeros(len(found["mlm.dense.weight"])))
            words = found["bert.embeddings.word.weight"]
            found.setdefault("mlm.bias", weights.get("cls.predictions.decoder.bias", words.new_zeros(len(words))))
        return found

    def _full_name(self, name: str) -> str:
        """Replace the prefix of the hub's code by that of transformers 5."""
        return self.prefix + name.removeprefix("bert.") if name.startswith("bert.") else super()._full_name(name)


def _with_rotary_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Replace `rope_parameters` of transformers 5 by fields of `NomicBertConfig`.

    Raises:
        ValueError: if they request something that is not computed here.
    """
    found = {key: value for key, value in values.items() if key != "rope_parameters"}
    if (given := values.get("rope_parameters")) is None:
        return found
    kind = given.get("rope_type", "default") if isinstance(given, dict) else ""
    is_known = kind in ("default", "dynamic") and given.keys() <= {"rope_type", "rope_theta", "factor"}
    if not is_known or ("factor" in given) != (kind == "dynamic"):
        raise ValueError(f"rope_parameters {shown(given)} is not supported (only rope_theta, or dynamic with a factor)")
    if kind == "dynamic":
        found.setdefault("max_trained_positions", values.get("max_position_embeddings", 2048))
    fields = {"rope_theta": given.get("rope_theta"), "rotary_scaling_factor": given.get("factor")}
    return {key: value for key, value in fields.items() if value is not None} | found


def _with_keys_of_transformers(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with the keys of transformers 5 for those of the hub's code, which count if a file has both."""
    found = {**{key: value for key, value in _HUB_DEFAULTS.items() if key not in _HUB_KEYS.values()}, **values}
    for name, key in _HUB_KEYS.items():
        if name not in values and key in _HUB_DEFAULTS:
            found.setdefault(key, _HUB_DEFAULTS[key])
        if key in found:
            found[name] = _value_in_transformers(key, found[key])
    if isinstance(hidden := found["hidden_size"], int):
        found.setdefault("intermediate_size", _value_in_transformers("n_inner", 4 * hidden))
    if "max_position_embeddings" not in values:
        found.setdefault("n_positions", 1024)
    multiple = values.get("pad_vocab_size_multiple", 1)
    if not isinstance(multiple, int) or multiple < 1:
        raise ValueError(f"pad_vocab_size_multiple must be a whole number above 0: {shown(multiple)}")
    return found | {"vocab_size": _round_up(values.get("vocab_size"), multiple)}


def _value_in_transformers(key: str, value: Any) -> Any:
    """Convert a value of the hub's code to that of transformers 5."""
    if key == "activation_function" and isinstance(value, str):
        return _GATES.get(value, value)
    return _round_up(value, 256) if key == "n_inner" else value  # as the hub's code does


def _round_up(value: Any, multiple: int) -> Any:
    """Return the next multiple of a number; other values as they are."""
    return -(-value // multiple) * multiple if isinstance(value, int) else value


ARCHITECTURE = _NomicBert(
    model_type="nomic_bert",
    class_prefix="NomicBert",
    prefix="nomic_bert.",
    config_type=NomicBertConfig,
    config_keys={"attention_bias": "qkv_proj_bias", "mlp_bias": "mlp_fc1_bias"},
    defaults={
        "vocab_size": 30528,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "max_position_embeddings": 2048,
    },
    supported={
        "num_experts": (0,),
        "activation_function": tuple(_GATES),
        "rotary_emb_fraction": (1.0,),
        "rotary_emb_scale_base": (None,),
        "rope_scaling": (None,),
        "partial_rotary_factor": (1.0,),
        "num_heads_kv": (None,),
        **dict.fromkeys(
            (
                *("prenorm", "parallel_block", "use_rms_norm", "norm_mlp", "causal"),
                *("rotary_emb_interleaved", "rotary_head_dim", "last_layer_subset"),
            ),
            (False,),
        ),
    },
    encoder={
        "bert.embeddings.word": "embeddings.word_embeddings",
        "bert.embeddings.token_type": "embeddings.token_type_embeddings",
        "bert.embeddings.norm": "emb_ln",
    },
    layers="encoder.layers.",
    layer={
        "qkv": ("attn.Wqkv",),
        "attention_output": ("attn.out_proj",),
        "attention_norm": ("norm1",),
        "intermediate": ("mlp.fc12", "mlp.fc11"),  # the first half goes through the activation function
        "output": ("mlp.fc2",),
        "output_norm": ("norm2",),
    },
    heads={
        "mlm.dense": "cls.predictions.transform.dense",
        "mlm.norm": "cls.predictions.transform.layer_norm",
        "mlm.bias": "cls.predictions.bias",
    },
    task_heads=dict.fromkeys(("classification", "regression", "multiple-choice"), _POOLED),
    bare_prefixes=("embeddings.", "emb_ln.", "encoder.", "pooler."),
)
