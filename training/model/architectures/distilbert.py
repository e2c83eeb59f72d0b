"""DistilBERT (Sanh et al. 2019, arXiv 1910.01108): BERT's layers without token types and pooler."""

from training.model.architectures.base import Architecture

ARCHITECTURE = Architecture(
    model_type="distilbert",
    class_prefix="DistilBert",
    prefix="distilbert.",
    config_keys={
        "hidden_size": "dim",
        "intermediate_size": "hidden_dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "hidden_act": "activation",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
    },
    defaults={"num_hidden_layers": 6},
    fixed={"type_vocab_size": 0, "layer_norm_eps": 1e-12, "pooler_act": "relu"},
    encoder={
        "bert.embeddings.word": "embeddings.word_embeddings",
        "bert.embeddings.position": "embeddings.position_embeddings",
        "bert.embeddings.norm": "embeddings.LayerNorm",
    },
    layers="transformer.layer.",
    layer={
        "qkv": ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
        "attention_output": ("attention.out_lin",),
        "attention_norm": ("sa_layer_norm",),
        "intermediate": ("ffn.lin1",),
        "output": ("ffn.lin2",),
        "output_norm": ("output_layer_norm",),
    },
    heads={
        "bert.pooler": "pre_classifier",
        "mlm.dense": "vocab_transform",
        "mlm.norm": "vocab_layer_norm",
        "mlm.bias": "vocab_projector.bias",
    },
    bare_prefixes=("embeddings.", "transformer."),
)
