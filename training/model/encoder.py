"""BERT in one file: embeddings, post-LN encoder, pooler, and the heads.

Devlin et al. 2018 (arXiv 1810.04805), section 3 and appendix A.2; details as in google-research/bert modeling.py, but
for GELU in its exact form, as Hugging Face checkpoints expect. Query, key and value are one matrix product here;
`training.checkpoint` translates to and from Hugging Face's names.

Shapes in names: B batch, L length, D hidden, H heads, K head size, V vocabulary, N masked positions of the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.ablations.model import Combination, HiddenStates
from training.bounds import BELOW_ONE, NOT_NEGATIVE, Bounds, check_numbers
from training.model import cpu

Direction = Literal["both", "left-to-right", "right-to-left", "concatenated"]
"""Both at once, as in BERT; one, as in GPT; or each in a stack of layers of its own, as in ELMo."""

_SIZE = Bounds(least=1, most=10_000_000)
"""No tensor has more numbers than can be counted then."""


@dataclass(frozen=True, kw_only=True)
class BertConfig:
    """The shape of the network; fields are named as in Hugging Face's `config.json`."""

    vocab_size: Annotated[int, _SIZE] = 30522
    hidden_size: Annotated[int, _SIZE] = 768
    num_hidden_layers: Annotated[int, Bounds(least=1, most=1000)] = 12
    num_attention_heads: Annotated[int, _SIZE] = 12
    intermediate_size: Annotated[int, _SIZE] = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: Annotated[float, BELOW_ONE] = 0.1
    attention_probs_dropout_prob: Annotated[float, BELOW_ONE] = 0.1
    max_position_embeddings: Annotated[int, _SIZE] = 512
    type_vocab_size: Annotated[int, _SIZE] = 2
    initializer_range: Annotated[float, NOT_NEGATIVE] = 0.02
    layer_norm_eps: Annotated[float, Bounds(least=1e-30, most=1)] = 1e-12
    """As float32 has it; added to a variance."""
    pad_token_id: int = 0
    direction: Direction = "both"
    """Where tokens look; anything but `both` is for ablations (section 5.1), and no BERT that transformers computes."""
    state_layers: tuple[int, ...] = (-1,)
    """Whose hidden states the heads take: 0 for the embeddings, then the layers from 1, or from the last, -1, down."""
    state_combination: Combination = "concat"
    """How several of them become one."""
    bilstm_size: Annotated[int, Bounds(least=0, most=_SIZE.most)] = 0
    """Size of each direction of a BiLSTM of two layers between them and the head; 0 for none."""

    def __post_init__(self) -> None:
        for item in fields(self):
            kind, value = type(item.default), getattr(self, item.name)
            if not isinstance(value, (int, float) if kind is float else kind) or isinstance(value, bool):
                raise ValueError(f"{item.name} must be of type {kind.__name__}: `{value}`")
        check_numbers(self, named=str)
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size `{self.hidden_size}` is not a multiple of "
                f"num_attention_heads `{self.num_attention_heads}`"
            )
        if self.hidden_act not in ACTIVATIONS:
            raise ValueError(f"unknown hidden_act: `{self.hidden_act}` (one of: {', '.join(ACTIVATIONS)})")
        if self.direction not in get_args(Direction):
            raise ValueError(f"unknown direction: `{self.direction}` (one of: {', '.join(get_args(Direction))})")
        if self.state_combination not in get_args(Combination):
            allowed = ", ".join(get_args(Combination))
            raise ValueError(f"unknown state_combination: `{self.state_combination}` (one of: {allowed})")
        self._check_layers()

    def _check_layers(self) -> None:
        given, top = self.state_layers, self.num_hidden_layers
        if not given or not all(isinstance(layer, int) and -top - 1 <= layer <= top for layer in given):
            raise ValueError(
                f"state_layers lie from 0 (embeddings) to {top} (last layer), or from -1 down to {-top - 1}: "
                f"`{' '.join(map(str, given))}`"
            )
        if len(set(self.states_read)) < len(given):
            raise ValueError(f"state_layers names a layer twice: `{' '.join(map(str, given))}`")

    @property
    def states_read(self) -> tuple[int, ...]:
        """`state_layers` counted from the embeddings, 0."""
        return tuple(layer % (self.num_hidden_layers + 1) for layer in self.state_layers)

    @property
    def is_plain(self) -> bool:
        """Whether this is BERT, and not a network for comparison with it."""
        return self.direction == "both" and not self.combines_states

    @property
    def combines_states(self) -> bool:
        """Whether heads take anything but the last hidden state."""
        return self.states_read != (self.num_hidden_layers,) or bool(self.bilstm_size)

    @property
    def directions(self) -> tuple[Direction, ...]:
        """Of each stack of layers."""
        return ("left-to-right", "right-to-left") if self.direction == "concatenated" else (self.direction,)

    @property
    def state_directions(self) -> tuple[Direction, ...]:
        """Of the parts that lie side by side in what the heads take of a token."""
        if self.bilstm_size:
            return "left-to-right", "right-to-left"
        return self.directions * (len(self.state_layers) if self.state_combination == "concat" else 1)

    @property
    def output_size(self) -> int:
        """Size of what the heads take of a token."""
        return (self.bilstm_size or self.hidden_size) * len(self.state_directions)


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "relu": F.relu,
}


