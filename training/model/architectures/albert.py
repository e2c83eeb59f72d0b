"""ALBERT (Lan et al. 2019, arXiv 1909.11942): one layer that is applied several times, and small embeddings."""

from training.model.architectures.base import BERT_EMBEDDINGS, Architecture

ARCHITECTURE = Architecture(
    model_type="albert",
    class_prefix="Albert",
    prefix="albert.",
    defaults={
        "vocab_size": 30000,
        "embedding_size": 128,
        "hidden_size": 4096,
        "num_attention_heads": 64,
        "intermediate_size": 16384,
        "hidden_act": "gelu_new",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    },
    fixed={"shares_layers": True},
    supported={"position_embedding_type": ("absolute",), "num_hidden_groups": (1,), "inner_group_num": (1,)},
    encoder={
        **BERT_EMBEDDINGS,
        "bert.embeddings.projection": "encoder.embedding_hidden_mapping_in",
        "bert.pooler": "pooler",
    },
    layers="encoder.albert_layer_groups.0.albert_layers.",
    layer={
        "qkv": ("attention.query", "attention.key", "attention.value"),
        "attention_output": ("attention.dense",),
        "attention_norm": ("attention.LayerNorm",),
        "intermediate": ("ffn",),
        "output": ("ffn_output",),
        "output_norm": ("full_layer_layer_norm",),
    },
    heads={
        "mlm.dense": "predictions.dense",
        "mlm.norm": "predictions.LayerNorm",
        "mlm.bias": "predictions.bias",
    },
)
