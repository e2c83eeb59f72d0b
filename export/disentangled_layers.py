"""Graph writer of `training.model.disentangled_encoder`: BERT's layers, with scores that depend on relative positions.

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

from export.network import RELATIVE_BUCKETS, relative_name
from export.writer import Writer
from training.model.disentangled_encoder import DisentangledConfig


class DisentangledWriter(Writer):
    """Writes DeBERTa's layers."""

    config: DisentangledConfig

    key_rows: str
    """Rows of the table of keys for the columns of a query, [2 L]."""
    query_rows: str
    """Rows of the table of queries for the columns of a key, [2 L]."""
    cls_rows: str
    """Rows of both tables for the distances from [CLS] to each token, [L]."""
    num_tokens: str
    start: str
    end: str
    """Ends of the skewed scores in a flat [L, 2 L]."""
    shape: str
    """Shape [0, 0, L, -1] of the skewed scores."""

    @property
    def has_bias(self) -> bool:
        """True if scores depend on relative positions."""
        return self.config.has_c2p or self.config.has_p2c

    @property
    def scale(self) -> float:
        """Factor of the attention scores."""
        return self.config.score_scale

    def add_shared_values(self) -> None:
        """Add the mask, and the rows of each distance for the length of the batch."""
        super().add_shared_values()
        if not self.has_bias:
            return
        add, ints, length = self.graph.add, self.graph.ints, self.length()
        first, one, middle = ints(0), ints(1), ints(self.config.num_relative_rows // 2)
        buckets = add("Slice", self.weight(RELATIVE_BUCKETS), first, length, first)
        falling = add("Slice", buckets, ints(-1), ints(-self.config.num_positions - 1), first, ints(-1))
        negative = add("Neg", add("Slice", buckets, one, length, first))
        columns = add("Concat", falling, negative, first, axis=0)  # L - 1 ... 1 - L, and one to fill the row
        last = ints(self.config.num_relative_rows - 1)
        width = add("Sub", add("Add", length, length), one)
        self.num_tokens, self.start = length, add("Sub", length, one)
        self.key_rows = add("Min", add("Add", middle, columns), last)
        self.query_rows = add("Min", add("Sub", middle, columns), last)
        self.cls_rows = add("Sub", middle, buckets)
        self.end = add("Add", self.start, add("Mul", length, width))
        self.shape = add("Concat", ints(0, 0), length, ints(-1), axis=0)

    def layers(self, x: str) -> str:
        """Return the output of the last layer: [batch, length, hidden], or [batch, 1, hidden] for [CLS] alone."""
        if self.config.conv_kernel_size:
            mask = self.graph.add("Unsqueeze", self.graph.floats("attention_mask"), self.graph.ints(2))
            x = self.graph.add("Mul", x, mask)  # the convolution sees no padding
        return super().layers(x)

    def layer(self, number: int, x: str, *, only_cls: bool) -> str:
        """Return the output of one layer; that of the first may have a convolution over neighbours."""
        y = super().layer(number, x, only_cls=only_cls)
        if number or not self.config.conv_kernel_size:
            return y
        name, padding = f"bert.layers.{number}.convolution", (self.config.conv_kernel_size - 1) // 2
        with self.graph.scope("convolution"):
            weights, bias = (self.weight(f"{name}.{kind}") for kind in ("weight", "bias"))
            z = self.graph.add("Transpose", x, perm=[0, 2, 1])
            z = self.graph.add("Conv", z, weights, bias, pads=[padding, padding], group=self.config.conv_groups)
            z = self.graph.add("Transpose", z, perm=[0, 2, 1])
            z = self.first_token(z) if only_cls else z
            return self.add_and_norm(f"{name}.norm", self.activation(self.config.conv_act, z), y)

    def attention(self, name: str, queries: str, x: str) -> str:
        """Return the attended values [batch, queries, hidden] of a layer."""
        qkv, kind, only_cls = f"{name}.qkv", self.variant.attention, queries != x
        is_fused = not only_cls and (kind.startswith("fused-QKV") or kind == "Attention")
        if kind.endswith("Attention"):
            q, k, v = self.split_last(qkv, x) if is_fused else self.separate_qkv(qkv, queries, x)
            by_head = [self.by_head(part, 0, 2, 1, 3) for part in (q, k)] if self.has_bias else []
            bias = self.bias(name, *by_head, only_cls=only_cls) if self.has_bias else ""
            return self.multi_head_attention(q, k, v, bias, scale=self.scale)
        if is_fused:
            q, k, v = (self.graph.add("Squeeze", part, self.graph.ints(0)) for part in self.split_heads(qkv, x))
        else:
            q, k, v = (self.by_head(part, 0, 2, 1, 3) for part in self.separate_qkv(qkv, queries, x))
        scores = self.product(q, k, self.scale, axes=4)
        if self.has_bias:
            scores = self.graph.add("Add", scores, self.bias(name, q, k, only_cls=only_cls))
        context = self.attend(scores, v, self.mask)
        return self.merge_heads(self.graph.add("Transpose", context, perm=[0, 2, 1, 3]))

    def bias(self, name: str, q: str, k: str, *, only_cls: bool) -> str:
        """Return the scores of positions, [batch, heads, queries, keys]; queries and keys have one head an axis."""
        tables = [part for part in ("keys", "queries") if relative_name(name, part) in self.weights]
        terms = [self.term(relative_name(name, part), part, q, k, only_cls=only_cls) for part in tables]
        return self.graph.add("Add", *terms) if len(terms) > 1 else terms[0]

    def term(self, table: str, part: str, q: str, k: str, *, only_cls: bool) -> str:
        """Return the products of queries with the table of keys, or of keys with that of queries."""
        is_c2p = part == "keys"
        rows = self.key_rows if is_c2p else self.query_rows
        found = self.graph.add("Gather", self.weight(table), self.cls_rows if only_cls else rows, axis=1)
        if only_cls and not is_c2p:  # one key a row: [batch, heads, keys, size] times [heads, keys, size]
            sums = self.graph.add("ReduceSum", self.graph.add("Mul", k, found), self.graph.ints(3), keepdims=0)
            return self.graph.add("Unsqueeze", sums, self.graph.ints(2))
        scores = self.product(q if is_c2p else k, found, axes=3)
        if only_cls:
            return scores
        scores = self.skew(scores)
        return scores if is_c2p else self.graph.add("Transpose", scores, perm=[0, 1, 3, 2])

    def skew(self, scores: str) -> str:
        """Return [..., L, L] from the scores of all distances, [..., L, 2 L]."""
        flat = self.graph.add("Reshape", scores, self.graph.ints(0, 0, -1))
        flat = self.graph.add("Slice", flat, self.start, self.end, self.graph.ints(2))
        rows = self.graph.add("Reshape", flat, self.shape)
        return self.graph.add("Slice", rows, self.graph.ints(0), self.num_tokens, self.graph.ints(3))
