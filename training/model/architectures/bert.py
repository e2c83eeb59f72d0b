"""BERT (Devlin et al. 2018)."""

from training.model.architectures.base import BERT_EMBEDDINGS, BERT_HEADS, Architecture

ARCHITECTURE = Architecture(
    model_type="bert",
    class_prefix="Bert",
    prefix="bert.",
    supported={"position_embedding_type": ("absolute",), "add_cross_attention": (False,)},
    encoder=BERT_EMBEDDINGS,
    layers="encoder.layer.",
    heads={"bert.pooler": "bert.pooler.dense", **BERT_HEADS, "nsp": "cls.seq_relationship"},
)