class Dropout(nn.Dropout):
    """Dropout, on CPUs with cheaper random numbers than PyTorch's."""

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu" or not (self.training and self.p):
            return super().forward(x)
        return x * cpu.keep_mask(x.shape, self.p, x.dtype) * (1 / (1 - self.p))

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """residual + dropout(x)"""
        if x.device.type != "cpu" or not (self.training and self.p):
            return residual + super().forward(x)
        return torch.addcmul(residual, x, cpu.keep_mask(x.shape, self.p, x.dtype), value=1 / (1 - self.p))


class Embeddings(nn.Module):
    """Sum of word, position and token type embeddings, normalised."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.word = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, input_ids_BL: Tensor, token_type_ids_BL: Tensor) -> Tensor:
        position_LD = self.position.weight[: input_ids_BL.shape[1]]
        return self.dropout(self.norm(self.word(input_ids_BL) + self.token_type(token_type_ids_BL) + position_LD))


class Layer(nn.Module):
    """Self-attention and feed-forward network, each followed by dropout, residual and LayerNorm (post-LN)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.num_heads = config.num_attention_heads
        self.attention_dropout = config.attention_probs_dropout_prob
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.attention_output = nn.Linear(hidden, hidden)
        self.attention_norm = nn.LayerNorm(hidden, eps=config.layer_norm_eps)
        self.intermediate = nn.Linear(hidden, config.intermediate_size)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.output = nn.Linear(config.intermediate_size, hidden)
        self.output_norm = nn.LayerNorm(hidden, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, x_BLD: Tensor, mask_B11L: Tensor | None) -> Tensor:
        y_BLD = self.attention_output(self._attend(x_BLD, mask_B11L))
        x_BLD = self.attention_norm(self.dropout.add(y_BLD, x_BLD))
        y_BLD = self.output(self.activation(self.intermediate(x_BLD)))
        return self.output_norm(self.dropout.add(y_BLD, x_BLD))

    def _attend(self, x_BLD: Tensor, mask_B11L: Tensor | None) -> Tensor:
        batch, length, hidden = x_BLD.shape
        qkv_BL3HK = self.qkv(x_BLD).view(batch, length, 3, self.num_heads, hidden // self.num_heads)
        qkv_3BHLK = qkv_BL3HK.permute(2, 0, 3, 1, 4)
        dropout = self.attention_dropout if self.training else 0.0
        if self.training and x_BLD.device.type == "cpu":
            context_BHLK = cpu.attention(qkv_3BHLK, mask_B11L, dropout)
        else:
            q, k, v = qkv_3BHLK.unbind(0)
            context_BHLK = F.scaled_dot_product_attention(q, k, v, attn_mask=mask_B11L, dropout_p=dropout)
        return context_BHLK.transpose(1, 2).reshape(batch, length, hidden)


class Bert(nn.Module):
    """The encoder that all heads share."""

    def __init__(self, config: BertConfig, *, with_pooler: bool) -> None:
        super().__init__()
        self.embeddings = Embeddings(config)
        num_layers = config.num_hidden_layers * len(config.directions)
        self.layers = nn.ModuleList(Layer(config) for _ in range(num_layers))
        self.directions = config.directions
        self.state_directions = config.state_directions
        self.states_read = config.states_read
        self.frozen = False
        size = config.hidden_size * len(config.directions)
        self.states = (
            HiddenStates(size, len(self.states_read), config.state_combination, config.bilstm_size)
            if config.combines_states
            else None
        )
        if with_pooler:
            self.pooler = nn.Linear(config.output_size, config.hidden_size)
        for stack in self.stacks():
            stack[max(self.states_read) :].requires_grad_(False)  # nobody reads them, and DDP asks that all are used

    def stacks(self) -> list[nn.ModuleList]:
        """The layers of each direction."""
        depth = len(self.layers) // len(self.directions)
        return [self.layers[number * depth : (number + 1) * depth] for number in range(len(self.directions))]

    def freeze(self) -> None:
        """Let embeddings and layers be as they are: without gradients, and without dropout."""
        self.frozen = True
        self.embeddings.requires_grad_(False)
        self.layers.requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> Bert:
        super().train(mode)
        if self.frozen:
            self.embeddings.eval()
            self.layers.eval()
        return self

    def forward(self, input_ids_BL: Tensor, attention_mask_BL: Tensor | None, token_type_ids_BL: Tensor) -> Tensor:
        """What the heads take: the last hidden state [B, L, D], or what is made of several [B, L, output_size].

        Args:
            attention_mask_BL: 1 for tokens and 0 for padding; None for no padding.
        """
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            states = self._hidden_states(input_ids_BL, attention_mask_BL, token_type_ids_BL)
        return states[0] if self.states is None else self.states(states, attention_mask_BL)

    def _hidden_states(
        self, input_ids_BL: Tensor, attention_mask_BL: Tensor | None, token_type_ids_BL: Tensor
    ) -> list[Tensor]:
        """The states that are read, [B, L, D] each; of several stacks side by side."""
        embeddings_BLD = self.embeddings(input_ids_BL, token_type_ids_BL)
        parts = []
        for stack, direction in zip(self.stacks(), self.directions, strict=True):
            mask = attention_pattern(attention_mask_BL, direction, input_ids_BL)
            found = {0: embeddings_BLD}
            x_BLD = embeddings_BLD
            for number, layer in enumerate(stack[: max(self.states_read)], start=1):
                x_BLD = layer(x_BLD, mask)
                if number in self.states_read:
                    found[number] = x_BLD
            parts.append([found[number] for number in self.states_read])
        return parts[0] if len(parts) == 1 else [torch.cat(states, dim=-1) for states in zip(*parts, strict=True)]

    def pool(self, hidden_BLD: Tensor, attention_mask_BL: Tensor | None) -> Tensor:
        """The pooled output [B, D]: a tanh layer over [CLS], or over the last token where that is what sees all."""
        parts = []
        chunks = hidden_BLD.chunk(len(self.state_directions), dim=-1)
        for direction, part_BLD in zip(self.state_directions, chunks, strict=True):
            if direction != "left-to-right":
                parts.append(part_BLD[:, 0])
            elif attention_mask_BL is None:
                parts.append(part_BLD[:, -1])
            else:
                rows = torch.arange(len(part_BLD), device=part_BLD.device)
                parts.append(part_BLD[rows, attention_mask_BL.sum(-1) - 1])
        return torch.tanh(self.pooler(torch.cat(parts, dim=-1)))


def attention_pattern(attention_mask_BL: Tensor | None, direction: Direction, input_ids_BL: Tensor) -> Tensor | None:
    """Where each token may look: bool, broadcast to [B, H, L, L]; None for everywhere."""
    tokens_B11L = None if attention_mask_BL is None else attention_mask_BL.bool()[:, None, None, :]
    if direction == "both":
        return tokens_B11L
    length = input_ids_BL.shape[1]
    all_LL = torch.ones(length, length, dtype=torch.bool, device=input_ids_BL.device)
    pattern_LL = all_LL.tril() if direction == "left-to-right" else all_LL.triu()
    if tokens_B11L is None:
        return pattern_LL
    return (
        pattern_LL & tokens_B11L
    ) | all_LL.tril().triu()  # padding looks at itself, so that there is no empty softmax


class BertModel(nn.Module):
    """A network with a head. Calling it with `input_ids`, `attention_mask`, `token_type_ids` gives outputs by name."""

    architecture = "BertModel"
    with_pooler = True

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.bert = Bert(config, with_pooler=self.with_pooler)

    @torch.no_grad()
    def initialize(self) -> BertModel:
        """Draw the weights that there are none of (those on the meta device) as the reference code does.

        Matrices come from a truncated normal; biases are zero, and the weights of LayerNorm one.
        """
        for module in self.modules():
            if any(parameter.is_meta for parameter in module.parameters(recurse=False)):
                module.to_empty(device="cpu", recurse=False)
                if isinstance(module, nn.LSTM):
                    module.reset_parameters()  # PyTorch's own: BERT's is not made for gates
                    continue
                for name, parameter in module.named_parameters(recurse=False):
                    if parameter.dim() > 1:
                        std = self.config.initializer_range
                        nn.init.trunc_normal_(parameter, std=std, a=-2 * std, b=2 * std)
                    else:
                        parameter.fill_(1.0 if name == "weight" else 0.0)
        return self

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor) -> dict[str, Tensor]:
        hidden_BLD = self.bert(input_ids, attention_mask, token_type_ids)
        return {"last_hidden_state": hidden_BLD, "pooler_output": self.bert.pool(hidden_BLD, attention_mask)}


