"""Layers with rotary positions and gated feed-forward networks in a graph.

`PreNormLayers` are those of `training.model.modernbert_encoder`, and `PostNormLayers` those of
`training.model.nomic_encoder`. Graph variants for BERT map to these layers as follows:

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
from training.model.rotary import RotaryConfig


class RotaryLayers:
    """Attention and feed-forward networks of all layers; methods return the names of values."""

    window = local_mask = ""
    """Bias of local attention on scores; the same with the mask of padding."""

    def __init__(self, writer: Writer, config: RotaryConfig) -> None:
        self.writer, self.config = writer, config
        self.graph, self.linear, self.variant = writer.graph, writer.linear, writer.variant

    def attention(self, qkv: str, queries: str, x: str, *, local: bool = False) -> str:
        """Return the attended values [batch, queries, hidden]."""
        all_tokens = queries == x
        kind = self.variant.attention
        if all_tokens and (kind.startswith("fused-QKV") or kind == "Attention"):
            q, k, v = self.writer.split_last(self.linear.apply(qkv, x))
        else:
            q, k, v = self.writer.separate_qkv(qkv, queries, x)
        k = self.rotate(k, local=local)
        q = self.rotate(q, local=local) if all_tokens else q  # [CLS] stands at position 0, which is not rotated
        if kind.endswith("Attention"):
            bias = [self.of_queries(self.window, all_tokens=all_tokens)] if local else []
            return self.graph.add(
                *("MultiHeadAttention", q, k, v, "", "attention_mask", *bias),
                domain=CONTRIB,
                num_heads=self.config.num_attention_heads,
            )
        mask = self.of_queries(self.local_mask, all_tokens=all_tokens) if local else self.writer.mask
        q, k, v = self.by_head(q, 0, 2, 1, 3), self.by_head(k, 0, 2, 3, 1), self.by_head(v, 0, 2, 1, 3)
        context = self.writer.attend(q, k, v, mask)
        return self.writer.merge_heads(self.graph.add("Transpose", context, perm=[0, 2, 1, 3]))

    def by_head(self, x: str, *order: int) -> str:
        """Split [batch, length, hidden] into [batch, length, heads, size], and transpose."""
        shape = self.graph.ints(0, 0, self.config.num_attention_heads, self.config.head_size)
        x = self.graph.add("Reshape", x, shape)
        return self.graph.add("Transpose", x, perm=order) if order else x

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
        return self.writer.merge_heads(self.graph.add("Concat", first, second, axis=-1))

    def tables(self, *, local: bool) -> tuple[str, str, str]:
        """Return the row of the first position, and the cosines and sines of all positions."""
        names = [rotary_name(part, local=local) for part in ("cos", "sin")]
        cos, sin = (self.graph.weight(name, self.writer.weights[name]) for name in names)
        return self.graph.ints(0), cos, sin

    def of_positions(self, table: str) -> str:
        """Return the rows of a table for the positions of the batch, [length, 1, columns]."""
        start = self.graph.ints(0)
        rows = self.graph.add("Slice", table, start, self.writer.length(), start)
        return self.graph.add("Unsqueeze", rows, self.graph.ints(1))

    def of_queries(self, bias: str, *, all_tokens: bool) -> str:
        """Return the rows of a bias [..., queries, keys] for all tokens, or for [CLS] alone."""
        if all_tokens:
            return bias
        return self.graph.add("Slice", bias, self.graph.ints(0), self.graph.ints(1), self.graph.ints(2))

    def gated(self, name: str, x: str) -> str:
        """Return activation(x W) * x V, where W and V are the halves of a layer."""
        size = self.config.intermediate_size
        gate = self.writer.activation(self.config.hidden_act, self.linear.apply(name, x, slice(0, size)))
        return self.graph.add("Mul", gate, self.linear.apply(name, x, slice(size, 2 * size)))


class PreNormLayers(RotaryLayers):
    """Adds ModernBERT's layers to a graph.

    LayerNorm stands before each block, so two values run through the layers: the residual stream, and the same
    normalised, which the next block reads. SkipLayerNormalization gives both.
    """

    config: ModernBertConfig

    def __init__(self, writer: Writer, config: ModernBertConfig) -> None:
        super().__init__(writer, config)
        self.window = self.window_bias()
        self.local_mask = self.graph.add("Add", writer.mask, self.window)

    def apply(self, x: str) -> str:
        """Return the output of the last layer, normalised: [batch, length, hidden], or [batch, 1, hidden] for [CLS]."""
        normed, last = x, self.config.num_hidden_layers - 1
        for number in range(self.config.num_hidden_layers):
            with self.graph.scope(f"layer.{number}"):
                x, normed = self.layer(number, x, normed, only_cls=number == last and self.writer.reads_only_cls)
        return normed

    def layer(self, number: int, x: str, normed: str, *, only_cls: bool) -> tuple[str, str]:
        """Return the residual stream after one layer, and the same normalised for the next."""
        name, is_last = f"bert.layers.{number}", number == self.config.num_hidden_layers - 1
        with self.graph.scope("attention"):
            queries = self.writer.first_token(normed) if only_cls else normed
            context = self.attention(f"{name}.qkv", queries, normed, local=self.config.is_local(number))
            y = self.linear.apply(f"{name}.attention_output", context)
            x = self.writer.first_token(x) if only_cls else x
            x, normed = self.add_and_norm(f"{name}.feed_forward_norm", y, x)
        with self.graph.scope("feed_forward"):
            y = self.linear.apply(f"{name}.output", self.gated(f"{name}.intermediate", normed))
            next_norm = "bert.final_norm" if is_last else f"bert.layers.{number + 1}.attention_norm"
            return self.add_and_norm(next_norm, y, x)

    def window_bias(self) -> str:
        """Return what local attention adds to scores, [1, 1, length, length]: a large negative number outside."""
        length = self.graph.add("Squeeze", self.writer.length())
        places = self.graph.add("Range", *(self.graph.constant(0, np.int64), length, self.graph.constant(1, np.int64)))
        rows, columns = (self.graph.add("Unsqueeze", places, self.graph.ints(axis)) for axis in (1, 0))
        distances = self.graph.add("Abs", self.graph.add("Sub", columns, rows))
        is_far = self.graph.add("Greater", distances, self.graph.constant(self.config.local_attention // 2, np.int64))
        bias = self.graph.add("Mul", self.graph.floats(is_far), self.graph.constant(MASKED[self.graph.dtype]))
        return self.graph.add("Unsqueeze", bias, self.graph.ints(0, 1))

    def add_and_norm(self, norm: str, x: str, residual: str) -> tuple[str, str]:
        """Return the sum and the normalised sum."""
        if self.variant.skip_layer_norm:
            normed, _, _, total = self.graph.add_many(
                *("SkipLayerNormalization", x, residual, *self.writer.norm_weights(norm)),
                num_outputs=4,
                unused=(1, 2),
                domain=CONTRIB,
                epsilon=self.config.layer_norm_eps,
            )
            return total, normed
        total = self.graph.add("Add", x, residual)
        return total, self.writer.layer_norm(norm, total)


class PostNormLayers(RotaryLayers):
    """Adds the layers of Nomic BERT to a graph.

    If angles depend on the length of the text, the table in the graph has one row of frequencies for each length, and
    cosines and sines are computed once for all layers.
    """

    config: NomicBertConfig

    def __init__(self, writer: Writer, config: NomicBertConfig) -> None:
        super().__init__(writer, config)
        self.scaled = self.scaled_tables() if config.scales_positions else None

    def apply(self, x: str) -> str:
        """Return the output of the last layer: [batch, length, hidden], or [batch, 1, hidden] for [CLS] alone."""
        last = self.config.num_hidden_layers - 1
        for number in range(self.config.num_hidden_layers):
            with self.graph.scope(f"layer.{number}"):
                only_cls = number == last and self.writer.reads_only_cls
                x = self.layer(f"bert.layers.{number}", x, only_cls=only_cls)
        return x

    def layer(self, name: str, x: str, *, only_cls: bool) -> str:
        """Return the output of one layer."""
        queries = self.writer.first_token(x) if only_cls else x
        with self.graph.scope("attention"):
            y = self.linear.apply(f"{name}.attention_output", self.attention(f"{name}.qkv", queries, x))
            x = self.writer.add_and_norm(f"{name}.attention_norm", y, queries)
        with self.graph.scope("feed_forward"):
            y = self.linear.apply(f"{name}.output", self.gated(f"{name}.intermediate", x))
            return self.writer.add_and_norm(f"{name}.output_norm", y, x)

    def tables(self, *, local: bool) -> tuple[str, str, str]:
        """Return those that were computed from the lengths of the texts, if there are such."""
        return self.scaled or super().tables(local=local)

    def of_positions(self, table: str) -> str:
        """Return the rows of a table for the positions of the batch; computed tables are these already."""
        return table if self.scaled else super().of_positions(table)

    def scaled_tables(self) -> tuple[str, str, str]:
        """Return the rows of all tokens [batch, length], and cosines and sines by the length of each text.

        The latter have one row for each token of the batch; in standard operators they are [batch, length, 1, columns].
        """
        zero, one = self.graph.constant(0, np.int64), self.graph.constant(1, np.int64)
        length = self.graph.add("Squeeze", self.writer.length())
        places = self.graph.add("Range", zero, length, one)
        places = self.graph.add("Cast", self.graph.add("Unsqueeze", places, self.graph.ints(1)), to=TensorProto.FLOAT)
        angles = self.graph.add("Mul", self.graph.add("Unsqueeze", self.frequencies(), self.graph.ints(1)), places)
        tables = [self.graph.add(function, angles) for function in ("Cos", "Sin")]
        if self.graph.dtype != np.float32:
            tables = [self.graph.floats(table) for table in tables]
        if self.variant.standard:
            cos, sin = (self.graph.add("Unsqueeze", table, self.graph.ints(2)) for table in tables)
            return "", cos, sin
        cos, sin = (
            self.graph.add("Reshape", table, self.graph.ints(-1, self.config.head_size // 2)) for table in tables
        )
        rows = self.graph.add("Range", zero, self.graph.add("Size", "input_ids"), one)
        return self.graph.add("Reshape", rows, self.graph.add("Shape", "input_ids")), cos, sin

    def frequencies(self) -> str:
        """Return the frequencies of each text, [batch, columns] float32, by its number of tokens."""
        name = rotary_name("frequencies")
        table = self.graph.weight(name, self.writer.weights[name], as_float32=True)
        mask = self.graph.add("Cast", "attention_mask", to=TensorProto.INT64)
        lengths = self.graph.add("ReduceSum", mask, self.graph.ints(1), keepdims=0)
        return self.graph.add("Gather", table, self.graph.add("Sub", lengths, self.graph.constant(1, np.int64)))
