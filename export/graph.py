"""Network -> ONNX graph, node by node.

Exporters trace a network and look for what they can fuse in the result. Here the graph is written down as it is to
run, in any of the forms that `Form` names: which is fastest, a measurement says.

With fp16, everything up to the head is of half precision, but for means and variances, which LayerNormalization's
`stash_type` keeps in single. So are heads, which are small; masked-lm's, which is large, only gives its logits so.

Where only [CLS] is read (classification, regression, multiple choice, [CLS] embeddings), the last layer's query, output
and feed-forward products are computed for that token alone: the same numbers for less.

In comments, x is [batch, length, hidden].
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from onnx import TensorProto, ValueInfoProto, helper

from export.builder import CONTRIB, GraphBuilder
from export.linear import LinearLayers
from export.network import Network, reads_only_cls
from export.storage import Graph
from export.variant import Form, Numbers
from tasks.features import INPUT_NAMES

_NOT_SEEN = {np.float32: -1e30, np.float16: -1e4}
"""Added to the scores of padding: nothing is left of them after the softmax, and sums of it stay finite."""
_STANDARD_GELU = {"gelu": "none", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"}
_GELU = {"gelu": "Gelu", "gelu_new": "FastGelu", "gelu_pytorch_tanh": "FastGelu"}


def build_graph(network: Network, numbers: Numbers, form: Form) -> Graph:
    """The graph of a network.

    Inputs are `input_ids`, `attention_mask` and `token_type_ids`, int32 [batch, length]; the outputs are the task's.
    """
    return _Writer(network, numbers, form).write()


class _Writer:
    """Holds what the parts of one graph share."""

    def __init__(self, network: Network, numbers: Numbers, form: Form) -> None:
        self.config, self.weights, self.task = network.config, network.weights, network.task
        self.reads_only_cls = reads_only_cls(network.task)
        self.numbers, self.form = numbers, form
        self.graph = GraphBuilder(numbers.dtype)
        self.linear = LinearLayers(self.graph, network, numbers, form)

    def write(self) -> Graph:
        with self.graph.scope("embeddings"):
            x = self.embeddings()
            self.mask = self.additive_mask()
        for number in range(self.config.num_hidden_layers):
            is_last = number == self.config.num_hidden_layers - 1
            with self.graph.scope(f"layer.{number}"):
                x = self.layer(f"bert.layers.{number}", x, only_cls=is_last and self.reads_only_cls)
        with self.graph.scope("head"):
            outputs = self.head(x)
        inputs = [_tensor(name, TensorProto.INT32, ["batch", "length"]) for name in INPUT_NAMES]
        return self.graph.model(inputs, outputs)

    # Embeddings

    def embeddings(self) -> str:
        if self.form.embed_layer_norm and not self.numbers.int8_embeddings:
            return self.graph.add_many(
                "EmbedLayerNormalization",
                *("input_ids", "token_type_ids"),
                *(self.weight(f"bert.embeddings.{table}.weight") for table in ("word", "position", "token_type")),
                *self.norm_weights("bert.embeddings.norm"),
                num_outputs=2,
                domain=CONTRIB,
                epsilon=self.config.layer_norm_eps,
            )[0]
        words = self.word_embeddings()
        types = self.graph.add("Gather", self.weight("bert.embeddings.token_type.weight"), "token_type_ids")
        length = self.graph.add("Shape", "input_ids", start=1, end=2)
        start = self.graph.ints(0)
        positions = self.graph.add("Slice", self.weight("bert.embeddings.position.weight"), start, length, start)
        x = self.graph.add("Add", self.graph.add("Add", words, types), positions)
        return self.layer_norm("bert.embeddings.norm", x)

    def word_embeddings(self) -> str:
        if not self.numbers.int8_embeddings:
            return self.graph.add("Gather", self.weight("bert.embeddings.word.weight"), "input_ids")
        rows, scales = self.linear.word_rows()
        floats = self.graph.floats(self.graph.add("Gather", rows, "input_ids"))
        return self.graph.add("Mul", floats, self.graph.add("Gather", scales, "input_ids"))

    def additive_mask(self) -> str:
        """[batch, 1, 1, length]: 0 for tokens, and much less for padding."""
        mask = self.graph.floats("attention_mask")
        padding = self.graph.add("Sub", self.graph.constant(1), mask)
        return self.graph.add(
            "Unsqueeze",
            self.graph.add("Mul", padding, self.graph.constant(_NOT_SEEN[self.graph.dtype])),
            self.graph.ints(1, 2),
        )

    # Layers

    def layer(self, name: str, x: str, *, only_cls: bool) -> str:
        """One layer: x, or [batch, 1, hidden] for [CLS] alone."""
        queries = self.first_token(x) if only_cls else x
        with self.graph.scope("attention"):
            y = self.linear.apply(f"{name}.attention_output", self.attention(f"{name}.qkv", queries, x))
            queries = self.add_and_norm(f"{name}.attention_norm", y, queries)
        with self.graph.scope("feed_forward"):
            y = self.intermediate(f"{name}.intermediate", queries)
            return self.add_and_norm(f"{name}.output_norm", self.linear.apply(f"{name}.output", y), queries)

    def attention(self, qkv: str, queries: str, x: str) -> str:
        """Context [batch, queries, hidden]."""
        whole = queries == x
        if self.form.attention == "Attention" and whole:
            return self.attention_operator(qkv, x)
        joint = whole and self.form.attention.startswith("joint")
        if self.form.attention.endswith("MultiHeadAttention"):
            q, k, v = self.split_last(self.linear.apply(qkv, x)) if joint else self.apart(qkv, queries, x)
            return self.graph.add(
                *("MultiHeadAttention", q, k, v, "", "attention_mask"),
                domain=CONTRIB,
                num_heads=self.config.num_attention_heads,
            )
        return self.joint_products(qkv, x) if joint else self.separate_products(qkv, queries, x)

    def attention_operator(self, qkv: str, x: str) -> str:
        heads = self.config.num_attention_heads
        if self.linear.in_floats(qkv):
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

    def apart(self, qkv: str, queries: str, x: str) -> tuple[str, str, str]:
        size = self.config.hidden_size
        parts = [slice(start, start + size) for start in (0, size, 2 * size)]
        return (
            self.linear.apply(qkv, queries, parts[0]),
            self.linear.apply(qkv, x, parts[1]),
            self.linear.apply(qkv, x, parts[2]),
        )

    def split_last(self, qkv: str) -> tuple[str, ...]:
        sizes = self.graph.ints(*[self.config.hidden_size] * 3)
        return self.graph.add_many("Split", qkv, sizes, num_outputs=3, axis=-1)

    def separate_products(self, qkv: str, queries: str, x: str) -> str:
        q, k, v = self.apart(qkv, queries, x)
        heads = self.graph.ints(0, 0, *self.heads)

        def transposed(value: str, *order: int) -> str:
            return self.graph.add("Transpose", self.graph.add("Reshape", value, heads), perm=order)

        context = self.attend(transposed(q, 0, 2, 1, 3), transposed(k, 0, 2, 3, 1), transposed(v, 0, 2, 1, 3))
        return self.merge_heads(self.graph.add("Transpose", context, perm=[0, 2, 1, 3]))

    def joint_products(self, qkv: str, x: str) -> str:
        """One product for all three, and one transposition: [batch, length, 3, heads, size] -> [3, batch, ...]."""
        shape = self.graph.ints(0, 0, 3, *self.heads)
        parts = self.graph.add("Reshape", self.linear.apply(qkv, x), shape)
        parts = self.graph.add("Transpose", parts, perm=[2, 0, 3, 1, 4])
        sizes = self.graph.ints(1, 1, 1)
        q, k, v = self.graph.add_many("Split", parts, sizes, num_outputs=3, axis=0)
        context = self.attend(q, k, v, transposed_keys=True)
        context = self.graph.add("Transpose", context, perm=[0, 1, 3, 2, 4])
        return self.merge_heads(self.graph.add("Squeeze", context, self.graph.ints(0)))

    def attend(self, q: str, k: str, v: str, *, transposed_keys: bool = False) -> str:
        """Weighted means of values, [..., heads, queries, size]."""
        scores = self.scaled_products(q, k, 1 / math.sqrt(self.heads[1]), transposed_keys=transposed_keys)
        scores = self.graph.add("Add", scores, self.mask)
        return self.graph.add("MatMul", self.graph.add("Softmax", scores, axis=-1), v)

    def scaled_products(self, q: str, k: str, scale: float, *, transposed_keys: bool) -> str:
        """scale * q k^T, [..., heads, queries, keys]."""
        if not self.form.standard:
            inputs = ("FusedMatMul", q, k)
            return self.graph.add(*inputs, domain=CONTRIB, transB=int(transposed_keys), alpha=scale)
        if transposed_keys:
            k = self.graph.add("Transpose", k, perm=[0, 1, 2, 4, 3])
        return self.graph.add("MatMul", self.graph.add("Mul", q, self.graph.constant(scale)), k)

    def merge_heads(self, context: str) -> str:
        return self.graph.add("Reshape", context, self.graph.ints(0, 0, self.config.hidden_size))

    def intermediate(self, name: str, x: str) -> str:
        """A layer and the activation function."""
        if self.form.bias_gelu and self.config.hidden_act == "gelu":
            product = self.linear.apply(name, x, with_bias=False)
            return self.graph.add("BiasGelu", product, self.linear.bias(name), domain=CONTRIB)
        return self.activation(self.linear.apply(name, x))

    def activation(self, x: str) -> str:
        if self.config.hidden_act == "relu":
            return self.graph.add("Relu", x)
        if self.form.standard:
            return self.graph.add("Gelu", x, approximate=_STANDARD_GELU[self.config.hidden_act])
        return self.graph.add(_GELU[self.config.hidden_act], x, domain=CONTRIB)

    def add_and_norm(self, norm: str, x: str, residual: str) -> str:
        if self.form.skip_layer_norm:
            return self.graph.add(
                *("SkipLayerNormalization", x, residual, *self.norm_weights(norm)),
                domain=CONTRIB,
                epsilon=self.config.layer_norm_eps,
            )
        return self.layer_norm(norm, self.graph.add("Add", x, residual))

    def layer_norm(self, norm: str, x: str) -> str:
        epsilon = self.config.layer_norm_eps
        return self.graph.add("LayerNormalization", x, *self.norm_weights(norm), axis=-1, epsilon=epsilon)

    # Heads

    def head(self, x: str) -> list[ValueInfoProto]:
        """The task's outputs."""
        if self.task.name != "masked-lm":
            x = self.graph.as_float32(x)
        return _HEADS[self.task.name](self, x)

    def embedding_head(self, x: str) -> list[ValueInfoProto]:
        vector = self.mean(x) if self.task.settings.pooling == "mean" else self.cls(x)
        if self.task.settings.normalize:
            vector = self.graph.add("LpNormalization", vector, axis=-1, p=2)
        as_token = self.graph.add("Unsqueeze", vector, self.graph.ints(1))  # for others: see export.interop
        return [
            self.output("sentence_embedding", vector, "batch", self.config.hidden_size),
            self.output("last_hidden_state", as_token, "batch", 1, self.config.hidden_size),
        ]

    def mean(self, x: str) -> str:
        """Over tokens, [batch, hidden]."""
        mask = self.graph.floats("attention_mask")
        mask = self.graph.add("Unsqueeze", mask, self.graph.ints(1))  # [batch, 1, length]
        total = self.graph.add("Squeeze", self.graph.add("MatMul", mask, x), self.graph.ints(1))
        return self.graph.add("Div", total, self.graph.add("ReduceSum", mask, self.graph.ints(2), keepdims=0))

    def classification_head(self, x: str) -> list[ValueInfoProto]:
        num_labels = len(self.weights["classifier.bias"])
        logits = self.float_layer("classifier", self.pooled(x))
        return [self.output("logits", logits, "batch", num_labels)]

    def multiple_choice_head(self, x: str) -> list[ValueInfoProto]:
        logits = self.graph.add("Squeeze", self.float_layer("classifier", self.pooled(x)), self.graph.ints(1))
        return [self.output("logits", logits, "batch")]

    def tagging_head(self, x: str) -> list[ValueInfoProto]:
        num_labels = len(self.weights["classifier.bias"])
        return [self.output("logits", self.float_layer("classifier", x), "batch", "length", num_labels)]

    def spans_head(self, x: str) -> list[ValueInfoProto]:
        both = self.graph.add_many(
            "Split", self.float_layer("qa_outputs", x), self.graph.ints(1, 1), num_outputs=2, axis=-1
        )
        names = ("start_logits", "end_logits")
        return [
            self.output(name, self.graph.add("Squeeze", logits, self.graph.ints(2)), "batch", "length")
            for name, logits in zip(names, both, strict=True)
        ]

    def masked_lm_head(self, x: str) -> list[ValueInfoProto]:
        x = self.layer_norm("mlm.norm", self.intermediate("mlm.dense", x))
        logits = self.graph.as_float32(self.decode(x))
        return [self.output("logits", logits, "batch", "length", self.config.vocab_size)]

    def decode(self, x: str) -> str:
        """Logits over the vocabulary, by the matrix of the word embeddings."""
        if not self.linear.in_floats("mlm.decoder"):
            return self.linear.apply("mlm.decoder", x)
        words, bias = self.weight("bert.embeddings.word.weight"), self.weight("mlm.bias")
        if self.form.standard:
            product = self.graph.add("MatMul", x, self.graph.add("Transpose", words, perm=[1, 0]))
        else:
            product = self.graph.add("FusedMatMul", x, words, domain=CONTRIB, transB=1)
        return self.graph.add("Add", product, bias)

    def pooled(self, x: str) -> str:
        """tanh of a layer over [CLS], [batch, hidden]."""
        return self.graph.add("Tanh", self.float_layer("bert.pooler", self.cls(x)))

    def cls(self, x: str) -> str:
        """[CLS] of x, [batch, hidden]."""
        if self.reads_only_cls:
            return self.graph.add("Reshape", x, self.graph.ints(-1, self.config.hidden_size))
        return self.graph.add("Gather", x, self.graph.constant(0, np.int64), axis=1)

    def float_layer(self, name: str, x: str) -> str:
        """x W + b of a layer too small for integers to pay."""
        return self.graph.add("Add", self.graph.add("MatMul", x, self.linear.weight(name)), self.linear.bias(name))

    def output(self, name: str, value: str, *shape: str | int) -> ValueInfoProto:
        self.graph.output(name, value)
        return _tensor(name, TensorProto.FLOAT, shape)

    # Small things

    @property
    def heads(self) -> tuple[int, int]:
        """Number and size."""
        number = self.config.num_attention_heads
        return number, self.config.hidden_size // number

    def first_token(self, x: str) -> str:
        """[batch, 1, hidden]"""
        return self.graph.add("Slice", x, self.graph.ints(0), self.graph.ints(1), self.graph.ints(1))

    def weight(self, name: str) -> str:
        return self.graph.weight(name, self.weights[name])

    def norm_weights(self, norm: str) -> tuple[str, str]:
        return self.weight(f"{norm}.weight"), self.weight(f"{norm}.bias")


_HEADS = {
    "embedding": _Writer.embedding_head,
    "classification": _Writer.classification_head,
    "regression": _Writer.classification_head,
    "multiple-choice": _Writer.multiple_choice_head,
    "tagging": _Writer.tagging_head,
    "spans": _Writer.spans_head,
    "masked-lm": _Writer.masked_lm_head,
}


def _tensor(name: str, dtype: int, shape: Any) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)
