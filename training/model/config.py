"""Config of an encoder: its sizes, and the options in which families differ.

`training.model.encoder` computes the network, `export.graph` writes it as a graph, and `training.model.architectures`
reads its config from `config.json`. Families with further options have a subclass next to their layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from tasks.schema import Bounds, FieldError, check_bounds, check_choice, check_known_fields
from training.command_line.bounds import BELOW_ONE, NOT_NEGATIVE

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "gelu_fast": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}
"""Activation functions of feed-forward networks, by their names in Hugging Face's `config.json`."""
POOLER_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {**ACTIVATIONS, "tanh": torch.tanh}
"""Activation functions of poolers, heads and convolutions."""
SIZE = Bounds(least=1, most=10_000_000)
"""Bounds of one dimension; the number of elements of any tensor then fits into 64 bits."""


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """Config of an encoder. Fields are named as in Hugging Face's `config.json` of BERT.

    Raises:
        FieldError: naming the field whose value is impossible.
    """

    model_type: str = "bert"
    """Family, a key of `training.model.architectures.ARCHITECTURES`."""
    vocab_size: Annotated[int, SIZE] = 30522
    hidden_size: Annotated[int, SIZE] = 768
    num_hidden_layers: Annotated[int, Bounds(least=1, most=1000)] = 12
    num_attention_heads: Annotated[int, SIZE] = 12
    intermediate_size: Annotated[int, SIZE] = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: Annotated[float, BELOW_ONE] = 0.1
    attention_probs_dropout_prob: Annotated[float, BELOW_ONE] = 0.1
    max_position_embeddings: Annotated[int, SIZE] = 512
    type_vocab_size: Annotated[int, Bounds(least=0, most=SIZE.most)] = 2
    """Number of token types. With 1, all tokens have type 0; with 0, there are no embeddings of types."""
    initializer_range: Annotated[float, NOT_NEGATIVE] = 0.02
    layer_norm_eps: Annotated[float, Bounds(least=1e-30, most=1)] = 1e-12
    """Added to a variance in float32."""
    pad_token_id: Annotated[int, NOT_NEGATIVE] = 0
    embedding_size: Annotated[int, Bounds(least=0, most=SIZE.most)] = 0
    """Size of the embeddings, which are projected to `hidden_size` (ELECTRA); 0 for `hidden_size`."""
    skips_padding_positions: bool = False
    """Positions count the tokens that are not `pad_token_id`, from `pad_token_id` + 1 (RoBERTa)."""
    relative_attention_num_buckets: Annotated[int, Bounds(least=0, most=SIZE.most)] = 0
    """Buckets of distances with a learned bias on attention scores (MPNet); 0 for none."""
    pooler_act: str = "tanh"
    """Activation of the pooler."""
    prediction_act: str = ""
    """Activation of the head of masked LM; empty for `hidden_act`, or `pooler_act` with `has_prediction_head`."""
    shares_layers: bool = False
    """All layers have the same weights (ALBERT)."""

    # What families with custom layers override

    projects_embeddings_first: ClassVar[bool] = False
    """The projection of the embeddings stands before LayerNorm, and has no bias."""
    has_prediction_head: ClassVar[bool] = False
    """All heads begin with a dense layer, activation and LayerNorm."""
    num_feed_forward_matrices: ClassVar[int] = 2
    """Number of matrices of a feed-forward network; gated ones have three."""

    def __post_init__(self) -> None:
        check_known_fields(type(self), vars(self))
        check_bounds(self)
        check_choice(self, "hidden_act", ACTIVATIONS)
        check_choice(self, "pooler_act", POOLER_ACTIVATIONS)
        if self.hidden_size % self.num_attention_heads:
            raise FieldError(
                lambda named: (
                    f"{named('hidden_size')} `{self.hidden_size}` is not a multiple of "
                    f"{named('num_attention_heads')} `{self.num_attention_heads}`"
                )
            )
        if self.num_positions < 1:
            raise FieldError(
                lambda named: (
                    f"{named('max_position_embeddings')} `{self.max_position_embeddings}` leaves no row for a token"
                )
            )

    @property
    def num_positions(self) -> int:
        """Longest sequence, in tokens."""
        return self.max_position_embeddings - (self.pad_token_id + 1) * self.skips_padding_positions

    @property
    def head_size(self) -> int:
        """Size of an attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def width_of_embeddings(self) -> int:
        """Size of the embeddings before their projection."""
        return self.embedding_size or self.hidden_size

    @property
    def has_position_embeddings(self) -> bool:
        """True if positions have learned embeddings."""
        return True

    @property
    def masked_lm_act(self) -> str:
        """Activation of the head of masked LM."""
        return self.prediction_act or (self.pooler_act if self.has_prediction_head else self.hidden_act)

    @property
    def pools_mean(self) -> bool:
        """True if heads of classification read the mean over tokens instead of [CLS]."""
        return False

    @property
    def norm_bias(self) -> bool:
        """True if LayerNorm has biases."""
        return True

    @property
    def classifier_bias(self) -> bool:
        """True if the dense layer of heads has a bias."""
        return True

    @property
    def decoder_bias(self) -> bool:
        """True if the output layer of masked LM has a bias."""
        return True

    @property
    def num_layer_weights(self) -> int:
        """Number of layers with separate weights."""
        return 1 if self.shares_layers else self.num_hidden_layers

    @property
    def depth(self) -> int:
        """Number of layers below the output."""
        return self.num_hidden_layers

    @property
    def output_size(self) -> int:
        """Size of the output for each token."""
        return self.hidden_size

    @property
    def num_layer_passes(self) -> int:
        """Number of layers that each token passes."""
        return self.depth

    @property
    def num_further_weights(self) -> int:
        """Parameters in matrices between layers and head, which also train below a frozen encoder."""
        return 0

    def position_flops(self, length: int) -> int:
        """Return the forward FLOPs of a token for relative positions and convolutions, in sequences of this length."""
        return 0

    def with_dropout(self, dropout: float) -> EncoderConfig:
        """Return a copy with another dropout of hidden states and attention."""
        return replace(self, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
