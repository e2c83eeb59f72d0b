"""RoBERTa (Liu et al. 2019, arXiv 1907.11692) and the families that share its code: XLM-RoBERTa and CamemBERT.

Positions count the tokens that are not padding, from the row behind the padding token's. Sequences have no token types
in practice (`type_vocab_size` 1). The heads of classification contain the dense layer that BERT has as its pooler.
"""

from typing import Any

from training.model.architectures.base import BERT_EMBEDDINGS, DENSE_CLASSIFIER, Architecture, roberta_heads


def _architecture(model_type: str, class_prefix: str, **defaults: Any) -> Architecture:
    return Architecture(
        model_type=model_type,
        class_prefix=class_prefix,
        prefix="roberta.",
        defaults={"pad_token_id": 1, **defaults},
        fixed={"skips_padding_positions": True, "prediction_act": "gelu"},
        supported={"position_embedding_type": ("absolute",), "add_cross_attention": (False,)},
        encoder=BERT_EMBEDDINGS,
        layers="encoder.layer.",
        heads=roberta_heads("roberta."),
        task_heads={"classification": DENSE_CLASSIFIER, "regression": DENSE_CLASSIFIER},
    )


ROBERTA = _architecture("roberta", "Roberta", vocab_size=50265)
XLM_ROBERTA = _architecture("xlm-roberta", "XLMRoberta")
CAMEMBERT = _architecture("camembert", "Camembert")
