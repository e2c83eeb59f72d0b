"""Parts of a graph that all families share, and heads of all tasks: outputs from the last hidden states.

Heads are small, and run in fp32; that of masked-lm is large, and only its logits are fp32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto, ValueInfoProto, helper

from export.builder import CONTRIB, GraphBuilder
from export.linear import LinearLayers
from export.network import Network, reads_only_cls
from export.variant import GraphPrecision, GraphVariant
from tasks.embedding import NORMALIZE, EmbeddingSettings, Pooling, activation_of
from tasks.sparse_embedding import SPARSE_VECTOR, SparseEmbeddingSettings
from tasks.token_embedding import TOKEN_VECTORS, TokenEmbeddingSettings

_SIMPLE = {"relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid"}
_STANDARD_GELU = {"gelu": "none", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "gelu_fast": "tanh"}
_GELU = {"gelu": "Gelu", "gelu_new": "FastGelu", "gelu_pytorch_tanh": "FastGelu", "gelu_fast": "FastGelu"}


class Heads:
    """A graph under construction; methods return the names of values. x is [batch, length, hidden]."""

    config: Any

    def __init__(self, network: Network, precision: GraphPrecision, variant: GraphVariant) -> None:
        self.config, self.weights, self.task = network.config, network.weights, network.task
        self.reads_only_cls = reads_only_cls(network.task, network.config)
        self.precision, self.variant = precision, variant
        self.graph = GraphBuilder(precision.dtype)
        self.linear = LinearLayers(self.graph, network, precision, variant)

    def weight(self, name: str) -> str:
        """Add a weight."""
        return self.graph.weight(name, self.weights[name])

    def norm_weights(self, norm: str) -> tuple[str, ...]:
        """Return the scale of a LayerNorm, and its bias if it has one."""
        return tuple(self.weight(name) for name in (f"{norm}.weight", f"{norm}.bias") if name in self.weights)

    def layer_norm(self, norm: str, x: str) -> str:
        """Return LayerNorm with the weights of that name."""
        epsilon = self.config.layer_norm_eps
        return self.graph.add("LayerNormalization", x, *self.norm_weights(norm), axis=-1, epsilon=epsilon)

    def intermediate(self, name: str, x: str, activation: str) -> str:
        """Return a linear layer and its activation function."""
        if self.variant.bias_gelu and activation == "gelu" and (bias := self.linear.bias(name)):
            matmul = self.linear.apply(name, x, with_bias=False)
            return self.graph.add("BiasGelu", matmul, bias, domain=CONTRIB)
        return self.activation(activation, self.linear.apply(name, x))

    def activation(self, name: str, x: str) -> str:
        """Return the activation function of that name."""
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

    def product(self, x: str, y: str, scale: float = 1.0, *, axes: int = 0) -> str:
        """Return scale * x y^T over the last two axes, or scale * x y if y is transposed already.

        Args:
            axes: number of axes of y; 0 if it is transposed already.
        """
        if not self.variant.standard:
            return self.graph.add("FusedMatMul", x, y, domain=CONTRIB, transB=int(axes > 0), alpha=scale)
        if axes:
            y = self.graph.add("Transpose", y, perm=[*range(axes - 2), axes - 1, axes - 2])
        if scale != 1:
            x = self.graph.add("Mul", x, self.graph.constant(scale))
        return self.graph.add("MatMul", x, y)

    def first_token(self, x: str) -> str:
        """Return the state of [CLS] with its axis, [batch, 1, hidden]."""
        return self.graph.add("Slice", x, self.graph.ints(0), self.graph.ints(1), self.graph.ints(1))

    def length(self) -> str:
        """Return the length of the sequences, [1] int64."""
        return self.graph.add("Shape", "input_ids", start=1, end=2)

    def positions_from(self, first: int) -> str:
        """Return the positions of the tokens, counted from 0 or 1, int64 [length]."""
        length = self.graph.add("Squeeze", self.length())
        start, one = self.graph.constant(first, np.int64), self.graph.constant(1, np.int64)
        end = self.graph.add("Add", length, one) if first else length
        return self.graph.add("Range", start, end, one)

    def head(self, x: str) -> list[ValueInfoProto]:
        """Return the task's outputs from the last hidden states."""
        if self.task.network_task != "masked-lm":
            x = self.graph.as_float32(x)
        return HEADS[self.task.name](self, x)

    def output(self, name: str, value: str, *shape: str | int) -> ValueInfoProto:
        """Make a value an output of the graph."""
        self.graph.output(name, value)
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    def embedding_head(self, x: str) -> list[ValueInfoProto]:
        """Return one vector for each text, also as its only token: see export.interop."""
        settings: EmbeddingSettings = self.task.settings
        parts = [self.pool(x, pooling) for pooling in settings.poolings]
        vector = parts[0] if len(parts) == 1 else self.graph.add("Concat", *parts, axis=-1)
        vector, size = self.vector_layers(vector, len(parts) * self.config.hidden_size, settings)
        as_token = self.graph.add("Unsqueeze", vector, self.graph.ints(1))
        return [
            self.output("sentence_embedding", vector, "batch", size),
            self.output("last_hidden_state", as_token, "batch", 1, size),
        ]

    def token_embedding_head(self, x: str) -> list[ValueInfoProto]:
        """Return one vector for each token."""
        vectors, size = self.vector_layers(x, self.config.hidden_size, self.task.settings)
        return [self.output(TOKEN_VECTORS, vectors, "batch", "length", size)]

    def vector_layers(self, x: str, size: int, settings: EmbeddingSettings | TokenEmbeddingSettings) -> tuple[str, int]:
        """Return vectors after the layers of the settings, and their size."""
        for index, layer in enumerate([*settings.layers, *[NORMALIZE] * settings.normalize]):
            if activation := activation_of(layer):
                name = f"dense.{index}"
                x, size = (
                    self.activation(activation, self.float_layer(name, x)),
                    self.weights[f"{name}.weight"].shape[1],
                )
            else:
                x = self.graph.add("LpNormalization", x, axis=-1, p=2)
        return x, size

    def pool(self, x: str, pooling: Pooling) -> str:
        """Return one vector for each sequence, [batch, hidden]; see `training.model.vectors.pool`."""
        if pooling == "cls" and self.reads_only_cls:
            return self.graph.add("Reshape", x, self.graph.ints(-1, self.config.hidden_size))
        if pooling == "cls":
            return self.graph.add("Gather", x, self.graph.constant(0, np.int64), axis=1)
        if pooling == "max":
            is_token, lowest = self.is_token(), self.graph.constant(np.finfo(np.float32).min)
            return self.graph.add(
                "ReduceMax", self.graph.add("Where", is_token, x, lowest), self.graph.ints(1), keepdims=0
            )
        mask = self.graph.floats("attention_mask")
        if pooling == "lasttoken":
            places = self.graph.floats(self.positions_from(1))
            last = self.graph.add("ReduceMax", self.graph.add("Mul", mask, places), self.graph.ints(1))  # [batch, 1]
            return self.weighted_sum(self.graph.floats(self.graph.add("Equal", places, last)), x)
        weights = mask
        if pooling == "weightedmean":
            weights = self.graph.add("Mul", mask, self.graph.floats(self.positions_from(1)))
        count = self.graph.add("ReduceSum", weights, self.graph.ints(1))  # [batch, 1]
        if pooling == "mean_sqrt_len_tokens":
            count = self.graph.add("Sqrt", count)
        return self.graph.add("Div", self.weighted_sum(weights, x), count)

    def weighted_sum(self, weights: str, x: str) -> str:
        """Return the sum over tokens with weights [batch, length], [batch, hidden]."""
        weights = self.graph.add("Unsqueeze", weights, self.graph.ints(1))  # [batch, 1, length]
        return self.graph.add("Squeeze", self.graph.add("MatMul", weights, x), self.graph.ints(1))

    def is_token(self) -> str:
        """Return False where there is padding, [batch, length, 1]."""
        is_token = self.graph.add("Cast", "attention_mask", to=TensorProto.BOOL)
        return self.graph.add("Unsqueeze", is_token, self.graph.ints(2))

    def classification_head(self, x: str) -> list[ValueInfoProto]:
        """Return one logit for each label."""
        logits = self.float_layer("classifier", self.pooled(x))
        return [self.output("logits", logits, "batch", len(self.weights["classifier.bias"]))]

    def multiple_choice_head(self, x: str) -> list[ValueInfoProto]:
        """Return one logit for each sequence."""
        logits = self.graph.add("Squeeze", self.float_layer("classifier", self.pooled(x)), self.graph.ints(1))
        return [self.output("logits", logits, "batch")]

    def tagging_head(self, x: str) -> list[ValueInfoProto]:
        """Return one logit for each label of each token."""
        logits = self.float_layer("classifier", self.token_states(x))
        return [self.output("logits", logits, "batch", "length", len(self.weights["classifier.bias"]))]

    def spans_head(self, x: str) -> list[ValueInfoProto]:
        """Return the logits of each token as start and as end of the answer."""
        logits = self.float_layer("qa_outputs", self.token_states(x))
        both = self.graph.add_many("Split", logits, self.graph.ints(1, 1), num_outputs=2, axis=-1)
        return [
            self.output(name, self.graph.add("Squeeze", logits, self.graph.ints(2)), "batch", "length")
            for name, logits in zip(("start_logits", "end_logits"), both, strict=True)
        ]

    def masked_lm_head(self, x: str) -> list[ValueInfoProto]:
        """Return one logit for each word of the vocabulary, for each token."""
        logits = self.graph.as_float32(self.decode(self.predicted_states(x)))
        return [self.output("logits", logits, "batch", "length", self.config.vocab_size)]

    def sparse_embedding_head(self, x: str) -> list[ValueInfoProto]:
        """Return one weight for each word of the vocabulary: log(1 + relu(logits)), or log(1 + that), pooled."""
        settings: SparseEmbeddingSettings = self.task.settings
        x, takes_max = self.predicted_states(x), settings.pooling == "max"
        if takes_max:
            # The largest logit has the largest weight. Padding repeats the first token: that changes no maximum, and
            # costs less than to mask logits.
            x = self.graph.add("Where", self.is_token(), x, self.first_token(x))
            logits = self.graph.add("ReduceMax", self.decode(x), self.graph.ints(1), keepdims=0)
        else:
            logits = self.decode(x)
        weights = self.graph.add("Relu", self.graph.as_float32(logits))
        for _ in range(1 if settings.activation == "relu" else 2):
            weights = self.graph.add("Log", self.graph.add("Add", weights, self.graph.constant(1)))
        if not takes_max:
            weights = self.weighted_sum(self.graph.floats("attention_mask"), weights)
        return [self.output(SPARSE_VECTOR, weights, "batch", self.config.vocab_size)]

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
        """Return the pooler's output, [batch, hidden]: a layer on [CLS], or on the mean over tokens."""
        return self.pooler(self.pool(x, "mean" if self.config.pools_mean else "cls"))

    def pooler(self, x: str) -> str:
        """Return a dense layer and its activation; with LayerNorm in families whose heads have one."""
        x = self.activation(self.config.pooler_act, self.float_layer("bert.pooler", x))
        return self.layer_norm("bert.pooler.norm", x) if self.config.has_prediction_head else x

    def token_states(self, x: str) -> str:
        """Return what heads over each token read, [batch, length, hidden]."""
        return self.pooler(x) if self.config.has_prediction_head else x

    def float_layer(self, name: str, x: str) -> str:
        """Return x W + b in floats, for layers too small to gain from int8."""
        matmul, bias = self.graph.add("MatMul", x, self.linear.weight(name)), self.linear.bias(name)
        return self.graph.add("Add", matmul, bias) if bias else matmul


HEADS: dict[str, Callable[[Heads, str], list[ValueInfoProto]]] = {
    "embedding": Heads.embedding_head,
    "classification": Heads.classification_head,
    "regression": Heads.classification_head,
    "multiple-choice": Heads.multiple_choice_head,
    "tagging": Heads.tagging_head,
    "spans": Heads.spans_head,
    "masked-lm": Heads.masked_lm_head,
    "sparse-embedding": Heads.sparse_embedding_head,
    "token-embedding": Heads.token_embedding_head,
}
"""Head of each task."""
