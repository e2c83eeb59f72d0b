"""Heads: the encoder with an output layer for each task.

Classes and outputs are named as in Hugging Face's transformers. Sections are those of Devlin et al. 2018.

Shape suffixes as in `training.model.encoder`, and N for the masked positions of a batch.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.model.config import POOLER_ACTIVATIONS, EncoderConfig
from training.model.encoder import Dropout, create_encoder


class BertModel(nn.Module):
    """Encoder with pooler, and base class of networks with a head.

    Call it with `input_ids`, `attention_mask` and `token_type_ids`; it returns outputs by name.
    """

    architecture = "BertModel"
    with_pooler = True
    has_labels = False
    """True if the head has one output for each label; `__init__` then takes `num_labels`."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.bert = create_encoder(config, with_pooler=self.with_pooler)
        self.dense = nn.ModuleDict()
        """Linear layers over the pooled vector of an embedding, by their place in `EmbeddingSettings.layers`."""

    @torch.no_grad()
    def initialize(self) -> BertModel:
        """Draw weights for the parameters on the meta device, as google-research/bert does.

        Matrices come from a truncated normal; biases are zero, and the weights of LayerNorm one.
        """
        std = self.config.initializer_range
        for module in self.modules():
            if not any(parameter.is_meta for parameter in module.parameters(recurse=False)):
                continue
            module.to_empty(device="cpu", recurse=False)
            if draw := getattr(module, "draw_weights", None):  # a custom initialization
                draw()
                continue
            for name, parameter in module.named_parameters(recurse=False):
                if parameter.dim() > 1 and std:
                    nn.init.trunc_normal_(parameter, std=std, a=-2 * std, b=2 * std)
                else:
                    parameter.fill_(1.0 if parameter.dim() == 1 and name == "weight" else 0.0)
        return self

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor) -> dict[str, Tensor]:
        hidden_BLD = self.bert(input_ids, attention_mask, token_type_ids)
        return {"last_hidden_state": hidden_BLD, "pooler_output": self.bert.pool(hidden_BLD, attention_mask)}


class MaskedLMHead(nn.Module):
    """Dense layer, activation and LayerNorm, then the word embeddings as output matrix."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        size = config.width_of_embeddings
        self.dense = nn.Linear(config.hidden_size, size, bias=config.classifier_bias)
        self.activation = POOLER_ACTIVATIONS[config.masked_lm_act]
        self.norm = nn.LayerNorm(size, eps=config.layer_norm_eps, bias=config.norm_bias)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size)) if config.decoder_bias else None
        # no output matrix: what predicts a token also embeds it

    def forward(self, hidden: Tensor, word_embeddings_VD: Tensor) -> Tensor:
        return F.linear(self.norm(self.activation(self.dense(hidden))), word_embeddings_VD, self.bias)


class BertForPreTraining(BertModel):
    """Masked LM and next sentence prediction (section 3.1)."""

    architecture = "BertForPreTraining"

    def __init__(self, config: EncoderConfig) -> None:
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
        """Compute logits over the vocabulary, at the masked positions only if they are given.

        Args:
            masked_positions_N: flat positions, row * length + column; None for all.

        Returns:
            `logits` [N, V], or [B, L, V] without positions; `nsp_logits` [B, 2], class 0 for "is next".
        """
        hidden_BLD = self.bert(input_ids, attention_mask, token_type_ids)
        states = hidden_BLD
        if masked_positions_N is not None:  # most of the head's work is a product with the whole vocabulary
            states = hidden_BLD.reshape(-1, self.config.hidden_size)[masked_positions_N]
        logits = self.mlm(states, self.bert.embeddings.word.weight)
        return {"logits": logits, "nsp_logits": self.nsp(self.bert.pool(hidden_BLD, attention_mask))}


class BertForSequenceClassification(BertModel):
    """A linear layer over the pooled output, after dropout (section 4.1)."""

    architecture = "BertForSequenceClassification"
    has_labels = True

    def __init__(self, config: EncoderConfig, num_labels: int) -> None:
        super().__init__(config)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, num_labels)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor) -> dict[str, Tensor]:
        pooled_BD = self.bert.pool(self.bert(input_ids, attention_mask, token_type_ids), attention_mask)
        return {"logits": self.classifier(self.dropout(pooled_BD))}


class BertForSequenceRegression(BertForSequenceClassification):
    """One number for each sequence. In Hugging Face checkpoints this is a classifier with a single label."""

    has_labels = False

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config, num_labels=1)


class BertForQuestionAnswering(BertModel):
    """A start and an end logit for each token (section 4.2)."""

    architecture = "BertForQuestionAnswering"
    with_pooler = False

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.qa_outputs = nn.Linear(config.output_size, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor) -> dict[str, Tensor]:
        hidden_BLD = self.bert(input_ids, attention_mask, token_type_ids)
        start_BL, end_BL = self.qa_outputs(self.bert.token_states(hidden_BLD)).unbind(-1)
        return {"start_logits": start_BL, "end_logits": end_BL}


class BertForMultipleChoice(BertForSequenceClassification):
    """One logit for each sequence (section 4.4). The caller takes the softmax over the choices of an example."""

    architecture = "BertForMultipleChoice"
    has_labels = False

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config, num_labels=1)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor) -> dict[str, Tensor]:
        return {"logits": super().forward(input_ids, attention_mask, token_type_ids)["logits"].squeeze(-1)}


class BertForTokenClassification(BertModel):
    """A linear layer over the output for each token, after dropout (section 5.3)."""

    architecture = "BertForTokenClassification"
    with_pooler = False
    has_labels = True

    def __init__(self, config: EncoderConfig, num_labels: int) -> None:
        super().__init__(config)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.classifier = nn.Linear(config.output_size, num_labels)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor) -> dict[str, Tensor]:
        hidden_BLD = self.bert(input_ids, attention_mask, token_type_ids)
        return {"logits": self.classifier(self.dropout(self.bert.token_states(hidden_BLD)))}


MODELS: dict[str, type[BertModel]] = {
    "embedding": BertModel,
    "masked-lm": BertForPreTraining,
    "classification": BertForSequenceClassification,
    "spans": BertForQuestionAnswering,
    "regression": BertForSequenceRegression,
    "multiple-choice": BertForMultipleChoice,
    "tagging": BertForTokenClassification,
}
"""Network of each task."""


def task_of(model: BertModel) -> str:
    """Return the task of a network."""
    return next(task for task, network in MODELS.items() if type(model) is network)
