"""What pretraining learns: the tokens that are masked, or which tokens a small masked LM has put in their place.

An objective makes the network, computes the losses of a batch, and scores the network on held-out text.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.data.pretraining import PretrainingExamples
from training.data.pretraining_batches import IGNORED, PretrainingData
from training.loop.precision import autocast
from training.loop.types import Batch, Dtype
from training.model.heads import BertForPreTraining
from training.model.replaced_token_detection import BertForReplacedTokenDetection

Sums = dict[str, tuple[float, int]]
"""Scores by name: a sum, and over how many."""


class MaskedLM:
    """BERT's own: masked tokens and, where half of the second parts are random, next sentences (section 3.1)."""

    context_loss = "mlm"
    """The loss that token frequencies alone bring no lower than to what `training.baselines.masked_unigram` says."""
    weights: Mapping[str, float] = {}
    """Of losses in their sum, where they are not 1."""

    def network(self, model: BertForPreTraining) -> BertForPreTraining:
        """What is trained, with the weights of a BERT."""
        return model

    def result(self, network: BertForPreTraining) -> BertForPreTraining:
        """The BERT that was trained."""
        return network

    def counts(self, batch: Batch) -> dict[str, int]:
        """Number of targets of each loss."""
        return batch.counts

    def losses(self, network: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Cross entropy of masked tokens and, where they count, of next sentences, each summed."""
        outputs = network(**batch.inputs)
        return _with_next_sentences({"mlm": _cross_entropy(outputs["logits"], batch)}, outputs, batch)

    def score(self, model: nn.Module, batch: Batch) -> Sums:
        """Loss and accuracy of masked tokens, and accuracy of next sentences where they count."""
        outputs = model(**batch.inputs)
        found = _masked_lm_sums("mlm", outputs["logits"], batch)
        if "nsp" in batch.counts:
            correct = int((outputs["nsp_logits"].argmax(-1) == batch.targets["nsp"]).sum())
            found["nsp_accuracy"] = correct, batch.counts["nsp"]
        return found


class ReplacedTokens(MaskedLM):
    """ELECTRA's (Clark et al. 2020): a generator learns as a masked LM, and the network tells what it has put in.

    Args:
        generator_layers: layers of the generator.
        discriminator_weight: of the loss of telling replaced tokens, beside that of the generator.
        corrector_weight: of the loss of telling what stood in the masked places, which keeps the network a masked LM.
    """

    context_loss = "generator"

    def __init__(self, *, generator_layers: int, discriminator_weight: float, corrector_weight: float) -> None:
        self.generator_layers = generator_layers
        self.weights = {"discriminator": discriminator_weight, "corrector": corrector_weight}

    def network(self, model: BertForPreTraining) -> BertForPreTraining:
        """With a generator and a detector."""
        return BertForReplacedTokenDetection.around(model, generator_layers=self.generator_layers)

    def result(self, network: BertForPreTraining) -> BertForPreTraining:
        """Without them."""
        assert isinstance(network, BertForReplacedTokenDetection)
        return network.alone()

    def counts(self, batch: Batch) -> dict[str, int]:
        """The discriminator judges every token, generator and corrector the masked ones."""
        others = {name: count for name, count in batch.counts.items() if name != "mlm"}
        masks = batch.counts["mlm"]
        return {"generator": masks, "discriminator": batch.num_tokens, "corrector": masks, **others}

    def losses(self, network: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Cross entropies, each summed: of the generator, the detector, the corrector, and next sentences."""
        outputs = network(**batch.inputs, masked_labels_N=batch.targets["mlm"])
        detector = F.binary_cross_entropy_with_logits(*_detection(outputs, batch), reduction="sum")
        losses = {
            "generator": _cross_entropy(outputs["generator_logits"], batch),
            "discriminator": detector,
            "corrector": _cross_entropy(outputs["logits"], batch),
        }
        return _with_next_sentences(losses, outputs, batch)

    def score(self, model: nn.Module, batch: Batch) -> Sums:
        """Those of the network as a masked LM, of the detector over all tokens, and of the generator."""
        outputs = model(**batch.inputs, masked_labels_N=batch.targets["mlm"])
        logits, is_replaced = _detection(outputs, batch)
        count = batch.num_tokens
        loss = F.binary_cross_entropy_with_logits(logits, is_replaced, reduction="sum")
        return {
            "discriminator_loss": (float(loss), count),
            "discriminator_accuracy": (int(((logits > 0) == is_replaced.bool()).sum()), count),
            "replaced": (int(is_replaced.sum()), count),
            **_masked_lm_sums("generator", outputs["generator_logits"], batch),
            **super().score(model, batch),
        }


def _detection(outputs: Mapping[str, Tensor], batch: Batch) -> tuple[Tensor, Tensor]:
    """Logits and truth (0 or 1) of all tokens that are no padding, float32."""
    is_token = batch.inputs["attention_mask"].bool()
    return outputs["discriminator_logits"][is_token].float(), outputs["is_replaced"][is_token].float()


def _cross_entropy(logits: Tensor, batch: Batch) -> Tensor:
    """Of the masked tokens, summed."""
    return F.cross_entropy(logits.float(), batch.targets["mlm"], ignore_index=IGNORED, reduction="sum")


def _with_next_sentences(losses: dict[str, Tensor], outputs: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
    """With the loss of next sentences; where they do not count it still stays in the graph, since DDP asks that every
    weight has a gradient."""
    nsp = F.cross_entropy(outputs["nsp_logits"].float(), batch.targets["nsp"], reduction="sum")
    if "nsp" in batch.counts:
        return {**losses, "nsp": nsp}
    first, *_ = losses
    return {**losses, first: losses[first] + 0.0 * nsp}


def _masked_lm_sums(name: str, logits: Tensor, batch: Batch) -> Sums:
    labels, count = batch.targets["mlm"], batch.counts["mlm"]
    correct = int((logits.argmax(-1) == labels).sum())
    return {f"{name}_loss": (float(_cross_entropy(logits, batch)), count), f"{name}_accuracy": (correct, count)}


@torch.inference_mode()
def evaluate_pretraining(
    model: nn.Module,
    examples: PretrainingExamples,
    objective: MaskedLM,
    *,
    num_examples: int,
    device: torch.device,
    dtype: Dtype = "fp32",
) -> dict[str, float]:
    """The objective's scores, losses in nats, on the first examples of epoch 0; what is drawn is always the same.

    There is no accuracy of next sentences where all of them have one label.
    """
    model.eval()
    sums: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    data = PretrainingData(examples, 1)
    last = min(num_examples, examples.num_examples(0))
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        for first in range(0, last, 32):
            batch = data.examples_batch(0, range(first, min(first + 32, last))).to(device)
            with autocast(dtype, device):
                found = objective.score(model, batch)
            for name, (value, count) in found.items():
                sums[name] += value  # type: ignore[assignment]
                counts[name] += count
    if len(np.unique(examples.nsp_labels(0)[:last])) == 1:
        sums.pop("nsp_accuracy", None)
    return {name: sums[name] / counts[name] for name in sums}


def base_rate_scores(scores: Mapping[str, Any]) -> dict[str, float]:
    """What a discriminator has that knows how often tokens are replaced, and looks at none."""
    if "replaced" not in scores:
        return {}
    share = scores["replaced"]
    entropy = -sum(p * math.log(p) for p in (share, 1 - share) if p)
    return {"discriminator_loss": entropy, "discriminator_accuracy": max(share, 1 - share)}
