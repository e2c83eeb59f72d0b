"""DeBERTa v2 and v3, mDeBERTa (He et al. 2020, arXiv 2006.03654; 2021, arXiv 2111.09543): disentangled attention.

Checkpoints of v3 hold the head of their generator, `lm_predictions`, and that of replaced-token detection,
`mask_predictions`. transformers reads the former if `legacy` is false in `config.json`, and never the latter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from training.model.architectures.base import BERT_EMBEDDINGS, BERT_HEADS, BERT_LAYER, Architecture, shown
from training.model.config import EncoderConfig
from training.model.disentangled_encoder import DisentangledConfig


class _DebertaV2(Architecture):
    def _read(self, values: Mapping[str, Any]) -> EncoderConfig:
        heads = values.get("num_attention_heads", self.defaults["num_attention_heads"])
        hidden = values.get("hidden_size", self.defaults["hidden_size"])
        if isinstance(heads, int) and isinstance(hidden, int) and heads > 0:  # other values are refused below
            for key, only in (("attention_head_size", hidden // heads), ("pooler_hidden_size", hidden)):
                if values.get(key, only) not in (only, None):
                    raise ValueError(f"{key} {shown(values[key])} is not supported (only {shown(only)})")
        found = {**values, "pos_att_type": _joined(values.get("pos_att_type") or "", "pos_att_type")}
        if isinstance(norm := values.get("norm_rel_ebd"), str):
            found["norm_rel_ebd"] = _joined(norm, "norm_rel_ebd") or "none"
        if found.get("position_biased_input", True) is None:  # transformers reads null as false
            found["position_biased_input"] = False
        return super()._read(found)

    def write_config(self, config: EncoderConfig) -> dict[str, Any]:
        values = super().write_config(config) | {"pooler_hidden_act": config.pooler_act}
        values["pos_att_type"] = list(filter(None, values["pos_att_type"].split("|")))
        # otherwise transformers ties a wrong layer of `lm_predictions` to the word embeddings
        return values if values["legacy"] else {**values, "tie_word_embeddings": False}

    def ties_word_embeddings(self, values: Mapping[str, Any]) -> bool:
        return values.get("legacy") is False or super().ties_word_embeddings(values)

    def for_config(self, values: Mapping[str, Any]) -> Architecture:
        if values.get("legacy") is not False:
            return self
        return replace(self, heads={**self.heads, **_HEAD_WITHOUT_LEGACY})


def _joined(given: Any, key: str) -> str:
    """Return names, a list or text divided by `|`, sorted and joined by `|`."""
    parts = given.lower().split("|") if isinstance(given, str) else given
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise ValueError(f"{key} must be text or a list of texts: {shown(given)}")
    return "|".join(sorted({part.strip() for part in parts} - {"", "none"}))


_HEAD_WITHOUT_LEGACY = {
    "mlm.dense": "lm_predictions.lm_head.dense",
    "mlm.norm": "lm_predictions.lm_head.LayerNorm",
    "mlm.bias": "lm_predictions.lm_head.bias",
}
"""Head of masked LM if `legacy` is false."""

ARCHITECTURE = _DebertaV2(
    model_type="deberta-v2",
    class_prefix="DebertaV2",
    prefix="deberta.",
    config_type=DisentangledConfig,
    config_keys={"pooler_act": "pooler_hidden_act"},
    defaults={
        "vocab_size": 128100,
        "hidden_size": 1536,
        "num_hidden_layers": 24,
        "num_attention_heads": 24,
        "intermediate_size": 6144,
        "layer_norm_eps": 1e-7,
        "embedding_size": 0,
        "pooler_act": "gelu",
    },
    encoder={
        **BERT_EMBEDDINGS,
        "bert.embeddings.projection": "embeddings.embed_proj",
        "bert.embeddings.relative": "encoder.rel_embeddings",
        "bert.embeddings.relative_norm": "encoder.LayerNorm",
        "bert.layers.0.convolution": "encoder.conv.conv",
        "bert.layers.0.convolution.norm": "encoder.conv.LayerNorm",
    },
    layers="encoder.layer.",
    layer={
        **BERT_LAYER,
        "qkv": ("attention.self.query_proj", "attention.self.key_proj", "attention.self.value_proj"),
        "position_key": ("attention.self.pos_key_proj",),
        "position_query": ("attention.self.pos_query_proj",),
    },
    heads=BERT_HEADS,
    task_heads={key: {"bert.pooler": "pooler.dense"} for key in ("classification", "regression", "multiple-choice")},
    bare_prefixes=("embeddings.", "encoder."),
)
