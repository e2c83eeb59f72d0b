"""Parts of the graph writer that layers unlike BERT's share with it."""

from __future__ import annotations

from typing import Protocol

from export.builder import GraphBuilder
from export.linear import LinearLayers
from export.network import Weights
from export.variant import GraphVariant


class Writer(Protocol):
    """Graph writer, as layers unlike BERT's see it; methods return the names of values."""

    weights: Weights
    graph: GraphBuilder
    linear: LinearLayers
    variant: GraphVariant
    mask: str
    reads_only_cls: bool

    def separate_qkv(self, qkv: str, queries: str, x: str) -> tuple[str, str, str]:
        """Return query, key and value, each from a separate matrix product."""

    def split_last(self, qkv: str) -> tuple[str, ...]:
        """Split the last axis into query, key and value."""

    def attend(self, q: str, k: str, v: str, mask: str) -> str:
        """Return the weighted means of values, [..., heads, queries, size]."""

    def merge_heads(self, context: str) -> str:
        """Join the last two axes, heads and size."""

    def after_attention(self, name: str, context: str, queries: str) -> str:
        """Return the output of a layer from its attended values and its input."""

    def activation(self, name: str, x: str) -> str:
        """Return the activation function of that name."""

    def add_and_norm(self, norm: str, x: str, residual: str) -> str:
        """Return LayerNorm of the sum."""

    def layer_norm(self, norm: str, x: str) -> str:
        """Return LayerNorm with the weights of that name."""

    def norm_weights(self, norm: str) -> tuple[str, ...]:
        """Return the scale of a LayerNorm, and its bias if it has one."""

    def first_token(self, x: str) -> str:
        """Return the state of [CLS] with its axis."""

    def length(self) -> str:
        """Return the length of the sequences, [1] int64."""

    def weight(self, name: str) -> str:
        """Add a weight."""
