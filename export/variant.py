"""What may differ between graphs of one network: numbers, on which quality decides, and form, on which speed does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Products = Literal["fp32", "dynamic int8", "static int8", "balanced int8"]
"""Numbers of the products with weights. "dynamic": activations become integers by their range in the batch at hand;
"static": by one that was measured before, so that a text's numbers do not depend on what else is in its batch;
"balanced": static, after their channels were made more alike, see `export.balance`."""
Attention = Literal["products", "joint products", "MultiHeadAttention", "joint MultiHeadAttention", "Attention"]
"""Matrix products and a softmax, or an operator of ONNX Runtime's for them. "joint": query, key and value are one
product with the weights; `Attention` holds that product, too."""
WORD_EMBEDDINGS, DECODER = "bert.embeddings.word", "mlm.decoder"


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """What is computed."""

    products: Products = "fp32"
    fp32_layers: tuple[str, ...] = ()
    """Layers whose products stay in floats, by their names in `training.model.bert`; `bert.embeddings.word`, too, whose
    rows are of integers otherwise, as a quarter of the memory does."""

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.products}{f', {len(self.fp32_layers)} layers in fp32' if self.fp32_layers else ''}"

    @property
    def int8_embeddings(self) -> bool:
        """Whether the word embeddings are of integers; masked-lm's decoder is the same table."""
        return self.products != "fp32" and not {WORD_EMBEDDINGS, DECODER} & set(self.fp32_layers)


@dataclass(frozen=True, kw_only=True)
class Form:
    """How it is written down: all forms compute the same, but for the order of sums."""

    attention: Attention = "joint products"
    skip_layer_norm: bool = False
    """Residual and LayerNorm in one operator."""
    embed_layer_norm: bool = False
    """The sum of the embeddings and LayerNorm in one operator, where the word embeddings are floats."""
    bias_gelu: bool = False
    """The bias before Gelu is added in its operator, not by the product."""
    only_cls: bool = True
    """Compute of the last layer what [CLS] needs, where nothing else is read."""