class MaskedLMHead(nn.Module):
    """Dense layer, GELU, LayerNorm, then the word embeddings as output matrix, with a bias of their own."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, hidden: Tensor, word_embeddings_VD: Tensor) -> Tensor:
        return F.linear(self.norm(self.activation(self.dense(hidden))), word_embeddings_VD, self.bias)


class BertForPreTraining(BertModel):
    """Masked LM and next sentence prediction. Logits over the vocabulary are computed where they are asked for."""

    architecture = "BertForPreTraining"

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.mlm = MaskedLMHead(config)
        self.nsp = nn.Linear(config.hidden_size, 2)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        token_type_ids: Tensor,
        masked_positions_N: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Logits.

        Args:
            masked_positions_N: flat positions, row * length + column (with two stacks of layers, that times two, plus
                the number of the stack); None for all.

        Returns:
            `logits` [N, V], or [B, L, V] without positions; `nsp_logits` [B, 2], 0 for "is next".
        """
        hidden_BLD = self.bert(input_ids, attention_mask, token_type_ids)
        states = (
            hidden_BLD
            if masked_positions_N is None
            else hidden_BLD.reshape(-1, self.config.hidden_size)[masked_positions_N]
        )
        logits = self.mlm(states, self.bert.embeddings.word.weight)
        return {"logits": logits, "nsp_logits": self.nsp(self.bert.pool(hidden_BLD, attention_mask))}


