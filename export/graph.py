"""Network -> ONNX graph, node by node.

Exporters trace a network and then search the result for operators to fuse. Here the graph is written directly, in any
of the variants of `GraphVariant`; `export.autotune` measures which one is fastest.

fp16: everything up to the head runs in half precision, except means and variances, which LayerNormalization's
`stash_type` keeps in fp32. Heads are small and run in fp32. The head of masked-lm is large; only its logits are fp32.

Tasks that read only [CLS] (classification, regression, multiple choice, [CLS] embeddings) compute the last layer's
query, attention output and feed-forward products for that token alone. The outputs are the same.

In comments, x is [batch, length, hidden].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto, ValueInfoProto, helper

from export.builder import CONTRIB, GraphBuilder
from export.disentangled_layers import DisentangledLayers
from export.linear import LinearLayers
from export.network import MASKED, PROJECTION, RELATIVE_BIAS, Network, reads_only_cls
from export.optimum_export.network import ExportedNetwork
from export.rotary_layers import PostNormLayers, PreNormLayers
from export.storage import Graph
from export.variant import GraphPrecision, GraphVariant
from tasks.embedding import NORMALIZE, Activation, EmbeddingSettings, Pooling, activation_of
from tasks.features import INPUT_NAMES
from tasks.sparse_embedding import SPARSE_VECTOR, SparseActivation, SparseEmbeddingSettings
from tasks.token_embedding import TOKEN_VECTORS, TokenEmbeddingSettings
from training.model.disentangled_encoder import DisentangledConfig
from training.model.modernbert_encoder import ModernBertConfig
from training.model.nomic_encoder import NomicBertConfig

_SIMPLE = {"relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid"}
_STANDARD_GELU = {"gelu": "none", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "gelu_fast": "tanh"}
_GELU = {"gelu": "Gelu", "gelu_new": "FastGelu", "gelu_pytorch_tanh": "FastGelu", "gelu_fast": "FastGelu"}


AnyNetwork = Network | ExportedNetwork
"""Network to write here, or whose graph Optimum wrote."""


def build_graph(network: AnyNetwork, precision: GraphPrecision, variant: GraphVariant) -> Graph:
    """Write the graph of a network, or return the one that Optimum wrote.

    Inputs are `input_ids`, `attention_mask` and `token_type_ids`, int32 [batch, length]; the outputs are the task's.
    """
    if isinstance(network, ExportedNetwork):
        return network.graph(precision.matmul)
    return _Writer(network, precision, variant).write()


class _Writer:
    """Writes one graph; methods return the names of values."""

    def __init__(self, network: Network, precision: GraphPrecision, variant: GraphVariant) -> None:
        self.config, self.weights, self.task = network.config, network.weights, network.task
        self.reads_only_cls = reads_only_cls(network.task, self.config)
        self.precision, self.variant = precision, variant
        self.graph = GraphBuilder(precision.dtype)
        self.linear = LinearLayers(self.graph, network, precision, variant)

    def write(self) -> Graph:
        with self.graph.scope("embeddings"):
            x = self.embeddings()
            self.relative_bias = self.bias_of_distances() if self.config.relative_attention_num_buckets else ""
            self.mask = self.additive_mask()
            layers = self.layers
            if isinstance(self.config, ModernBertConfig):
                layers = PreNormLayers(self, self.config).apply
            elif isinstance(self.config, NomicBertConfig):
                layers = PostNormLayers(self, self.config).apply
            elif isinstance(self.config, DisentangledConfig):
                layers = DisentangledLayers(self, self.config).apply
        x = layers(x)
        with self.graph.scope("head"):
            outputs = self.head(x)
        inputs = [_tensor(name, TensorProto.INT32, ["batch", "length"]) for name in INPUT_NAMES]
        return self.graph.model(inputs, outputs)

    # Embeddings

    def embeddings(self) -> str:
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
            x = self.graph.add("Add", x, self.positions())
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

    def positions(self) -> str:
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

    def length(self) -> str:
        """Return the length of the sequences, [1] int64."""
        return self.graph.add("Shape", "input_ids", start=1, end=2)

    def bias_of_distances(self) -> str:
        """Return the bias of relative positions on attention scores, [1, heads, length, length]."""
        length = self.graph.add("Squeeze", self.length())
        zero, one = self.graph.constant(0, np.int64), self.graph.constant(1, np.int64)
        places = self.graph.add("Range", zero, length, one)
        rows, columns = (self.graph.add("Unsqueeze", places, self.graph.ints(axis)) for axis in (1, 0))
        middle = self.graph.constant(self.config.num_positions - 1, np.int64)
        distances = self.graph.add("Add", self.graph.add("Sub", columns, rows), middle)
        bias = self.graph.add("Gather", self.weight(RELATIVE_BIAS), distances, axis=1)
        return self.graph.add("Unsqueeze", bias, self.graph.ints(0))

    def word_embeddings(self) -> str:
        if not self.precision.int8_embeddings:
            return self.graph.add("Gather", self.weight("bert.embeddings.word.weight"), "input_ids")
        rows, scales = self.linear.word_rows()
        floats = self.graph.floats(self.graph.add("Gather", rows, "input_ids"))
        return self.graph.add("Mul", floats, self.graph.add("Gather", scales, "input_ids"))

    def additive_mask(self) -> str:
        """Return what is added to attention scores: the relative bias, and a large negative number for padding.

        Its shape is [batch, 1, 1, length], or [batch, heads, length, length] with a relative bias.
        """
        mask = self.graph.floats("attention_mask")
        padding = self.graph.add("Sub", self.graph.constant(1), mask)
        masked = self.graph.add(
            "Unsqueeze",
            self.graph.add("Mul", padding, self.graph.constant(MASKED[self.graph.dtype])),
            self.graph.ints(1, 2),
        )
        return self.graph.add("Add", self.relative_bias, masked) if self.relative_bias else masked

    # Layers

    def layers(self, x: str) -> str:
        """Return the output of the last layer: [batch, length, hidden], or [batch, 1, hidden] for [CLS] alone."""
        for index in range(self.config.num_hidden_layers):
            is_last = index == self.config.num_hidden_layers - 1
            with self.graph.scope(f"layer.{index}"):
                name = f"bert.layers.{index % self.config.num_layer_weights}"
                x = self.layer(name, x, only_cls=is_last and self.reads_only_cls)
        return x

    def layer(self, name: str, x: str, *, only_cls: bool) -> str:
        """Return the output of one layer: [batch, length, hidden], or [batch, 1, hidden] for [CLS] alone."""
        queries = self.first_token(x) if only_cls else x
        with self.graph.scope("attention"):
            context = self.attention(f"{name}.qkv", queries, x)
        return self.after_attention(name, context, queries)

    def after_attention(self, name: str, context: str, queries: str) -> str:
        """Return the output of a layer from its attended values and its input, for the same tokens."""
        with self.graph.scope("attention"):
            y = self.linear.apply(f"{name}.attention_output", context)
            queries = self.add_and_norm(f"{name}.attention_norm", y, queries)
        with self.graph.scope("feed_forward"):
            y = self.intermediate(f"{name}.intermediate", queries, self.config.hidden_act)
            return self.add_and_norm(f"{name}.output_norm", self.linear.apply(f"{name}.output", y), queries)

    def attention(self, qkv: str, queries: str, x: str) -> str:
        """Return the attended values [batch, queries, hidden]."""
        all_tokens = queries == x
        if self.variant.attention == "Attention" and all_tokens and not self.relative_bias:
            return self.attention_operator(qkv, x)
        fused = all_tokens and self.variant.attention.startswith("fused-QKV")
        if self.variant.attention.endswith("MultiHeadAttention"):
            q, k, v = self.split_last(self.linear.apply(qkv, x)) if fused else self.separate_qkv(qkv, queries, x)
            bias = [self.of_queries(self.relative_bias, all_tokens=all_tokens)] * bool(self.relative_bias)
            return self.graph.add(
                *("MultiHeadAttention", q, k, v, "", "attention_mask", *bias),
                domain=CONTRIB,
                num_heads=self.config.num_attention_heads,
            )
        return self.fused_attention(qkv, x) if fused else self.separate_attention(qkv, queries, x)

    def of_queries(self, bias: str, *, all_tokens: bool) -> str:
        """Return the rows of an attention bias [..., queries, keys] for all tokens, or for [CLS] alone."""
        if all_tokens or not self.relative_bias:  # a padding mask has one row for all queries
            return bias
        return self.graph.add("Slice", bias, self.graph.ints(0), self.graph.ints(1), self.graph.ints(2))

    def attention_operator(self, qkv: str, x: str) -> str:
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

    def separate_qkv(self, qkv: str, queries: str, x: str) -> tuple[str, str, str]:
        size = self.config.hidden_size
        columns = [slice(start, start + size) for start in (0, size, 2 * size)]
        return (
            self.linear.apply(qkv, queries, columns[0]),
            self.linear.apply(qkv, x, columns[1]),
            self.linear.apply(qkv, x, columns[2]),
        )

    def split_last(self, qkv: str) -> tuple[str, ...]:
        sizes = self.graph.ints(*[self.config.hidden_size] * 3)
        return self.graph.add_many("Split", qkv, sizes, num_outputs=3, axis=-1)

    def separate_attention(self, qkv: str, queries: str, x: str) -> str:
        q, k, v = self.separate_qkv(qkv, queries, x)
        heads = self.graph.ints(0, 0, *self.heads)

        def transposed(value: str, *order: int) -> str:
            return self.graph.add("Transpose", self.graph.add("Reshape", value, heads), perm=order)

        mask = self.of_queries(self.mask, all_tokens=queries == x)
        context = self.attend(transposed(q, 0, 2, 1, 3), transposed(k, 0, 2, 3, 1), transposed(v, 0, 2, 1, 3), mask)
        return self.merge_heads(self.graph.add("Transpose", context, perm=[0, 2, 1, 3]))

    def fused_attention(self, qkv: str, x: str) -> str:
        """Attention with one product for query, key and value: [batch, length, 3, heads, size] -> [3, batch, ...]."""
        shape = self.graph.ints(0, 0, 3, *self.heads)
        parts = self.graph.add("Reshape", self.linear.apply(qkv, x), shape)
        parts = self.graph.add("Transpose", parts, perm=[2, 0, 3, 1, 4])
        sizes = self.graph.ints(1, 1, 1)
        q, k, v = self.graph.add_many("Split", parts, sizes, num_outputs=3, axis=0)
        context = self.attend(q, k, v, self.mask, transposed_keys=True)
        context = self.graph.add("Transpose", context, perm=[0, 1, 3, 2, 4])
        return self.merge_heads(self.graph.add("Squeeze", context, self.graph.ints(0)))

    def attend(self, q: str, k: str, v: str, mask: str, *, transposed_keys: bool = False) -> str:
        """Return the weighted means of values, [..., heads, queries, size]."""
        scores = self.attention_scores(q, k, 1 / math.sqrt(self.heads[1]), transposed_keys=transposed_keys)
        scores = self.graph.add("Add", scores, mask)
        return self.graph.add("MatMul", self.graph.add("Softmax", scores, axis=-1), v)

    def attention_scores(self, q: str, k: str, scale: float, *, transposed_keys: bool) -> str:
        """Return scale * q k^T, [..., heads, queries, keys]."""
        if not self.variant.standard:
            inputs = ("FusedMatMul", q, k)
            return self.graph.add(*inputs, domain=CONTRIB, transB=int(transposed_keys), alpha=scale)
        if transposed_keys:
            k = self.graph.add("Transpose", k, perm=[0, 1, 2, 4, 3])
        return self.graph.add("MatMul", self.graph.add("Mul", q, self.graph.constant(scale)), k)

    def merge_heads(self, context: str) -> str:
        return self.graph.add("Reshape", context, self.graph.ints(0, 0, self.config.hidden_size))

    def intermediate(self, name: str, x: str, activation: str) -> str:
        """Linear layer and activation function."""
        if self.variant.bias_gelu and activation == "gelu" and (bias := self.linear.bias(name)):
            matmul = self.linear.apply(name, x, with_bias=False)
            return self.graph.add("BiasGelu", matmul, bias, domain=CONTRIB)
        return self.activation(activation, self.linear.apply(name, x))

    def activation(self, name: str, x: str) -> str:
        """Activation function of a layer or of the pooler."""
        if name == "identity":
            return x
        if name == "silu" and self.variant.standard:
            return self.graph.add("Mul", x, self.graph.add("Sigmoid", x))
        if name == "silu":  # QuickGelu is x * sigmoid(alpha x)
            return self.graph.add("QuickGelu", x, domain=CONTRIB, alpha=1.0)
        if name in _SIMPLE:
            return self.graph.add(_SIMPLE[name], x)
        if self.variant.standard:
            return self.graph.add("Gelu", x, approximate=_STANDARD_GELU[name])
        return self.graph.add(_GELU[name], x, domain=CONTRIB)

    def add_and_norm(self, norm: str, x: str, residual: str) -> str:
        if self.variant.skip_layer_norm:
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
        """Return the task's outputs."""
        if self.task.network_task != "masked-lm":
            x = self.graph.as_float32(x)
        return HEADS[self.task.name](self, x)

    def embedding_head(self, x: str) -> list[ValueInfoProto]:
        settings: EmbeddingSettings = self.task.settings
        parts = [self.pool(x, pooling) for pooling in settings.poolings]
        vector = parts[0] if len(parts) == 1 else self.graph.add("Concat", *parts, axis=-1)
        vector, size = self.vector_layers(vector, len(parts) * self.config.hidden_size, settings)
        as_token = self.graph.add("Unsqueeze", vector, self.graph.ints(1))  # see export.interop
        return [
            self.output("sentence_embedding", vector, "batch", size),
            self.output("last_hidden_state", as_token, "batch", 1, size),
        ]

    def token_embedding_head(self, x: str) -> list[ValueInfoProto]:
        vectors, size = self.vector_layers(x, self.config.hidden_size, self.task.settings)
        return [self.output(TOKEN_VECTORS, vectors, "batch", "length", size)]

    def vector_layers(self, x: str, size: int, settings: EmbeddingSettings | TokenEmbeddingSettings) -> tuple[str, int]:
        """Return vectors after the layers of the settings, and their size."""
        for index, layer in enumerate([*settings.layers, *[NORMALIZE] * settings.normalize]):
            if activation := activation_of(layer):
                x, size = self.dense(f"dense.{index}", x, activation)
            else:
                x = self.graph.add("LpNormalization", x, axis=-1, p=2)
        return x, size

    def dense(self, name: str, x: str, activation: Activation) -> tuple[str, int]:
        """Return a linear layer with its activation function, and the number of its outputs."""
        has_bias = f"{name}.bias" in self.weights.floats
        matmul = self.graph.add("MatMul", x, self.linear.weight(name))
        y = self.graph.add("Add", matmul, self.linear.bias(name)) if has_bias else matmul
        return self.activation(activation, y), self.weights[f"{name}.weight"].shape[1]

    def pool(self, x: str, pooling: Pooling) -> str:
        """Return one vector for each sequence, [batch, hidden]; see `training.model.vectors.pool`."""
        if pooling == "cls":
            return self.cls(x)
        if pooling == "max":
            return self.max(x)
        mask = self.graph.floats("attention_mask")
        if pooling == "lasttoken":
            return self.weighted_sum(self.last_token(mask), x)
        weights = self.graph.add("Mul", mask, self.places()) if pooling == "weightedmean" else mask
        count = self.graph.add("ReduceSum", weights, self.graph.ints(1))  # [batch, 1]
        if pooling == "mean_sqrt_len_tokens":
            count = self.graph.add("Sqrt", count)
        return self.graph.add("Div", self.weighted_sum(weights, x), count)

    def weighted_sum(self, weights: str, x: str) -> str:
        """Sum over tokens with weights [batch, length], [batch, hidden]."""
        weights = self.graph.add("Unsqueeze", weights, self.graph.ints(1))  # [batch, 1, length]
        return self.graph.add("Squeeze", self.graph.add("MatMul", weights, x), self.graph.ints(1))

    def max(self, x: str) -> str:
        """Largest value of each channel over tokens, [batch, hidden]."""
        is_token = self.graph.add("Cast", "attention_mask", to=TensorProto.BOOL)
        is_token = self.graph.add("Unsqueeze", is_token, self.graph.ints(2))
        lowest = self.graph.constant(np.finfo(np.float32).min)
        return self.graph.add("ReduceMax", self.graph.add("Where", is_token, x, lowest), self.graph.ints(1), keepdims=0)

    def last_token(self, mask: str) -> str:
        """Return 1 for the last token of each sequence and 0 for others, [batch, length]."""
        places = self.places()
        last = self.graph.add("ReduceMax", self.graph.add("Mul", mask, places), self.graph.ints(1))  # [batch, 1]
        return self.graph.floats(self.graph.add("Equal", places, last))

    def places(self) -> str:
        """Return the positions of the tokens, counted from 1, as floats [length]."""
        one = self.graph.constant(1, np.int64)
        end = self.graph.add("Add", self.graph.add("Squeeze", self.length()), one)
        return self.graph.floats(self.graph.add("Range", one, end, one))

    def classification_head(self, x: str) -> list[ValueInfoProto]:
        num_labels = len(self.weights["classifier.bias"])
        logits = self.float_layer("classifier", self.pooled(x))
        return [self.output("logits", logits, "batch", num_labels)]

    def multiple_choice_head(self, x: str) -> list[ValueInfoProto]:
        logits = self.graph.add("Squeeze", self.float_layer("classifier", self.pooled(x)), self.graph.ints(1))
        return [self.output("logits", logits, "batch")]

    def tagging_head(self, x: str) -> list[ValueInfoProto]:
        num_labels = len(self.weights["classifier.bias"])
        logits = self.float_layer("classifier", self.token_states(x))
        return [self.output("logits", logits, "batch", "length", num_labels)]

    def spans_head(self, x: str) -> list[ValueInfoProto]:
        both = self.graph.add_many(
            *("Split", self.float_layer("qa_outputs", self.token_states(x)), self.graph.ints(1, 1)),
            num_outputs=2,
            axis=-1,
        )
        names = ("start_logits", "end_logits")
        return [
            self.output(name, self.graph.add("Squeeze", logits, self.graph.ints(2)), "batch", "length")
            for name, logits in zip(names, both, strict=True)
        ]

    def masked_lm_head(self, x: str) -> list[ValueInfoProto]:
        logits = self.graph.as_float32(self.decode(self.predicted_states(x)))
        return [self.output("logits", logits, "batch", "length", self.config.vocab_size)]

    def sparse_embedding_head(self, x: str) -> list[ValueInfoProto]:
        settings: SparseEmbeddingSettings = self.task.settings
        x = self.predicted_states(x)
        if settings.pooling == "max":  # the largest logit has the largest weight
            weights = self.weights_of_logits(self.graph.as_float32(self.max_logits(x)), settings.activation)
        else:
            weights = self.weights_of_logits(self.graph.as_float32(self.decode(x)), settings.activation)
            weights = self.weighted_sum(self.graph.floats("attention_mask"), weights)
        return [self.output(SPARSE_VECTOR, weights, "batch", self.config.vocab_size)]

    def max_logits(self, x: str) -> str:
        """Largest logit of each word over tokens, [batch, vocabulary].

        Padding repeats the first token: that changes no maximum, and costs less than to mask logits.
        """
        is_token = self.graph.add("Cast", "attention_mask", to=TensorProto.BOOL)
        is_token = self.graph.add("Unsqueeze", is_token, self.graph.ints(2))
        x = self.graph.add("Where", is_token, x, self.first_token(x))
        return self.graph.add("ReduceMax", self.decode(x), self.graph.ints(1), keepdims=0)

    def weights_of_logits(self, logits: str, activation: SparseActivation) -> str:
        """Return log(1 + relu(logits)), or the logarithm of one plus that."""
        weights = self.graph.add("Relu", logits)
        for _ in range(1 if activation == "relu" else 2):
            weights = self.graph.add("Log", self.graph.add("Add", weights, self.graph.constant(1)))
        return weights

    def predicted_states(self, x: str) -> str:
        """Return the states that the output layer of masked LM multiplies with the word embeddings."""
        return self.layer_norm("mlm.norm", self.intermediate("mlm.dense", x, self.config.masked_lm_act))

    def decode(self, x: str) -> str:
        """Return logits over the vocabulary: the product with the word embeddings."""
        if not self.linear.is_float("mlm.decoder"):
            return self.linear.apply("mlm.decoder", x)
        words = self.weight("bert.embeddings.word.weight")
        if self.variant.standard:
            logits = self.graph.add("MatMul", x, self.graph.add("Transpose", words, perm=[1, 0]))
        else:
            logits = self.graph.add("FusedMatMul", x, words, domain=CONTRIB, transB=1)
        return self.graph.add("Add", logits, self.weight("mlm.bias")) if "mlm.bias" in self.weights else logits

    def pooled(self, x: str) -> str:
        """Pooler output, [batch, hidden]: a layer on [CLS], or on the mean over tokens."""
        return self.pooler(self.pool(x, "mean" if self.config.pools_mean else "cls"))

    def pooler(self, x: str) -> str:
        """Dense layer and activation; with LayerNorm in families whose heads have one."""
        x = self.activation(self.config.pooler_act, self.float_layer("bert.pooler", x))
        return self.layer_norm("bert.pooler.norm", x) if self.config.has_prediction_head else x

    def token_states(self, x: str) -> str:
        """Return what heads over each token read, [batch, length, hidden]."""
        return self.pooler(x) if self.config.has_prediction_head else x

    def cls(self, x: str) -> str:
        """State of [CLS], [batch, hidden]."""
        if self.reads_only_cls:
            return self.graph.add("Reshape", x, self.graph.ints(-1, self.config.hidden_size))
        return self.graph.add("Gather", x, self.graph.constant(0, np.int64), axis=1)

    def float_layer(self, name: str, x: str) -> str:
        """Return x W + b in floats, for layers too small to gain from int8."""
        matmul, bias = self.graph.add("MatMul", x, self.linear.weight(name)), self.linear.bias(name)
        return self.graph.add("Add", matmul, bias) if bias else matmul

    def output(self, name: str, value: str, *shape: str | int) -> ValueInfoProto:
        self.graph.output(name, value)
        return _tensor(name, TensorProto.FLOAT, shape)

    # Helpers

    @property
    def heads(self) -> tuple[int, int]:
        """Number and size of the attention heads."""
        return self.config.num_attention_heads, self.config.head_size

    def first_token(self, x: str) -> str:
        """State of [CLS] with its axis, [batch, 1, hidden]."""
        return self.graph.add("Slice", x, self.graph.ints(0), self.graph.ints(1), self.graph.ints(1))

    def weight(self, name: str) -> str:
        return self.graph.weight(name, self.weights[name])

    def norm_weights(self, norm: str) -> tuple[str, ...]:
        return tuple(self.weight(name) for name in (f"{norm}.weight", f"{norm}.bias") if name in self.weights)


HEADS: dict[str, Callable[[_Writer, str], list[ValueInfoProto]]] = {
    "embedding": _Writer.embedding_head,
    "classification": _Writer.classification_head,
    "regression": _Writer.classification_head,
    "multiple-choice": _Writer.multiple_choice_head,
    "tagging": _Writer.tagging_head,
    "spans": _Writer.spans_head,
    "masked-lm": _Writer.masked_lm_head,
    "sparse-embedding": _Writer.sparse_embedding_head,
    "token-embedding": _Writer.token_embedding_head,
}
"""Writer of the outputs of each task, from the last hidden states."""


def _tensor(name: str, dtype: int, shape: Any) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)
