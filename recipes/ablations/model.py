"""Networks that the paper compares BERT with, as a separate family: `bert-ablation`.

- Attention in one direction (as in GPT), or in both directions by two separate stacks of layers (as in ELMo): sections
  3.1 and 5.1 of Devlin et al. 2018, and "+ BiLSTM" of table 5.
- Heads over a combination of hidden states, with or without a BiLSTM: the feature-based approach, section 5.3 and
  table 7.

With two stacks, an output [B, L, 2 D] holds both states of a token side by side, and positions of predicted tokens
count states: (row * length + column) * 2 + number of the stack. `register` makes the family known to the stages;
transformers and the export do not know it.

Shape suffixes as in `training.model.encoder`, S for the hidden states that are combined, C for the size of the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tasks.schema import Bounds
from training.model.architectures import ARCHITECTURES, bert
from training.model.architectures.base import Architecture
from training.model.config import SIZE, EncoderConfig
from training.model.encoder import Encoder, Layer, create_encoder, padding_mask

MODEL_TYPE = "bert-ablation"
Direction = Literal["both", "left-to-right", "right-to-left", "concatenated"]
"""Direction of attention: to all tokens (BERT), to earlier ones, to later ones, or both in separate stacks."""
Combination = Literal["concat", "sum", "weighted"]
"""Concatenation, sum, or weighted mean; the weights are learned, a softmax that starts uniform."""


@dataclass(frozen=True, kw_only=True)
class AblationConfig(EncoderConfig):
    """Shape of a network that differs from BERT. `with_changes` returns one only if it really differs."""

    model_type: str = MODEL_TYPE
    direction: Direction = "both"
    state_layers: tuple[int, ...] = (-1,)
    """Layers whose hidden states the heads read: 0 for the embeddings, 1 for the first layer, -1 for the last."""
    state_combination: Combination = "concat"
    """Combination of several hidden states."""
    bilstm_size: Annotated[int, Bounds(least=0, most=SIZE.most)] = 0
    """Size of each direction of a BiLSTM of two layers below the head; 0 for none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        layers, top = self.state_layers, self.num_hidden_layers
        if not layers or not all(isinstance(layer, int) and -top - 1 <= layer <= top for layer in layers):
            raise ValueError(
                f"state_layers must be numbers from 0 (embeddings) to {top} (last layer), or from -1 down to "
                f"{-top - 1}: `{' '.join(map(str, layers))}`"
            )

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

    @property
    def num_layer_passes(self) -> int:
        return self.depth * len(self.stacks)

    @property
    def num_further_weights(self) -> int:
        """Parameters in the matrices of the BiLSTM: four gates, two directions, two layers."""
        num_states = len(self.state_layers) if self.state_combination == "concat" else 1
        size, input_size = self.bilstm_size, self.hidden_size * len(self.stacks) * num_states
        return 2 * 4 * size * ((input_size + size) + (2 * size + size))


def with_changes(config: EncoderConfig, changes: Mapping[str, Any]) -> EncoderConfig:
    """Return a config with some fields changed: that of a BERT if the network is one, else an `AblationConfig`.

    Raises:
        ValueError: naming a field whose value is impossible, or a family that has no ablations.
    """
    if config.model_type not in ("bert", MODEL_TYPE):
        raise ValueError(f"ablations change a `bert`, not a `{config.model_type}`; give another checkpoint")
    changed = AblationConfig(**asdict(config) | {"model_type": MODEL_TYPE} | dict(changes))
    if changed.direction != "both" or changed.combines_states:
        return changed
    shared = {field.name: getattr(changed, field.name) for field in fields(EncoderConfig)}
    return EncoderConfig(**shared | {"model_type": "bert"})


class AblationEncoder(Encoder):
    """Encoder of an `AblationConfig`."""

    config: AblationConfig
    unpackable = "the layers of this network are combined or run in one direction"
    new_parts = ("bert.states.",)

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
        layers_read, parts = self.config.layers_read, []
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            embeddings_BLD = self.embeddings(input_ids_BL, token_type_ids_BL)
            for stack, direction in zip(self._stacks(), self.config.stacks, strict=True):
                mask = directed_mask(attention_mask_BL, direction, input_ids_BL)
                outputs = [embeddings_BLD]
                for layer in stack[: max(layers_read)]:
                    outputs.append(layer(outputs[-1], mask))
                parts.append([outputs[number] for number in layers_read])
            states = parts[0]
            if len(parts) > 1:  # those of several stacks lie side by side
                states = [torch.cat(stacked, dim=-1) for stacked in zip(*parts, strict=True)]
        return states[0] if self.states is None else self.states(states, attention_mask_BL)

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


class BiLstm(nn.LSTM):
    """LSTM that keeps PyTorch's initial weights: BERT's are not made for gates."""

    def draw_weights(self) -> None:
        """Draw the initial weights."""
        self.reset_parameters()


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
            BiLstm(size, bilstm_size, num_layers=2, bidirectional=True, batch_first=True) if bilstm_size else None
        )

    def forward(self, states_SBLD: Sequence[Tensor], attention_mask_BL: Tensor | None) -> Tensor:
        """Return the result [B, L, C]; it is meaningless at padding."""
        if self.combination == "concat":
            x_BLC = torch.cat(list(states_SBLD), dim=-1)
        elif self.combination == "sum":
            x_BLC = torch.stack(list(states_SBLD)).sum(0)
        else:
            x_BLC = torch.einsum("s,sbld->bld", self.weights.softmax(0), torch.stack(list(states_SBLD)))
        if self.lstm is None:
            return x_BLC
        length, lengths_B = x_BLC.shape[1], torch.full((len(x_BLC),), x_BLC.shape[1])
        if attention_mask_BL is not None:
            lengths_B = attention_mask_BL.sum(-1).clamp(min=1)
        # Packed, so that the backward direction starts at the last token, not in the padding.
        packed = pack_padded_sequence(x_BLC, lengths_B.cpu(), batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=length)[0]


@create_encoder.register
def _(config: AblationConfig, *, with_pooler: bool) -> Encoder:
    return AblationEncoder(config, with_pooler=with_pooler)


class AblationArchitecture(Architecture):
    """Layout of checkpoints: BERT's, and the weights over hidden states under our names."""

    def read_config(self, values: Mapping[str, Any]) -> EncoderConfig:
        """Return the config that `config.json` describes."""
        return super().read_config({**values, "state_layers": tuple(values.get("state_layers", (-1,)))})

    def from_hugging_face(self, weights: Mapping[str, Tensor], num_layers: int, task: str = "") -> dict[str, Tensor]:
        """Return the weights under our names."""
        return super().from_hugging_face(weights, num_layers, task) | _states_of(weights)

    def check_weights(self, weights: Mapping[str, Tensor], num_layers: int, task: str) -> None:
        """Check the weights but those over hidden states."""
        known = _states_of(weights)
        others = {name: value for name, value in weights.items() if name not in known}
        super().check_weights(others, num_layers, task)


def _states_of(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value for name, value in weights.items() if name.startswith(AblationEncoder.new_parts)}


def register() -> None:
    """Make the family known to the stages in this process."""
    values = {item.name: getattr(bert.ARCHITECTURE, item.name) for item in fields(Architecture)}
    ARCHITECTURES[MODEL_TYPE] = AblationArchitecture(
        **values | {"model_type": MODEL_TYPE, "config_type": AblationConfig}
    )
