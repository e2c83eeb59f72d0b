"""Masked LM and next sentence prediction, BERT's pretraining (Devlin et al. 2019, section 3.1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.data.pretraining import PretrainingExample, PretrainingExamples
from training.data.pretraining_batches import IGNORED, PretrainingData
from training.loop.precision import autocast
from training.loop.types import Batch, Dtype
from training.objectives.base import Objective, Targets

Sums = dict[str, tuple[float, int]]
"""Scores by name: a sum, and the number of targets that it is over."""


class MaskedLM(Objective):
    """Cross entropy of masked tokens and of next sentences, if they are predicted."""

    masked_lm_loss = "mlm"
    """Name of the loss on masked tokens, which the unigram baseline bounds until context is used."""

    def __init__(self, *, next_sentences: bool = True) -> None:
        self.next_sentences = next_sentences

    def targets(self, examples: Sequence[PretrainingExample]) -> Targets:
        """Return the masked tokens [masks] and next sentence labels [examples], and the number of each that counts."""
        labels = np.concatenate([x.masked_labels for x in examples])
        targets = {"mlm": torch.from_numpy(labels), "nsp": torch.tensor([x.nsp_label for x in examples])}
        counts: dict[str, float] = {"mlm": len(labels)}
        return targets, counts | ({"nsp": len(examples)} if self.next_sentences else {})

    def losses(self, network: nn.Module, batch: Batch) -> dict[str, Tensor]:
        outputs = network(**batch.inputs)
        return add_next_sentences({"mlm": cross_entropy(outputs["logits"], batch)}, outputs, batch)

    def score(self, model: nn.Module, batch: Batch) -> Sums:
        """Return loss and accuracy of masked tokens, and accuracy of next sentences if they are predicted."""
        outputs = model(**batch.inputs)
        found = masked_lm_sums("mlm", outputs["logits"], batch)
        if "nsp" in batch.counts:
            correct = int((outputs["nsp_logits"].argmax(-1) == batch.targets["nsp"]).sum())
            found["nsp_accuracy"] = correct, int(batch.counts["nsp"])
        return found


def cross_entropy(logits: Tensor, batch: Batch) -> Tensor:
    """Return the cross entropy of the masked tokens, summed."""
    return F.cross_entropy(logits.float(), batch.targets["mlm"], ignore_index=IGNORED, reduction="sum")


def add_next_sentences(losses: dict[str, Tensor], outputs: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
    """Add the loss of next sentences. If they do not count, it stays in the graph with weight 0.

    DDP needs a gradient of every weight.
    """
    nsp = F.cross_entropy(outputs["nsp_logits"].float(), batch.targets["nsp"], reduction="sum")
    if "nsp" in batch.counts:
        return {**losses, "nsp": nsp}
    first, *_ = losses
    return {**losses, first: losses[first] + 0.0 * nsp}


def masked_lm_sums(name: str, logits: Tensor, batch: Batch) -> Sums:
    """Return loss and accuracy of the masked tokens."""
    labels, count = batch.targets["mlm"], int(batch.counts["mlm"])
    correct = int((logits.argmax(-1) == labels).sum())
    return {f"{name}_loss": (float(cross_entropy(logits, batch)), count), f"{name}_accuracy": (correct, count)}


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
    """Return the objective's scores on the first examples of epoch 0, with fixed random numbers; losses in nats.

    The accuracy of next sentences is left out if all of them have one label.
    """
    model.eval()
    sums: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    data = PretrainingData(examples, 1, MaskedLM(next_sentences=examples.next_sentences).targets)
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
