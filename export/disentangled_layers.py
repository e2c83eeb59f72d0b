"""Layers of `training.model.disentangled_encoder` in a graph: BERT's, with scores that depend on relative positions.

The scores of positions are products of queries, and of keys, with tables of relative embeddings that `Weights` holds
already projected and scaled. The rows of a table are gathered in the order of distances once for each length L:

- A query i has its row for key j in column c = L - 1 - (i - j), so [L, 2 L] products hold the scores [L, L] in
  diagonals. In memory a diagonal is a line: without the first L - 1 numbers, and read as rows of 2 L - 1, the first L
  columns are the scores (the skewing of Huang et al. 2018, arXiv 1809.04281). Two copies replace an index for each
  score.
- The scores of keys are the same with distances in the opposite order, and transposed.
- [CLS] alone has the distances 0, -1, ... to the keys, which need no skewing.

Graph variants for BERT map to these layers as follows: MultiHeadAttention gets the scores of positions as its bias;
`Attention`, which has no bias for each batch, becomes `fused-QKV MultiHeadAttention`.
"""

from __future__ import annotations

from dataclasses import dataclass

from export.builder import CONTRIB
from export.network import RELATIVE_BUCKETS, relative_name
from export.writer import Writer
from training.model.disentangled_encoder import DisentangledConfig


@dataclass(frozen=True)
class Distances:
    """Names of values that all layers share."""

    key_rows: str
    """Rows of the table of keys for the columns of a query, [2 L]."""
    query_rows: str
    """Rows of the table of queries for the columns of a key, [2 L]."""
    cls_rows: str
    """Rows of both tables for the distances from [CLS] to each token, [L]."""
    length: str
    start: str
    end: str
    """Ends of the skewed scores in a flat [L, 2 L]."""
    shape: str
    """Shape [0, 0, L, -1] of the skewed scores."""


