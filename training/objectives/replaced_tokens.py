"""Replaced-token detection, ELECTRA's pretraining (Clark et al. 2020)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from training.data.pretraining import PretrainingExample
from training.loop.types import Batch
from training.model.heads import BertForPreTraining
from training.model.replaced_token_detection import BertForReplacedTokenDetection
from training.objectives.base import Targets
from training.objectives.masked_lm import MaskedLM, Sums, add_next_sentences, cross_entropy, masked_lm_sums


class ReplacedTokenDetection(MaskedLM):
    """A small masked LM, the generator, fills the masks; the discriminator predicts which tokens it replaced.

    A corrector predicts the original tokens from the filled text, which keeps the network a masked LM.

    Args:
        discriminator_weight: weight of the discriminator's loss, relative to the generator's.
        corrector_weight: weight of the corrector's loss, relative to the generator's.
    """

    masked_lm_loss = "generator"

    def __init__(
        self,
        *,
        generator_layers: int,
        discriminator_weight: float,
        corrector_weight: float,
        next_sentences: bool = True,
    ) -> None:
        super().__init__(next_sentences=next_sentences)
        self.generator_layers = generator_layers
        self.weights = {"discriminator": discriminator_weight, "corrector": corrector_weight}

    def network(self, model: BertForPreTraining) -> BertForReplacedTokenDetection:
        return BertForReplacedTokenDetection.from_pretraining(model, generator_layers=self.generator_layers)

    def result(self, network: BertForReplacedTokenDetection) -> BertForPreTraining:
        return network.to_pretraining()

    def targets(self, examples: Sequence[PretrainingExample]) -> Targets:
        """Return masked tokens for generator and corrector; the discriminator has every token as a target."""
        targets, counts = super().targets(examples)
        num_masks = counts.pop("mlm")
        num_tokens = sum(len(example.input_ids) for example in examples)
        return targets, {"generator": num_masks, "discriminator": num_tokens, "corrector": num_masks, **counts}

    def losses(self, network: nn.Module, batch: Batch) -> dict[str, Tensor]:
        outputs = network(**batch.inputs, masked_labels_N=batch.targets["mlm"])
        losses = {
            "generator": cross_entropy(outputs["generator_logits"], batch),
            "discriminator": F.binary_cross_entropy_with_logits(*_discrimination(outputs, batch), reduction="sum"),
            "corrector": cross_entropy(outputs["logits"], batch),
        }
        return add_next_sentences(losses, outputs, batch)

    def score(self, model: nn.Module, batch: Batch) -> Sums:
        """Return the scores of the network as a masked LM, of the discriminator and of the generator."""
        outputs = model(**batch.inputs, masked_labels_N=batch.targets["mlm"])
        logits, is_replaced = _discrimination(outputs, batch)
        count = batch.num_tokens
        loss = F.binary_cross_entropy_with_logits(logits, is_replaced, reduction="sum")
        return {
            "discriminator_loss": (float(loss), count),
            "discriminator_accuracy": (int(((logits > 0) == is_replaced.bool()).sum()), count),
            "replaced": (int(is_replaced.sum()), count),
            **masked_lm_sums("generator", outputs["generator_logits"], batch),
            **super().score(model, batch),
        }


def _discrimination(outputs: Mapping[str, Tensor], batch: Batch) -> tuple[Tensor, Tensor]:
    """Return logits and labels (0 or 1) of all tokens without padding, float32."""
    is_token = batch.inputs["attention_mask"].bool()
    return outputs["discriminator_logits"][is_token].float(), outputs["is_replaced"][is_token].float()


def base_rate_scores(scores: Mapping[str, Any]) -> dict[str, float]:
    """Return the scores of a discriminator that knows only the fraction of replaced tokens."""
    if "replaced" not in scores:
        return {}
    replaced = scores["replaced"]
    entropy = -sum(p * math.log(p) for p in (replaced, 1 - replaced) if p)
    return {"discriminator_loss": entropy, "discriminator_accuracy": max(replaced, 1 - replaced)}
