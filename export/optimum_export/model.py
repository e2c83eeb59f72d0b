"""transformers' network of a task, with the inputs and outputs of `training.model.heads`."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress Python warnings, and log records below ERROR, in the whole process, while libraries load and trace."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


@dataclass(frozen=True, kw_only=True)
class ExportedConfig:
    """Description of a network for manifests."""

    model_type: str
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int


class TransformersModel(nn.Module):
    """Network of a task, called like a `BertModel`."""

    def __init__(self, network: nn.Module, config: ExportedConfig, task: str, *, reads_token_types: bool) -> None:
        """Wrap a network.

        Args:
            network: instance of the family's class in transformers.
            config: its description.
            task: name of the task.
            reads_token_types: False to leave out `token_type_ids`.
        """
        super().__init__()
        self.network, self.config, self.task = network, config, task
        self.reads_token_types = reads_token_types
        self.dense = nn.ModuleDict()
        """Linear layers over the pooled vector, as of `BertModel`."""

    def bert(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """Return the last hidden states, [B, L, D]."""
        states: Tensor = self._call(input_ids, attention_mask, token_type_ids).last_hidden_state
        return states

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> dict[str, Tensor]:
        """Return the task's outputs by name."""
        if self.task == "embedding":
            return {"last_hidden_state": self.bert(input_ids, attention_mask, token_type_ids)}
        if self.task == "multiple-choice":  # each sequence is the only choice of an example
            outputs = self._call(input_ids[:, None], attention_mask[:, None], token_type_ids[:, None])
            return {"logits": outputs.logits[:, 0]}
        outputs = self._call(input_ids, attention_mask, token_type_ids)
        if self.task == "spans":
            return {"start_logits": outputs.start_logits, "end_logits": outputs.end_logits}
        return {"logits": outputs.logits}

    def _call(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Any:
        inputs = {"input_ids": input_ids.long(), "attention_mask": attention_mask.long()}
        if self.reads_token_types:
            inputs["token_type_ids"] = token_type_ids.long()
        return self.network(**inputs)
