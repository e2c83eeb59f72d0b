"""ModernBERT (Warner et al. 2024, arXiv 2412.13663). Every head but masked LM's has a dense layer with LayerNorm."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from training.model.architectures.base import Architecture
from training.model.config import EncoderConfig
from training.model.modernbert_encoder import ModernBertConfig

_HEAD = {"bert.pooler": "head.dense", "bert.pooler.norm": "head.norm"}
_CLASSIFIER = {**_HEAD, "classifier": "classifier"}
_THETAS = {"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"}
"""Kind of layer in transformers 5 -> key of its rotary base in transformers 4."""


class _ModernBert(Architecture):
    def key_of(self, name: str, values: Mapping[str, Any]) -> str:
        """Return the key of transformers 5 if the file has it, else that of transformers 4."""
        kind = next((kind for kind in values.get("rope_parameters") or () if _THETAS.get(kind) == name), "")
        return f"rope_parameters.{kind}.rope_theta" if kind else super().key_of(name, values)

    def _read(self, values: Mapping[str, Any]) -> EncoderConfig:
        values = _with_keys_of_version_4(values)
        if "local_rope_theta" in values and values["local_rope_theta"] is None:  # as in transformers: one base for all
            global_theta = values.get("global_rope_theta", ModernBertConfig.global_rope_theta)
            values = {**values, "local_rope_theta": global_theta}
        return super()._read(values)

    def write_config(self, config: EncoderConfig) -> dict[str, Any]:
        """Return the values of `config.json`, with our one dropout in each place where transformers has one."""
        dropouts = dict.fromkeys(("embedding_dropout", "classifier_dropout"), config.hidden_dropout_prob)
        return {**super().write_config(config), **dropouts, "classifier_activation": config.pooler_act}


def _with_keys_of_version_4(values: Mapping[str, Any]) -> dict[str, Any]:
    """Replace keys that transformers 5 writes, and which take precedence there, by those of transformers 4.

    Raises:
        ValueError: naming the key whose value has no equivalent.
    """
    found = {key: value for key, value in values.items() if key not in ("rope_parameters", "layer_types")}
    if (types := values.get("layer_types")) is not None:
        found["global_attn_every_n_layers"] = _period(types, found.get("num_hidden_layers", 22))
    rotary = values.get("rope_parameters")
    if rotary is not None and not (isinstance(rotary, dict) and rotary.keys() <= _THETAS.keys()):
        raise ValueError(f"rope_parameters `{json.dumps(rotary)}` must be given for {' and '.join(_THETAS)}")
    for kind, given in (rotary or {}).items():
        is_plain = isinstance(given, dict) and given.keys() == {"rope_type", "rope_theta"}
        if not is_plain or given["rope_type"] != "default":
            raise ValueError(f"rope_parameters `{json.dumps(given)}` is not supported (only rope_type default)")
        found[_THETAS[kind]] = given["rope_theta"]
    return found


def _period(types: Any, num_layers: int) -> int:
    """Return n if every n-th layer, from the first, attends to all tokens, and the others are local.

    Raises:
        ValueError: if there is no such n.
    """
    if not isinstance(types, list) or len(types) != num_layers:
        raise ValueError(f"layer_types must have an entry for each of num_hidden_layers, `{num_layers}`")
    everywhere, nearby = _THETAS
    period = next((number for number in range(1, len(types)) if types[number] == everywhere), len(types))
    if types != [nearby if number % period else everywhere for number in range(len(types))]:
        raise ValueError("layer_types is not supported (only every n-th layer, from the first, as full_attention)")
    return period


ARCHITECTURE = _ModernBert(
    model_type="modernbert",
    class_prefix="ModernBert",
    prefix="model.",
    config_type=ModernBertConfig,
    config_keys={
        "hidden_act": "hidden_activation",
        "hidden_dropout_prob": "mlp_dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "layer_norm_eps": "norm_eps",
        "pooler_act": "classifier_activation",
    },
    defaults={
        "vocab_size": 50368,
        "intermediate_size": 1152,
        "num_hidden_layers": 22,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "max_position_embeddings": 8192,
        "layer_norm_eps": 1e-5,
        "pad_token_id": 50283,
        "pooler_act": "gelu",
    },
    fixed={"type_vocab_size": 0},
    supported={
        "rope_scaling": (None,),
        "rope_theta": (None,),
        "head_dim": (None,),
        "partial_rotary_factor": (None, 1.0),
    },
    encoder={
        "bert.embeddings.word": "embeddings.tok_embeddings",
        "bert.embeddings.norm": "embeddings.norm",
        "bert.final_norm": "final_norm",
    },
    layers="layers.",
    layer={
        "attention_norm": ("attn_norm",),
        "qkv": ("attn.Wqkv",),
        "attention_output": ("attn.Wo",),
        "feed_forward_norm": ("mlp_norm",),
        "intermediate": ("mlp.Wi",),
        "output": ("mlp.Wo",),
    },
    heads={},
    task_heads={
        "masked-lm": {"mlm.dense": "head.dense", "mlm.norm": "head.norm", "mlm.bias": "decoder.bias"},
        "spans": {**_HEAD, "qa_outputs": "classifier"},
        **dict.fromkeys(("classification", "regression", "multiple-choice", "tagging"), _CLASSIFIER),
    },
    bare_prefixes=("embeddings.", "layers.", "final_norm."),
)
