"""Variants of the encoder that the paper compares BERT with.

- Attention in one direction (as in GPT), or in both directions by two separate stacks of layers (as in ELMo): sections
  3.1 and 5.1 of Devlin et al. 2018, and "+ BiLSTM" of table 5.
- Heads over a combination of hidden states, with or without a BiLSTM: the feature-based approach, section 5.3 and
  table 7.

With two stacks, an output [B, L, 2 D] holds both states of a token side by side, and positions of masked tokens count
states: (row * length + column) * 2 + number of the stack.

Shape suffixes as in `training.model.encoder`, S for the hidden states that are combined, C for the size of the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tasks.schema import Bounds, check_choice
from training.model.config import SIZE, EncoderConfig
from training.model.encoder import Encoder, Layer, create_encoder, padding_mask

Direction = Literal["both", "left-to-right", "right-to-left", "concatenated"]
"""Direction of attention: to all tokens (BERT), to earlier ones, to later ones, or both in separate stacks."""
Combination = Literal["concat", "sum", "weighted"]
"""Concatenation, sum, or weighted mean; the weights are learned, a softmax that starts uniform."""


@dataclass(frozen=True, kw_only=True)
class AblationConfig(EncoderConfig):
    """Shape of a network that differs from BERT. `make_config` returns one only if it really differs."""

    direction: Direction = "both"
    state_layers: tuple[int, ...] = (-1,)
    """Layers whose hidden states the heads read: 0 for the embeddings, 1 for the first layer, -1 for the last."""
    state_combination: Combination = "concat"
    """Combination of several hidden states."""
    bilstm_size: Annotated[int, Bounds(least=0, most=SIZE.most)] = 0
    """Size of each direction of a BiLSTM of two layers below the head; 0 for none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "direction", get_args(Direction))
        check_choice(self, "state_combination", get_args(Combination))
        layers, top = self.state_layers, self.num_hidden_layers
        if not layers or not all(isinstance(layer, int) and -top - 1 <= layer <= top for layer in layers):
            raise ValueError(
                f"state_layers must be numbers from 0 (embeddings) to {top} (last layer), or from -1 down to "
                f"{-top - 1}: `{' '.join(map(str, layers))}`"
            )
        if len(set(self.layers_read)) < len(layers):
            raise ValueError(f"state_layers names a layer twice: `{' '.join(map(str, layers))}`")
        is_special = self.shares_layers or self.relative_attention_num_buckets
        if is_special and (self.direction != "both" or self.combines_states):
            raise ValueError(_refusal(self.model_type))

    @property
    def layers_read(self) -> tuple[int, ...]:
        """`state_layers`, counted from the embeddings, 0."""
        return tuple(layer % (self.num_hidden_layers + 1) for layer in self.state_layers)

    @property
    def combines_states(self) -> bool:
        """True if heads read anything but the last hidden state."""
        return self.layers_read != (self.num_hidden_layers,) or bool(self.bilstm_size)

    @property
    def stacks(self) -> tuple[Direction, ...]:
        """Direction of each stack of layers."""
        return ("left-to-right", "right-to-left") if self.direction == "concatenated" else (self.direction,)

    @property
    def output_directions(self) -> tuple[Direction, ...]:
        """Direction of each part of the output; the parts lie side by side."""
        if self.bilstm_size:
            return "left-to-right", "right-to-left"
        return self.stacks * (len(self.state_layers) if self.state_combination == "concat" else 1)

    @property
    def depth(self) -> int:
        return max(self.layers_read)

    @property
    def output_size(self) -> int:
        return (self.bilstm_size or self.hidden_size) * len(self.output_directions)


def make_config(**values: Any) -> EncoderConfig:
    """Return a config with these fields: an `EncoderConfig` if the network is a BERT, else an `AblationConfig`.

    Raises:
        ValueError: naming the field whose value is impossible.
    """
    config = AblationConfig(**values)
    if config.direction != "both" or config.combines_states:
        return config
    return EncoderConfig(**{field.name: getattr(config, field.name) for field in fields(EncoderConfig)})


