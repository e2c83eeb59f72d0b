"""ELECTRA (Clark et al. 2020, arXiv 2003.10555): BERT with smaller embeddings, and GELU in its heads.

The encoder is the discriminator. A generator has the head of masked-lm.
"""

from training.model.architectures.base import BERT_EMBEDDINGS, DENSE_CLASSIFIER, Architecture

ARCHITECTURE = Architecture(
    model_type="electra",
    class_prefix="Electra",
    prefix="electra.",
    defaults={"embedding_size": 128, "hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 4},
    fixed={"pooler_act": "gelu", "prediction_act": "gelu"},
    supported={
        "position_embedding_type": ("absolute",),
        "add_cross_attention": (False,),
        "summary_type": ("first",),
        "summary_use_proj": (True,),
        "summary_activation": ("gelu",),
    },
    encoder={**BERT_EMBEDDINGS, "bert.embeddings.projection": "embeddings_project"},
    layers="encoder.layer.",
    heads={
        "mlm.dense": "generator_predictions.dense",
        "mlm.norm": "generator_predictions.LayerNorm",
        "mlm.bias": "generator_lm_head.bias",
    },
    task_heads={
        "classification": DENSE_CLASSIFIER,
        "regression": DENSE_CLASSIFIER,
        "multiple-choice": {"bert.pooler": "sequence_summary.summary"},
    },
    bare_prefixes=("embeddings.", "embeddings_project.", "encoder."),
)
