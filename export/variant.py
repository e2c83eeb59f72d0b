"""What may differ between graphs of one network: numbers, on which quality decides, and form, on which speed does."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

Products = Literal["fp32", "fp16", "dynamic int8", "static int8", "balanced int8"]
"""Numbers of the products with weights. "fp16": also of all that is between them. "dynamic": activations become
integers by their range in the batch at hand; "static": by one that was measured before, so that a text's numbers do not
depend on what else is in its batch; "balanced": static, after their channels were made more alike, see
`export.smoothquant`."""
Attention = Literal["products", "joint products", "MultiHeadAttention", "joint MultiHeadAttention", "Attention"]
"""Matrix products and a softmax, or an operator of ONNX Runtime's for them. "joint": query, key and value are one
product with the weights; `Attention` holds that product, too."""
WORD_EMBEDDINGS, DECODER = "bert.embeddings.word", "mlm.decoder"


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """What is computed."""

    products: Products = "fp32"
    fp32_layers: tuple[str, ...] = ()
    """Layers whose products stay in floats, by their names in `training.model.encoder`; `bert.embeddings.word`, too,
    whose rows are of integers otherwise, as a quarter of the memory does."""

    @property
    def in_integers(self) -> bool:
        """Whether products with weights are of integers."""
        return self.products.endswith("int8")

    @property
    def dtype(self) -> Any:
        """Of floats between embeddings and head."""
        return np.float16 if self.products == "fp16" else np.float32

    @property
    def name(self) -> str:
        """For people."""
        if not self.fp32_layers:
            return self.products
        return f"{self.products}, {len(self.fp32_layers)} part{'s' * (len(self.fp32_layers) > 1)} in fp32"

    @property
    def int8_embeddings(self) -> bool:
        """Whether the word embeddings are of integers; masked-lm's decoder is the same table."""
        return self.in_integers and not {WORD_EMBEDDINGS, DECODER} & set(self.fp32_layers)


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
    standard: bool = False
    """With ONNX's own operators alone, for providers that know no others."""

    def __post_init__(self) -> None:
        fused = self.skip_layer_norm or self.embed_layer_norm or self.bias_gelu
        assert not (self.standard and (fused or self.attention.endswith("Attention"))), self

    def changed(self, name: str, value: Any) -> Form:
        """With another value of a field; where ONNX has no such operator, the form is standard no longer."""
        if name == "standard" and value:
            return self.as_standard()
        is_fused = name != "standard" and (value is True or str(value).endswith("Attention"))
        return replace(self, **{name: value} | ({"standard": False} if is_fused else {}))

    def as_standard(self) -> Form:
        """The nearest form of ONNX's own operators."""
        attention: Attention = "joint products" if self.attention.endswith("Attention") else self.attention
        return replace(
            self, attention=attention, skip_layer_norm=False, embed_layer_norm=False, bias_gelu=False, standard=True
        )
