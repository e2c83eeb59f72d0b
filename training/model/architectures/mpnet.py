"""MPNet (Song et al. 2020, arXiv 2004.09297): RoBERTa's positions and heads, with a relative position bias."""

from training.model.architectures.base import DENSE_CLASSIFIER, Architecture, roberta_heads

ARCHITECTURE = Architecture(
    model_type="mpnet",
    class_prefix="MPNet",
    prefix="mpnet.",
    defaults={"vocab_size": 30527, "relative_attention_num_buckets": 32},
    # positions in transformers count from 2 and skip id 1, regardless of pad_token_id
    fixed={"type_vocab_size": 0, "skips_padding_positions": True, "pad_token_id": 1, "prediction_act": "gelu"},
    supported={"relative_attention_num_buckets": (32,)},  # transformers computes 32, regardless of the config
    encoder={
        "bert.embeddings.word": "embeddings.word_embeddings",
        "bert.embeddings.position": "embeddings.position_embeddings",
        "bert.embeddings.norm": "embeddings.LayerNorm",
        "bert.relative_bias": "encoder.relative_attention_bias",
    },
    layers="encoder.layer.",
    layer={
        "qkv": ("attention.attn.q", "attention.attn.k", "attention.attn.v"),
        "attention_output": ("attention.attn.o",),
        "attention_norm": ("attention.LayerNorm",),
        "intermediate": ("intermediate.dense",),
        "output": ("output.dense",),
        "output_norm": ("output.LayerNorm",),
    },
    heads=roberta_heads("mpnet."),
    task_heads={"classification": DENSE_CLASSIFIER, "regression": DENSE_CLASSIFIER},
)
