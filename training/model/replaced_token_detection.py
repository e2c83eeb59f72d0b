"""Replaced token detection: BERT learns from every token which ones a small masked LM has put in another's place.

Clark et al. 2020, ELECTRA (arXiv 2003.10555), section 2. The generator is a masked LM with few layers of its own over
the embeddings of the network it is for; what it draws stands in the place of the masked tokens, and the network tells
for every token whether it is the original one. Generator and detector head are left behind when training is over.

Shapes in names: as in `training.model.encoder`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from training.model.encoder import ACTIVATIONS, BertConfig, BertForPreTraining, Layer, MaskedLMHead, attention_pattern


class Generator(nn.Module):
    """A masked LM over somebody else's embeddings."""

    def __init__(self, config: BertConfig, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(config) for _ in range(num_layers))
        self.head = MaskedLMHead(config)

    def forward(
        self, embeddings_BLD: Tensor, mask_B11L: Tensor | None, positions_N: Tensor, word_embeddings_VD: Tensor
    ) -> Tensor:
        """Logits [N, V]."""
        x_BLD = embeddings_BLD
        for layer in self.layers:
            x_BLD = layer(x_BLD, mask_B11L)
        return self.head(x_BLD.flatten(0, 1)[positions_N], word_embeddings_VD)


class Detector(nn.Module):
    """Whether a token is a replaced one: dense layer, GELU, one logit."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.output = nn.Linear(config.hidden_size, 1)

    def forward(self, hidden_BLD: Tensor) -> Tensor:
        """Logits [B, L]."""
        return self.output(self.activation(self.dense(hidden_BLD))).squeeze(-1)


class BertForReplacedTokens(BertForPreTraining):
    """BERT beside a generator that learns with it. Called without labels, it is BERT alone.

    Args:
        generator_layers: how many.
    """

    def __init__(self, config: BertConfig, *, generator_layers: int) -> None:
        if generator_layers > config.num_hidden_layers:
            raise ValueError(
                f"generator_layers `{generator_layers}` is above num_hidden_layers `{config.num_hidden_layers}`: "
                "a generator starts as the lowest layers of its network"
            )
        super().__init__(config)
        self.generator = Generator(config, generator_layers)
        self.detector = Detector(config)

    @classmethod
    def around(cls, model: BertForPreTraining, *, generator_layers: int) -> BertForReplacedTokens:
        """A network with the weights of another; its generator starts as a copy of the lowest layers and the head."""
        with torch.device("meta"):
            made = cls(model.config, generator_layers=generator_layers)
        weights = model.state_dict()
        copies = {
            **{f"generator.{name.removeprefix('bert.')}": value for name, value in weights.items()},
            **{f"generator.head.{name.removeprefix('mlm.')}": v for name, v in weights.items() if name[:4] == "mlm."},
        }
        wanted = made.state_dict().keys()
        weights |= {name: value.clone() for name, value in copies.items() if name in wanted}
        made.load_state_dict(weights, strict=False, assign=True)
        made.initialize()
        return made

    def alone(self) -> BertForPreTraining:
        """BERT, with the same weights."""
        with torch.device("meta"):
            made = BertForPreTraining(self.config)
        weights = self.state_dict()
        made.load_state_dict({name: weights[name] for name in made.state_dict()}, assign=True)
        return made

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        token_type_ids: Tensor,
        masked_positions_N: Tensor | None = None,
        masked_labels_N: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """As the masked LM; with labels, what all parts make of a batch.

        Args:
            masked_labels_N: the tokens that stood in the masked positions; below 0 for positions that do not count.

        Returns:
            `generator_logits` [N, V]; `detector_logits` and `is_replaced` [B, L]; of the text with the tokens drawn,
            `logits` [N, V] and `nsp_logits` [B, 2].
        """
        if masked_positions_N is None or masked_labels_N is None:
            return super().forward(input_ids, attention_mask, token_type_ids, masked_positions_N)
        words_VD = self.bert.embeddings.word.weight
        generator_logits = self.generator(
            self.bert.embeddings(input_ids, token_type_ids),
            attention_pattern(attention_mask, "both", input_ids),
            masked_positions_N,
            words_VD,
        )
        drawn_N = draw(generator_logits.detach())
        filled, is_replaced = _filled(input_ids, masked_positions_N, masked_labels_N, drawn_N)
        hidden_BLD = self.bert(filled, attention_mask, token_type_ids)
        return {
            "generator_logits": generator_logits,
            "detector_logits": self.detector(hidden_BLD),
            "is_replaced": is_replaced,
            "logits": self.mlm(hidden_BLD.flatten(0, 1)[masked_positions_N], words_VD),
            "nsp_logits": self.nsp(self.bert.pool(hidden_BLD, attention_mask)),
        }


def _filled(input_ids: Tensor, positions_N: Tensor, labels_N: Tensor, drawn_N: Tensor) -> tuple[Tensor, Tensor]:
    """The text with the tokens drawn [B, L], and where these are not those that stood there [B, L].

    Rows that do not count are taken to a place behind the text, so that shapes do not depend on the data.
    """
    size = input_ids.numel()
    places_N = torch.where(labels_N >= 0, positions_N, size)
    filled = torch.cat([input_ids.flatten(), input_ids.new_zeros(1)])
    filled = filled.index_copy(0, places_N, drawn_N.to(input_ids.dtype))
    is_replaced = torch.zeros_like(filled, dtype=torch.bool).index_copy(0, places_N, drawn_N != labels_N)
    return filled[:size].view_as(input_ids), is_replaced[:size].view_as(input_ids)


def draw(logits_NV: Tensor) -> Tensor:
    """A token [N] for each row, by its probability: where a random number falls among the sums of probabilities."""
    sums_NV = logits_NV.float().softmax(-1).cumsum(-1)
    numbers_N1 = torch.rand(len(sums_NV), 1, device=sums_NV.device) * sums_NV[:, -1:]
    return torch.searchsorted(sums_NV, numbers_N1, right=True).squeeze(-1).clamp(max=logits_NV.shape[-1] - 1)