class DisentangledLayers:
    """Adds all layers to a graph; methods return the names of values."""

    def __init__(self, writer: Writer, config: DisentangledConfig) -> None:
        self.writer, self.config = writer, config
        self.graph, self.linear, self.variant = writer.graph, writer.linear, writer.variant
        self.has_bias = config.has_c2p or config.has_p2c
        self.distances = self.shared_distances() if self.has_bias else None

    def shared_distances(self) -> Distances:
        """Add the rows of each distance for the length of the batch."""
        add, ints, length = self.graph.add, self.graph.ints, self.writer.length()
        first, one, middle = ints(0), ints(1), ints(self.config.num_relative_rows // 2)
        buckets = add("Slice", self.writer.weight(RELATIVE_BUCKETS), first, length, first)
        falling = add("Slice", buckets, ints(-1), ints(-self.config.num_positions - 1), first, ints(-1))
        negative = add("Neg", add("Slice", buckets, one, length, first))
        columns = add("Concat", falling, negative, first, axis=0)  # L - 1 ... 1 - L, and one to fill the row
        last = ints(self.config.num_relative_rows - 1)
        width = add("Sub", add("Add", length, length), one)
        start = add("Sub", length, one)
        return Distances(
            key_rows=add("Min", add("Add", middle, columns), last),
            query_rows=add("Min", add("Sub", middle, columns), last),
            cls_rows=add("Sub", middle, buckets),
            length=length,
            start=start,
            end=add("Add", start, add("Mul", length, width)),
            shape=add("Concat", ints(0, 0), length, ints(-1), axis=0),
        )

    def apply(self, x: str) -> str:
        """Return the output of the last layer: [batch, length, hidden], or [batch, 1, hidden] for [CLS] alone."""
        if self.config.conv_kernel_size:
            mask = self.graph.add("Unsqueeze", self.graph.floats("attention_mask"), self.graph.ints(2))
            x = self.graph.add("Mul", x, mask)  # the convolution sees no padding
        last = self.config.num_hidden_layers - 1
        for number in range(self.config.num_hidden_layers):
            with self.graph.scope(f"layer.{number}"):
                x = self.layer(number, x, only_cls=number == last and self.writer.reads_only_cls)
        return x

    def layer(self, number: int, x: str, *, only_cls: bool) -> str:
        """Return the output of one layer: [batch, length, hidden], or [batch, 1, hidden] for [CLS] alone."""
        name = f"bert.layers.{number}"
        queries = self.writer.first_token(x) if only_cls else x
        with self.graph.scope("attention"):
            context = self.attention(name, queries, x)
        y = self.writer.after_attention(name, context, queries)
        if number or not self.config.conv_kernel_size:
            return y
        with self.graph.scope("convolution"):
            neighbours = self.convolution(f"{name}.convolution", x)
            neighbours = self.writer.first_token(neighbours) if only_cls else neighbours
            activated = self.writer.activation(self.config.conv_act, neighbours)
            return self.writer.add_and_norm(f"{name}.convolution.norm", activated, y)

    def convolution(self, name: str, x: str) -> str:
        """Return the convolution over neighbours, [batch, length, hidden]."""
        weights, bias = (self.writer.weight(f"{name}.{kind}") for kind in ("weight", "bias"))
        padding = (self.config.conv_kernel_size - 1) // 2
        y = self.graph.add("Transpose", x, perm=[0, 2, 1])
        y = self.graph.add("Conv", y, weights, bias, pads=[padding, padding], group=self.config.conv_groups)
        return self.graph.add("Transpose", y, perm=[0, 2, 1])

    def attention(self, name: str, queries: str, x: str) -> str:
        """Return the attended values [batch, queries, hidden]."""
        qkv, kind = f"{name}.qkv", self.variant.attention
        is_fused = queries == x and (kind.startswith("fused-QKV") or kind == "Attention")
        if kind.endswith("Attention"):
            fused = self.writer.split_last(self.linear.apply(qkv, x)) if is_fused else ()
            q, k, v = fused or self.writer.separate_qkv(qkv, queries, x)
            bias = self.bias(name, self.by_head(q), self.by_head(k), only_cls=queries != x) if self.has_bias else ""
            return self.graph.add(
                *("MultiHeadAttention", q, k, v, "", "attention_mask", bias),
                domain=CONTRIB,
                num_heads=self.config.num_attention_heads,
                scale=self.config.score_scale,
            )
        heads = self.fused_heads(qkv, x) if is_fused else map(self.by_head, self.writer.separate_qkv(qkv, queries, x))
        q, k, v = heads
        scores = self.product(q, k, self.config.score_scale)
        if self.has_bias:
            scores = self.graph.add("Add", scores, self.bias(name, q, k, only_cls=queries != x))
        weights = self.graph.add("Softmax", self.graph.add("Add", scores, self.writer.mask), axis=-1)
        context = self.graph.add("MatMul", weights, v)
        return self.writer.merge_heads(self.graph.add("Transpose", context, perm=[0, 2, 1, 3]))

    def by_head(self, x: str) -> str:
        """Return [batch, heads, length, size] from [batch, length, hidden]."""
        shape = self.graph.ints(0, 0, self.config.num_attention_heads, self.config.head_size)
        return self.graph.add("Transpose", self.graph.add("Reshape", x, shape), perm=[0, 2, 1, 3])

    def fused_heads(self, qkv: str, x: str) -> list[str]:
        """Return query, key and value from one matrix product, each [batch, heads, length, size]."""
        shape = self.graph.ints(0, 0, 3, self.config.num_attention_heads, self.config.head_size)
        parts = self.graph.add("Reshape", self.linear.apply(qkv, x), shape)
        parts = self.graph.add("Transpose", parts, perm=[2, 0, 3, 1, 4])
        split = self.graph.add_many("Split", parts, self.graph.ints(1, 1, 1), num_outputs=3, axis=0)
        return [self.graph.add("Squeeze", part, self.graph.ints(0)) for part in split]

    def product(self, x: str, y: str, scale: float = 1.0, *, axes: int = 4) -> str:
        """Return scale * x y^T over the last two axes.

        Args:
            axes: number of axes of y.
        """
        if not self.variant.standard:
            return self.graph.add("FusedMatMul", x, y, domain=CONTRIB, transB=1, alpha=scale)
        order = list(range(axes))
        y = self.graph.add("Transpose", y, perm=[*order[:-2], order[-1], order[-2]])
        x = x if scale == 1 else self.graph.add("Mul", x, self.graph.constant(scale))
        return self.graph.add("MatMul", x, y)

    def bias(self, name: str, q: str, k: str, *, only_cls: bool) -> str:
        """Return the scores of positions, [batch, heads, queries, keys]; queries and keys have one head an axis."""
        terms = [term for part in ("keys", "queries") if (term := self.term(name, part, q, k, only_cls=only_cls))]
        return self.graph.add("Add", *terms) if len(terms) > 1 else terms[0]

    def term(self, name: str, part: str, q: str, k: str, *, only_cls: bool) -> str:
        """Return the products of queries with the table of keys, or of keys with that of queries; "" if it is off."""
        table = relative_name(name, part)
        if table not in self.writer.weights:
            return ""
        assert self.distances is not None
        is_c2p = part == "keys"
        rows = self.distances.key_rows if is_c2p else self.distances.query_rows
        found = self.writer.weight(table)
        found = self.graph.add("Gather", found, self.distances.cls_rows if only_cls else rows, axis=1)
        if only_cls and not is_c2p:  # one key a row: [batch, heads, keys, size] times [heads, keys, size]
            sums = self.graph.add("ReduceSum", self.graph.add("Mul", k, found), self.graph.ints(3), keepdims=0)
            return self.graph.add("Unsqueeze", sums, self.graph.ints(2))
        scores = self.product(q if is_c2p else k, found, axes=3)
        if only_cls:
            return scores
        scores = self.skew(scores, self.distances)
        return scores if is_c2p else self.graph.add("Transpose", scores, perm=[0, 1, 3, 2])

    def skew(self, scores: str, distances: Distances) -> str:
        """Return [..., L, L] from the scores of all distances, [..., L, 2 L]."""
        flat = self.graph.add("Reshape", scores, self.graph.ints(0, 0, -1))
        flat = self.graph.add("Slice", flat, distances.start, distances.end, self.graph.ints(2))
        rows = self.graph.add("Reshape", flat, distances.shape)
        return self.graph.add("Slice", rows, self.graph.ints(0), distances.length, self.graph.ints(3))