def change_config(config: EncoderConfig, changes: Mapping[str, Any]) -> EncoderConfig:
    """Return a config with some fields changed, as `make_config` does.

    Raises:
        ValueError: for a field that this family of encoders does not have.
    """
    if not isinstance(config, AblationConfig) and type(config) is not EncoderConfig:
        if not all(hasattr(config, name) for name in changes):
            raise ValueError(_refusal(config.model_type))
        return replace(config, **changes)
    return make_config(**{field.name: getattr(config, field.name) for field in fields(config)} | dict(changes))


def _refusal(model_type: str) -> str:
    """Return the error message for an ablation of a family that has none."""
    return (
        f"a `{model_type}` cannot combine layers or run in one direction: leave out --layers, --combine, --bilstm and "
        "--direction, so that its head reads the last layer; a `bert`, `distilbert`, `roberta`, `xlm-roberta`, "
        "`camembert` or `electra` can"
    )


def without_combination(config: EncoderConfig) -> EncoderConfig:
    """Return a config whose heads read the last hidden state."""
    if not isinstance(config, AblationConfig):
        return config
    return change_config(config, {"state_layers": (-1,), "bilstm_size": 0})


def direction_of(config: EncoderConfig) -> Direction:
    """Return the direction of attention."""
    return config.direction if isinstance(config, AblationConfig) else "both"


def num_combined_layers(config: EncoderConfig) -> int:
    """Return the number of layers whose hidden states the heads read."""
    return len(config.state_layers) if isinstance(config, AblationConfig) else 1


def num_stacks(config: EncoderConfig) -> int:
    """Return the number of stacks of layers."""
    return len(config.stacks) if isinstance(config, AblationConfig) else 1


def num_bilstm_weights(config: EncoderConfig) -> int:
    """Return the number of parameters in the matrices of the BiLSTM: four gates, two directions, two layers."""
    if not isinstance(config, AblationConfig):
        return 0
    num_states = num_combined_layers(config) if config.state_combination == "concat" else 1
    size, input_size = config.bilstm_size, config.hidden_size * num_stacks(config) * num_states
    return 2 * 4 * size * ((input_size + size) + (2 * size + size))


