"""AdamW with BERT's decay rules; warm-up and linear decay of the learning rate."""

from __future__ import annotations

import torch
from torch import nn


def create_optimizer(model: nn.Module, *, weight_decay: float, betas: tuple[float, float]) -> torch.optim.AdamW:
    """AdamW in which LayerNorm's parameters and biases do not decay, embeddings do.

    Source: google-research/bert optimization.py (`exclude_from_weight_decay`). Unlike there, moments are corrected for
    bias, which is what makes fine-tuning on small data sets stable (Mosbach et al. 2021).
    """
    decayed = [value for name, value in model.named_parameters() if _decays(name)]
    others = [value for name, value in model.named_parameters() if not _decays(name)]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=1e-6, fused=True)


def _decays(name: str) -> bool:
    return not (name.endswith("bias") or "norm." in name)


def learning_rate(step: int, *, peak: float, num_steps: int, warmup_steps: int) -> float:
    """Learning rate of a step (counted from 0): linear to `peak` over the warm-up, then linear to 0 at `num_steps`."""
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    return peak * max(0.0, (num_steps - step) / max(1, num_steps - warmup_steps))