class BertForSequenceClassification(BertModel):
    """A linear layer over the pooled output, after dropout."""

    architecture = "BertForSequenceClassification"

    def __init__(self, config: BertConfig, num_labels: int) -> None:
        super().__init__(config)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, num_labels)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor) -> dict[str, Tensor]:
        pooled_BD = self.bert.pool(self.bert(input_ids, attention_mask, token_type_ids), attention_mask)
        return {"logits": self.classifier(self.dropout(pooled_BD))}


class BertForQuestionAnswering(BertModel):
    """A start and an end logit for each token (section 4.2 of the paper)."""

    architecture = "BertForQuestionAnswering"
    with_pooler = False

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.qa_outputs = nn.Linear(config.output_size, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor) -> dict[str, Tensor]:
        start_BL, end_BL = self.qa_outputs(self.bert(input_ids, attention_mask, token_type_ids)).unbind(-1)
        return {"start_logits": start_BL, "end_logits": end_BL}


class BertForSequenceRegression(BertForSequenceClassification):
    """One number for a sequence: to Hugging Face, a classifier with a single label."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config, num_labels=1)


class BertForMultipleChoice(BertModel):
    """A logit for each sequence; the softmax over the choices of an example is left to who knows them (section 4.4)."""

    architecture = "BertForMultipleChoice"

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, 1)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor) -> dict[str, Tensor]:
        pooled_BD = self.bert.pool(self.bert(input_ids, attention_mask, token_type_ids), attention_mask)
        return {"logits": self.classifier(self.dropout(pooled_BD)).squeeze(-1)}


class BertForTokenClassification(BertModel):
    """A linear layer over the last hidden state of each token, after dropout (section 5.3)."""

    architecture = "BertForTokenClassification"
    with_pooler = False

    def __init__(self, config: BertConfig, num_labels: int) -> None:
        super().__init__(config)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.classifier = nn.Linear(config.output_size, num_labels)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor) -> dict[str, Tensor]:
        hidden_BLD = self.bert(input_ids, attention_mask, token_type_ids)
        return {"logits": self.classifier(self.dropout(hidden_BLD))}
