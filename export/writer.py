"""Graph writer of the BERT family, and base of those with other layers.

fp16: everything up to the head runs in half precision, except means and variances, which LayerNormalization's
`stash_type` keeps in fp32.

Tasks that read only [CLS] (classification, regression, multiple choice, [CLS] embeddings) compute the last layer's
query, attention output and feed-forward products for that token alone. The outputs are the same.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from export.builder import CONTRIB
from export.heads import Heads
from export.network import MASKED, PROJECTION, RELATIVE_BIAS
from export.storage import Graph
from tasks.features import INPUT_NAMES


class Writer(Heads):
    """Writes one graph; methods return the names of values. x is [batch, length, hidden]."""

    mask: str
    """Addend of attention scores: [batch, 1, 1, length], or [batch, heads, length, length] with a bias."""
    relative_bias = ""
    """Bias of relative positions on attention scores, [1, heads, length, length]; "" without one."""

    def write(self) -> Graph:
        """Return the finished graph."""
        with self.graph.scope("embeddings"):
            x = self.embeddings()
            self.add_shared_values()
        x = self.layers(x)
        with self.graph.scope("head"):
            outputs = self.head(x)
        shape = ["batch", "length"]
        return self.graph.model(
            [helper.make_tensor_value_info(name, TensorProto.INT32, shape) for name in INPUT_NAMES], outputs
        )

    def add_shared_values(self) -> None:
        """Add what the attention of all layers reads."""
        if self.config.relative_attention_num_buckets:
            distances, middle = self.distances(), self.graph.constant(self.config.num_positions - 1, np.int64)
            indices = self.graph.add("Add", distances, middle)
            bias = self.graph.add("Gather", self.weight(RELATIVE_BIAS), indices, axis=1)
            self.relative_bias = self.graph.add("Unsqueeze", bias, self.graph.ints(0))
        padding = self.graph.add("Sub", self.graph.constant(1), self.graph.floats("attention_mask"))
        masked = self.graph.add("Mul", padding, self.graph.constant(MASKED[self.graph.dtype]))
        masked = self.graph.add("Unsqueeze", masked, self.graph.ints(1, 2))
        self.mask = self.graph.add("Add", self.relative_bias, masked) if self.relative_bias else masked

    # Embeddings

    def embeddings(self) -> str:
        """Return the input of the first layer."""
        if self.variant.embed_layer_norm and self.can_fuse_embeddings:
            return self.graph.add_many(
                "EmbedLayerNormalization",
                *("input_ids", "token_type_ids"),
                *(self.weight(f"bert.embeddings.{table}.weight") for table in ("word", "position", "token_type")),
                *self.norm_weights("bert.embeddings.norm"),
                num_outputs=2,
                domain=CONTRIB,
                epsilon=self.config.layer_norm_eps,
            )[0]
        x = self.word_embeddings()
        if self.config.type_vocab_size > 1:
            types = self.graph.add("Gather", self.weight("bert.embeddings.token_type.weight"), "token_type_ids")
            x = self.graph.add("Add", x, types)
        if self.config.has_position_embeddings:
            x = self.graph.add("Add", x, self.position_embeddings())
        elif self.config.type_vocab_size == 1:  # all tokens have type 0
            x = self.graph.add("Add", x, self.weight("bert.embeddings.token_type.weight"))
        if self.config.projects_embeddings_first:
            return self.layer_norm("bert.embeddings.norm", self.project_embeddings(x))
        return self.project_embeddings(self.layer_norm("bert.embeddings.norm", x))

    def project_embeddings(self, x: str) -> str:
        """Project embeddings to the hidden size if theirs differs."""
        has_projection = self.config.width_of_embeddings != self.config.hidden_size
        return self.linear.apply(PROJECTION, x) if has_projection else x

    @property
    def can_fuse_embeddings(self) -> bool:
        """True if EmbedLayerNormalization computes the embeddings."""
        config = self.config
        is_plain = config.type_vocab_size > 1 and config.has_position_embeddings and not config.skips_padding_positions
        has_size = config.width_of_embeddings == config.hidden_size
        return is_plain and has_size and not self.precision.int8_embeddings

    def word_embeddings(self) -> str:
        """Return the word embeddings [batch, length, hidden]."""
        if not self.precision.int8_embeddings:
            return self.graph.add("Gather", self.weight("bert.embeddings.word.weight"), "input_ids")
        rows, scales = self.linear.word_rows()
        floats = self.graph.floats(self.graph.add("Gather", rows, "input_ids"))
        return self.graph.add("Mul", floats, self.graph.add("Gather", scales, "input_ids"))

    def position_embeddings(self) -> str:
        """Return the position embeddings: [length, hidden], or [batch, length, hidden] where padding is skipped."""
        table = self.weight("bert.embeddings.position.weight")
        if not self.config.skips_padding_positions:
            start = self.graph.ints(0)
            return self.graph.add("Slice", table, start, self.length(), start)
        padding_id = self.graph.constant(self.config.pad_token_id, np.int32)
        is_padding = self.graph.add("Equal", "input_ids", padding_id)
        is_token = self.graph.add("Cast", self.graph.add("Not", is_padding), to=TensorProto.INT32)
        counts = self.graph.add("CumSum", is_token, self.graph.constant(1, np.int32))
        positions = self.graph.add("Add", self.graph.add("Mul", counts, is_token), padding_id)
        return self.graph.add("Gather", table, positions)

    def distances(self) -> str:
        """Return the distance from each token to each other, int64 [length, length]."""
        places = self.positions_from(0)
        rows, columns = (self.graph.add("Unsqueeze", places, self.graph.ints(axis)) for axis in (1, 0))
        return self.graph.add("Sub", columns, rows)

    # Layers

    def layers(self, x: str) -> str:
        """Return the output of the last layer: [batch, length, hidden], or [batch, 1, hidden] for [CLS] alone."""
        for number in range(self.config.num_hidden_layers):
            with self.graph.scope(f"layer.{number}"):
                x = self.layer(number, x, only_cls=self.needs_only_cls(number))
        return x

    def needs_only_cls(self, number: int) -> bool:
        """Return whether nothing reads the other tokens of a layer's output."""
        return self.reads_only_cls and number == self.config.num_hidden_layers - 1

    def layer(self, number: int, x: str, *, only_cls: bool) -> str:
        """Return the output of one layer: [batch, length, hidden], or [batch, 1, hidden] for [CLS] alone."""
        name = f"bert.layers.{number % self.config.num_layer_weights}"
        queries = self.first_token(x) if only_cls else x
        with self.graph.scope("attention"):
            y = self.linear.apply(f"{name}.attention_output", self.attention(name, queries, x))
            x = self.add_and_norm(f"{name}.attention_norm", y, queries)
        with self.graph.scope("feed_forward"):
            y = self.linear.apply(f"{name}.output", self.feed_forward(f"{name}.intermediate", x))
            return self.add_and_norm(f"{name}.output_norm", y, x)

    def feed_forward(self, name: str, x: str) -> str:
        """Return the input of the second layer of a feed-forward network."""
        return self.intermediate(name, x, self.config.hidden_act)

    def add_and_norm(self, norm: str, x: str, residual: str) -> str:
        """Return LayerNorm of the sum."""
        if self.variant.skip_layer_norm:
            return self.graph.add(
                *("SkipLayerNormalization", x, residual, *self.norm_weights(norm)),
                domain=CONTRIB,
                epsilon=self.config.layer_norm_eps,
            )
        return self.layer_norm(norm, self.graph.add("Add", x, residual))

    # Attention

    def attention(self, name: str, queries: str, x: str) -> str:
        """Return the attended values [batch, queries, hidden] of a layer."""
        qkv, all_tokens, kind = f"{name}.qkv", queries == x, self.variant.attention
        if kind == "Attention" and all_tokens and not self.relative_bias:
            return self.attention_operator(qkv, x)
        fused = all_tokens and kind.startswith("fused-QKV")
        slices = not all_tokens and self.relative_bias  # a padding mask has one row for all queries
        if kind.endswith("MultiHeadAttention"):
            q, k, v = self.split_last(qkv, x) if fused else self.separate_qkv(qkv, queries, x)
            bias = self.of_cls(self.relative_bias) if slices else self.relative_bias
            return self.multi_head_attention(q, k, v, *[bias] * bool(bias))
        if not fused:
            q, k, v = self.separate_qkv(qkv, queries, x)
            return self.attention_by_head(q, k, v, self.of_cls(self.mask) if slices else self.mask)
        q, k, v = self.split_heads(qkv, x)
        context = self.attend(self.product(q, k, self.scale, axes=5), v, self.mask)
        context = self.graph.add("Transpose", context, perm=[0, 1, 3, 2, 4])
        return self.merge_heads(self.graph.add("Squeeze", context, self.graph.ints(0)))

    def attention_operator(self, qkv: str, x: str) -> str:
        """Return the attended values by the operator that contains the product for query, key and value."""
        heads = self.config.num_attention_heads
        if self.linear.is_float(qkv):
            inputs = (x, self.linear.weight(qkv), self.linear.bias(qkv), "attention_mask")
            return self.graph.add("Attention", *inputs, domain=CONTRIB, num_heads=heads)
        activation = self.linear.quantise(qkv, x)
        values, scales = self.linear.int8_weight(qkv)
        return self.graph.add(
            "QAttention",
            *(activation.values, values, self.linear.bias(qkv), activation.scale, scales),
            *("attention_mask", activation.zero_point),
            domain=CONTRIB,
            num_heads=heads,
        )

    def multi_head_attention(self, q: str, k: str, v: str, *bias: str, **attributes: Any) -> str:
        """Return the attended values by ONNX Runtime's operator."""
        return self.graph.add(
            *("MultiHeadAttention", q, k, v, "", "attention_mask", *bias),
            domain=CONTRIB,
            num_heads=self.config.num_attention_heads,
            **attributes,
        )

    def attention_by_head(self, q: str, k: str, v: str, mask: str) -> str:
        """Return the attended values of query, key and value [batch, length, hidden]."""
        q, k, v = self.by_head(q, 0, 2, 1, 3), self.by_head(k, 0, 2, 3, 1), self.by_head(v, 0, 2, 1, 3)
        context = self.attend(self.product(q, k, self.scale), v, mask)
        return self.merge_heads(self.graph.add("Transpose", context, perm=[0, 2, 1, 3]))

    @property
    def scale(self) -> float:
        """Factor of the attention scores."""
        return 1 / math.sqrt(self.config.head_size)

    def attend(self, scores: str, v: str, mask: str) -> str:
        """Return the weighted means of values, [..., heads, queries, size]."""
        scores = self.graph.add("Add", scores, mask)
        return self.graph.add("MatMul", self.graph.add("Softmax", scores, axis=-1), v)

    def separate_qkv(self, qkv: str, queries: str, x: str) -> tuple[str, str, str]:
        """Return query, key and value, each from a separate matrix product."""
        size = self.config.hidden_size
        return (
            self.linear.apply(qkv, queries, slice(0, size)),
            self.linear.apply(qkv, x, slice(size, 2 * size)),
            self.linear.apply(qkv, x, slice(2 * size, 3 * size)),
        )

    def split_last(self, qkv: str, x: str) -> tuple[str, ...]:
        """Return query, key and value from one matrix product, each [batch, length, hidden]."""
        parts = self.linear.apply(qkv, x)
        return self.graph.add_many(
            "Split", parts, self.graph.ints(*[self.config.hidden_size] * 3), num_outputs=3, axis=-1
        )

    def split_heads(self, qkv: str, x: str) -> tuple[str, ...]:
        """Return query, key and value from one matrix product, each [1, batch, heads, length, size]."""
        shape = self.graph.ints(0, 0, 3, self.config.num_attention_heads, self.config.head_size)
        parts = self.graph.add("Reshape", self.linear.apply(qkv, x), shape)
        parts = self.graph.add("Transpose", parts, perm=[2, 0, 3, 1, 4])
        return self.graph.add_many("Split", parts, self.graph.ints(1, 1, 1), num_outputs=3, axis=0)

    def by_head(self, x: str, *order: int) -> str:
        """Split [batch, length, hidden] into [batch, length, heads, size], and transpose."""
        shape = self.graph.ints(0, 0, self.config.num_attention_heads, self.config.head_size)
        x = self.graph.add("Reshape", x, shape)
        return self.graph.add("Transpose", x, perm=order) if order else x

    def merge_heads(self, context: str) -> str:
        """Join the last two axes, heads and size."""
        return self.graph.add("Reshape", context, self.graph.ints(0, 0, self.config.hidden_size))

    def of_cls(self, bias: str) -> str:
        """Return the rows of an attention bias [..., queries, keys] for [CLS] alone."""
        return self.graph.add("Slice", bias, self.graph.ints(0), self.graph.ints(1), self.graph.ints(2))
