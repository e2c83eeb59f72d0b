"""BERT (Devlin et al. 2018)."""

from training.model.architectures.base import BERT_EMBEDDINGS, Architecture

ARCHITECTURE = Architecture(
    model_type="bert",
    class_prefix="Bert",
    prefix="bert.",
    supported={"position_embedding_type": ("absolute",), "add_cross_attention": (False,)},
    encoder=BERT_EMBEDDINGS,
    layers="encoder.layer.",
    heads={
        "bert.pooler": "bert.pooler.dense",
        "mlm.dense": "cls.predictions.transform.dense",
        "mlm.norm": "cls.predictions.transform.LayerNorm",
        "mlm.bias": "cls.predictions.bias",
        "nsp": "cls.seq_relationship",
        "classifier": "classifier",
        "qa_outputs": "qa_outputs",
    },
)