class AblationEncoder(Encoder):
    """Encoder of an `AblationConfig`."""

    config: AblationConfig
    unpackable = "the layers of this network are combined or run in one direction"

    def __init__(self, config: AblationConfig, *, with_pooler: bool) -> None:
        super().__init__(config, with_pooler=False)
        others = (len(config.stacks) - 1) * config.num_hidden_layers
        self.layers.extend(Layer(config) for _ in range(others))
        self.states = (
            StateCombiner(
                config.hidden_size * len(config.stacks),
                len(config.layers_read),
                combination=config.state_combination,
                bilstm_size=config.bilstm_size,
            )
            if config.combines_states
            else None
        )
        if with_pooler:  # after the states: random weights are drawn in this order
            self.pooler = nn.Linear(config.output_size, config.hidden_size)
        for stack in self._stacks():
            stack[config.depth :].requires_grad_(False)  # not read; DDP requires a gradient for all that train

    def _stacks(self) -> list[nn.ModuleList]:
        depth = self.config.num_hidden_layers
        return [self.layers[number * depth : (number + 1) * depth] for number in range(len(self.config.stacks))]

    def forward(self, input_ids_BL: Tensor, attention_mask_BL: Tensor | None, token_type_ids_BL: Tensor) -> Tensor:
        """Return the output [B, L, output_size]."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            states = self._hidden_states(input_ids_BL, attention_mask_BL, token_type_ids_BL)
        return states[0] if self.states is None else self.states(states, attention_mask_BL)

    def _hidden_states(
        self, input_ids_BL: Tensor, attention_mask_BL: Tensor | None, token_type_ids_BL: Tensor
    ) -> list[Tensor]:
        """Return the hidden states to combine, [B, L, D] each; those of several stacks side by side."""
        layers_read = self.config.layers_read
        embeddings_BLD = self.embeddings(input_ids_BL, token_type_ids_BL)
        parts = []
        for stack, direction in zip(self._stacks(), self.config.stacks, strict=True):
            mask = directed_mask(attention_mask_BL, direction, input_ids_BL)
            found = {0: embeddings_BLD}
            x_BLD = embeddings_BLD
            for number, layer in enumerate(stack[: max(layers_read)], start=1):
                x_BLD = layer(x_BLD, mask)
                if number in layers_read:
                    found[number] = x_BLD
            parts.append([found[number] for number in layers_read])
        return parts[0] if len(parts) == 1 else [torch.cat(states, dim=-1) for states in zip(*parts, strict=True)]

    def pool(self, hidden_BLD: Tensor, attention_mask_BL: Tensor | None) -> Tensor:
        """Return the pooled output [B, D]: a tanh layer over [CLS]; from left to right, over the last token."""
        parts = []
        chunks = hidden_BLD.chunk(len(self.config.output_directions), dim=-1)
        for direction, part_BLD in zip(self.config.output_directions, chunks, strict=True):
            if direction != "left-to-right":
                parts.append(part_BLD[:, 0])
            elif attention_mask_BL is None:
                parts.append(part_BLD[:, -1])
            else:
                rows = torch.arange(len(part_BLD), device=part_BLD.device)
                parts.append(part_BLD[rows, attention_mask_BL.sum(-1) - 1])
        return torch.tanh(self.pooler(torch.cat(parts, dim=-1)))


def directed_mask(attention_mask_BL: Tensor | None, direction: Direction, input_ids_BL: Tensor) -> Tensor | None:
    """Return where each token may attend: bool, broadcast to [B, H, L, L]; None for everywhere."""
    tokens_B11L = padding_mask(attention_mask_BL)
    if direction == "both":
        return tokens_B11L
    length = input_ids_BL.shape[1]
    all_LL = torch.ones(length, length, dtype=torch.bool, device=input_ids_BL.device)
    allowed_LL = all_LL.tril() if direction == "left-to-right" else all_LL.triu()
    if tokens_B11L is None:
        return allowed_LL
    itself_LL = all_LL.tril().triu()  # padding attends to itself: a softmax over nothing is NaN
    return (allowed_LL & tokens_B11L) | itself_LL


class StateCombiner(nn.Module):
    """Combines hidden states, and runs a BiLSTM over the result if there is one.

    Args:
        size: size of a hidden state, D.
        num_states: number of hidden states, S.
        bilstm_size: size of each direction of the BiLSTM; 0 for none.
    """

    def __init__(self, size: int, num_states: int, *, combination: Combination, bilstm_size: int) -> None:
        super().__init__()
        self.combination = combination
        if combination == "weighted":
            self.weights = nn.Parameter(torch.zeros(num_states))
        size = size * num_states if combination == "concat" else size
        self.lstm = (
            nn.LSTM(size, bilstm_size, num_layers=2, bidirectional=True, batch_first=True) if bilstm_size else None
        )

    def forward(self, states_SBLD: Sequence[Tensor], attention_mask_BL: Tensor | None) -> Tensor:
        """Return the result [B, L, C]; it is meaningless at padding."""
        x_BLC = self._combine(states_SBLD)
        return x_BLC if self.lstm is None else self._run_lstm(x_BLC, attention_mask_BL)

    def _combine(self, states_SBLD: Sequence[Tensor]) -> Tensor:
        if self.combination == "concat":
            return torch.cat(list(states_SBLD), dim=-1)
        stacked_SBLD = torch.stack(list(states_SBLD))
        if self.combination == "sum":
            return stacked_SBLD.sum(0)
        return torch.einsum("s,sbld->bld", self.weights.softmax(0), stacked_SBLD)

    def _run_lstm(self, x_BLC: Tensor, attention_mask_BL: Tensor | None) -> Tensor:
        """Run on packed sequences, so that the backward direction starts at the last token, not in the padding."""
        assert self.lstm is not None
        length = x_BLC.shape[1]
        lengths_B = (
            torch.full((len(x_BLC),), length) if attention_mask_BL is None else attention_mask_BL.sum(-1).clamp(min=1)
        )
        packed = pack_padded_sequence(x_BLC, lengths_B.cpu(), batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=length)[0]


@create_encoder.register
def _(config: AblationConfig, *, with_pooler: bool) -> Encoder:
    return AblationEncoder(config, with_pooler=with_pooler)
