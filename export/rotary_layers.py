"""Graph writers of families with rotary positions and gated feed-forward networks.

`PreNormWriter` is for `training.model.modernbert_encoder`, and `PostNormWriter` for `training.model.nomic_encoder`.
Graph variants for BERT map to these layers as follows:

- MultiHeadAttention gets rotated queries and keys; `Attention`, which contains the product for query, key and value,
  becomes `fused-QKV MultiHeadAttention`.
- Gate and value of the feed-forward network are two matrix products, as this saves a copy; their activation function
  stands alone.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from export.builder import CONTRIB
from export.network import MASKED, rotary_name
from export.writer import Writer
from training.model.modernbert_encoder import ModernBertConfig
from training.model.nomic_encoder import NomicBertConfig


class RotaryWriter(Writer):
    """Attention with rotary positions, and gated feed-forward networks."""

    window = local_mask = ""
    """Bias of local attention on scores; the same with the mask of padding."""

    def attention(self, name: str, queries: str, x: str, *, local: bool = False) -> str:
        """Return the attended values [batch, queries, hidden] of a layer."""
        qkv, all_tokens, kind = f"{name}.qkv", queries == x, self.variant.attention
        if all_tokens and (kind.startswith("fused-QKV") or kind == "Attention"):
            q, k, v = self.split_last(qkv, x)
        else:
            q, k, v = self.separate_qkv(qkv, queries, x)
        k = self.rotate(k, local=local)
        q = self.rotate(q, local=local) if all_tokens else q  # [CLS] stands at position 0, which is not rotated
        slices = local and not all_tokens
        if kind.endswith("Attention"):
            bias = self.of_cls(self.window) if slices else self.window
            return self.multi_head_attention(q, k, v, *[bias] * local)
        mask = self.local_mask if local else self.mask
        return self.attention_by_head(q, k, v, self.of_cls(mask) if slices else mask)

    def rotate(self, x: str, *, local: bool) -> str:
        """Rotate queries or keys [batch, length, hidden] by their positions."""
        positions, cos, sin = self.tables(local=local)
        if not self.variant.standard:
            return self.graph.add("RotaryEmbedding", x, positions, cos, sin, domain=CONTRIB)
        cos, sin = self.of_positions(cos), self.of_positions(sin)
        half = self.config.head_size // 2
        halves = self.graph.ints(half, half)
        one, two = self.graph.add_many("Split", self.by_head(x), halves, num_outputs=2, axis=-1)
        first = self.graph.add("Sub", self.graph.add("Mul", one, cos), self.graph.add("Mul", two, sin))
        second = self.graph.add("Add", self.graph.add("Mul", two, cos), self.graph.add("Mul", one, sin))
        return self.merge_heads(self.graph.add("Concat", first, second, axis=-1))

    def tables(self, *, local: bool) -> tuple[str, str, str]:
        """Return the row of the first position, and the cosines and sines of all positions."""
        cos, sin = (self.weight(rotary_name(part, local=local)) for part in ("cos", "sin"))
        return self.graph.ints(0), cos, sin

    def of_positions(self, table: str) -> str:
        """Return the rows of a table for the positions of the batch, [length, 1, columns]."""
        start = self.graph.ints(0)
        rows = self.graph.add("Slice", table, start, self.length(), start)
        return self.graph.add("Unsqueeze", rows, self.graph.ints(1))

    def feed_forward(self, name: str, x: str) -> str:
        """Return activation(x W) * x V, where W and V are the halves of a layer."""
        size = self.config.intermediate_size
        gate = self.activation(self.config.hidden_act, self.linear.apply(name, x, slice(0, size)))
        return self.graph.add("Mul", gate, self.linear.apply(name, x, slice(size, 2 * size)))


class PreNormWriter(RotaryWriter):
    """Writes ModernBERT's layers.

    LayerNorm stands before each block, so two values run through the layers: the residual stream, and the same
    normalised, which the next block reads. SkipLayerNormalization gives both.
    """

    config: ModernBertConfig

    def add_shared_values(self) -> None:
        """Add the masks; local attention adds a large negative number to scores outside its window."""
        super().add_shared_values()
        distances = self.graph.add("Abs", self.distances())
        is_far = self.graph.add("Greater", distances, self.graph.constant(self.config.local_attention // 2, np.int64))
        bias = self.graph.add("Mul", self.graph.floats(is_far), self.graph.constant(MASKED[self.graph.dtype]))
        self.window = self.graph.add("Unsqueeze", bias, self.graph.ints(0, 1))  # [1, 1, length, length]
        self.local_mask = self.graph.add("Add", self.mask, self.window)

    def layers(self, x: str) -> str:
        """Return the output of the last layer, normalised: [batch, length, hidden], or [batch, 1, hidden] for [CLS]."""
        normed, last = x, self.config.num_hidden_layers - 1
        for number in range(self.config.num_hidden_layers):
            name, only_cls = f"bert.layers.{number}", self.needs_only_cls(number)
            next_norm = "bert.final_norm" if number == last else f"bert.layers.{number + 1}.attention_norm"
            with self.graph.scope(f"layer.{number}", "attention"):
                queries = self.first_token(normed) if only_cls else normed
                context = self.attention(name, queries, normed, local=self.config.is_local(number))
                y = self.linear.apply(f"{name}.attention_output", context)
                x = self.first_token(x) if only_cls else x
                x, normed = self.sum_and_norm(f"{name}.feed_forward_norm", y, x)
            with self.graph.scope(f"layer.{number}", "feed_forward"):
                y = self.linear.apply(f"{name}.output", self.feed_forward(f"{name}.intermediate", normed))
                x, normed = self.sum_and_norm(next_norm, y, x)
        return normed

    def sum_and_norm(self, norm: str, x: str, residual: str) -> tuple[str, str]:
        """Return the sum and the normalised sum."""
        if self.variant.skip_layer_norm:
            normed, _, _, total = self.graph.add_many(
                *("SkipLayerNormalization", x, residual, *self.norm_weights(norm)),
                num_outputs=4,
                unused=(1, 2),
                domain=CONTRIB,
                epsilon=self.config.layer_norm_eps,
            )
            return total, normed
        total = self.graph.add("Add", x, residual)
        return total, self.layer_norm(norm, total)


class PostNormWriter(RotaryWriter):
    """Writes the layers of Nomic BERT.

    If angles depend on the length of the text, the table in the graph has one row of frequencies for each length, and
    cosines and sines are computed once for all layers.
    """

    config: NomicBertConfig
    scaled: tuple[str, str, str] | None = None
    """Rows of all tokens [batch, length], and cosines and sines by the length of each text.

    The latter have one row for each token of the batch; in standard operators they are [batch, length, 1, columns].
    """

    def add_shared_values(self) -> None:
        """Add the mask, and the angles that depend on the lengths of the texts."""
        super().add_shared_values()
        if self.config.scales_positions:
            self.scaled = self.scaled_tables()

    def tables(self, *, local: bool) -> tuple[str, str, str]:
        """Return those that were computed from the lengths of the texts, if there are such."""
        return self.scaled or super().tables(local=local)

    def of_positions(self, table: str) -> str:
        """Return the rows of a table for the positions of the batch; computed tables are these already."""
        return table if self.scaled else super().of_positions(table)

    def scaled_tables(self) -> tuple[str, str, str]:
        """Return `scaled`."""
        places = self.graph.add("Unsqueeze", self.positions_from(0), self.graph.ints(1))
        places = self.graph.add("Cast", places, to=TensorProto.FLOAT)
        angles = self.graph.add("Mul", self.graph.add("Unsqueeze", self.frequencies(), self.graph.ints(1)), places)
        tables = [self.graph.add(function, angles) for function in ("Cos", "Sin")]
        if self.graph.dtype != np.float32:
            tables = [self.graph.floats(table) for table in tables]
        if self.variant.standard:
            cos, sin = (self.graph.add("Unsqueeze", table, self.graph.ints(2)) for table in tables)
            return "", cos, sin
        shape = self.graph.ints(-1, self.config.head_size // 2)
        cos, sin = (self.graph.add("Reshape", table, shape) for table in tables)
        zero, one = self.graph.constant(0, np.int64), self.graph.constant(1, np.int64)
        rows = self.graph.add("Range", zero, self.graph.add("Size", "input_ids"), one)
        return self.graph.add("Reshape", rows, self.graph.add("Shape", "input_ids")), cos, sin

    def frequencies(self) -> str:
        """Return the frequencies of each text, [batch, columns] float32, by its number of tokens."""
        name = rotary_name("frequencies")
        table = self.graph.weight(name, self.weights[name], as_float32=True)
        mask = self.graph.add("Cast", "attention_mask", to=TensorProto.INT64)
        lengths = self.graph.add("ReduceSum", mask, self.graph.ints(1), keepdims=0)
        return self.graph.add("Gather", table, self.graph.add("Sub", lengths, self.graph.constant(1, np.int64)))
