"""Replaced-token detection: BERT learns from every token whether a small masked LM has replaced it.

Clark et al. 2020, ELECTRA (arXiv 2003.10555), section 2. The generator is a masked LM: a few separate layers over the
embeddings that it shares with BERT. Its samples replace the masked tokens, and the discriminator predicts for each
token whether it was replaced. Generator and discriminator are dropped after training.

Shape suffixes as in `training.model.heads`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from training.model.config import ACTIVATIONS, EncoderConfig
from training.model.encoder import Layer, padding_mask
from training.model.heads import BertForPreTraining, MaskedLMHead


class Generator(nn.Module):
    """A masked LM over the embeddings of another network."""

    def __init__(self, config: EncoderConfig, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(config) for _ in range(num_layers))
        self.head = MaskedLMHead(config)

    def forward(
        self, embeddings_BLD: Tensor, mask_B11L: Tensor | None, positions_N: Tensor, word_embeddings_VD: Tensor
    ) -> Tensor:
        """Return logits [N, V]."""
        x_BLD = embeddings_BLD
        for layer in self.layers:
            x_BLD = layer(x_BLD, mask_B11L)
        return self.head(x_BLD.flatten(0, 1)[positions_N], word_embeddings_VD)


class Discriminator(nn.Module):
    """Classifier of replaced tokens: dense layer, activation, one logit."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.output = nn.Linear(config.hidden_size, 1)

    def forward(self, hidden_BLD: Tensor) -> Tensor:
        """Return logits [B, L]."""
        return self.output(self.activation(self.dense(hidden_BLD))).squeeze(-1)


class BertForReplacedTokenDetection(BertForPreTraining):
    """BERT with a generator that is trained with it. Without labels, it computes what BERT alone does."""

    def __init__(self, config: EncoderConfig, *, generator_layers: int) -> None:
        if type(config) is not EncoderConfig:
            raise ValueError(
                f"replaced-token detection needs BERT's layers, which `{config.model_type}` does not have; "
                "leave out --objective, to train masked-lm"
            )
        if generator_layers > config.num_hidden_layers:
            raise ValueError(
                f"generator_layers `{generator_layers}` is above num_hidden_layers `{config.num_hidden_layers}`: "
                "the generator starts as a copy of the lowest layers"
            )
        super().__init__(config)
        self.generator = Generator(config, generator_layers)
        self.discriminator = Discriminator(config)

    @classmethod
    def from_pretraining(cls, model: BertForPreTraining, *, generator_layers: int) -> BertForReplacedTokenDetection:
        """Return a network with the weights of another; the generator copies its lowest layers and masked LM head."""
        with torch.device("meta"):
            network = cls(model.config, generator_layers=generator_layers)
        weights = model.state_dict()
        copies = {
            **{f"generator.{name.removeprefix('bert.')}": value for name, value in weights.items()},
            **{f"generator.head.{name.removeprefix('mlm.')}": v for name, v in weights.items() if name[:4] == "mlm."},
        }
        wanted = network.state_dict().keys()
        weights |= {name: value.clone() for name, value in copies.items() if name in wanted}
        network.load_state_dict(weights, strict=False, assign=True)
        network.initialize()
        return network

    def to_pretraining(self) -> BertForPreTraining:
        """Return BERT without generator and discriminator, with the same weights."""
        with torch.device("meta"):
            model = BertForPreTraining(self.config)
        weights = self.state_dict()
        model.load_state_dict({name: weights[name] for name in model.state_dict()}, assign=True)
        return model

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        token_type_ids: Tensor,
        masked_positions_N: Tensor | None = None,
        masked_labels_N: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Compute BERT's outputs; with labels, those of all parts.

        Args:
            masked_labels_N: original tokens at the masked positions; negative for positions to ignore.

        Returns:
            `generator_logits` [N, V]; `discriminator_logits` and `is_replaced` [B, L]; and for the text with
            replaced tokens, `logits` [N, V] and `nsp_logits` [B, 2].
        """
        if masked_positions_N is None or masked_labels_N is None:
            return super().forward(input_ids, attention_mask, token_type_ids, masked_positions_N)
        words_VD = self.bert.embeddings.word.weight
        generator_logits = self.generator(
            self.bert.embeddings(input_ids, token_type_ids), padding_mask(attention_mask), masked_positions_N, words_VD
        )
        samples_N = sample(generator_logits.detach())
        replaced, is_replaced = _replace(input_ids, masked_positions_N, masked_labels_N, samples_N)
        hidden_BLD = self.bert(replaced, attention_mask, token_type_ids)
        return {
            "generator_logits": generator_logits,
            "discriminator_logits": self.discriminator(hidden_BLD),
            "is_replaced": is_replaced,
            "logits": self.mlm(hidden_BLD.flatten(0, 1)[masked_positions_N], words_VD),
            "nsp_logits": self.nsp(self.bert.pool(hidden_BLD, attention_mask)),
        }


def _replace(input_ids: Tensor, positions_N: Tensor, labels_N: Tensor, samples_N: Tensor) -> tuple[Tensor, Tensor]:
    """Put samples into the text.

    Ignored positions are written to an extra element behind the text, so that shapes do not depend on the data.

    Returns:
        The text with samples [B, L], and where they differ from the original tokens, bool [B, L].
    """
    size = input_ids.numel()
    targets_N = torch.where(labels_N >= 0, positions_N, size)
    text = torch.cat([input_ids.flatten(), input_ids.new_zeros(1)])
    text = text.index_copy(0, targets_N, samples_N.to(input_ids.dtype))
    is_replaced = torch.zeros_like(text, dtype=torch.bool).index_copy(0, targets_N, samples_N != labels_N)
    return text[:size].view_as(input_ids), is_replaced[:size].view_as(input_ids)


def sample(logits_NV: Tensor) -> Tensor:
    """Sample a token [N] for each row: find a uniform random number in the cumulative probabilities."""
    sums_NV = logits_NV.float().softmax(-1).cumsum(-1)
    numbers_N1 = torch.rand(len(sums_NV), 1, device=sums_NV.device) * sums_NV[:, -1:]
    return torch.searchsorted(sums_NV, numbers_N1, right=True).squeeze(-1).clamp(max=logits_NV.shape[-1] - 1)
