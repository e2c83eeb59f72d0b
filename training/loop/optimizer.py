"""AdamW with BERT's decay rules and learning rates by layer."""

from __future__ import annotations

import re
from collections import defaultdict

import torch

from training.model.config import EncoderConfig
from training.model.heads import BertModel

_LAYER = re.compile(r"bert\.layers\.(\d+)\.")


def create_optimizer(
    model: BertModel,
    *,
    weight_decay: float,
    betas: tuple[float, float],
    layer_decay: float = 1.0,
    unfreeze_every: int = 0,
) -> torch.optim.AdamW:
    """Create AdamW. LayerNorm parameters and biases do not decay, embeddings do; frozen parameters are left out.

    Source: google-research/bert optimization.py (`exclude_from_weight_decay`). Unlike there, moments are corrected for
    bias, which makes fine-tuning on small data sets stable (Mosbach et al. 2021).

    Args:
        layer_decay: learning rate of a layer divided by that of the layer above (Howard and Ruder 2018, section 3.2).
        unfreeze_every: steps after which the next lower layer starts to train (the same, section 3.3); 0 for all at
            once.
    """
    groups = defaultdict(list)
    for name, value in model.named_parameters():
        if value.requires_grad:
            decays = not (name.rpartition(".")[2].startswith("bias") or "norm." in name)
            depth = _depth(name, model.config) if layer_decay != 1 or unfreeze_every else 0
            groups[decays, depth].append(value)
    return torch.optim.AdamW(
        [
            {
                "params": values,
                "weight_decay": weight_decay if decays else 0.0,
                "scale": layer_decay**depth,
                "first_step": depth * unfreeze_every,
            }
            for (decays, depth), values in groups.items()
        ],
        lr=0.0,
        betas=betas,
        eps=1e-6,
        fused=True,
    )


def _depth(name: str, config: EncoderConfig) -> int:
    """Return the distance of a parameter from the head, in layers.

    It is 0 for the head and the pooler, 1 for the last layer that the head reads, in each stack of layers.
    """
    last = config.depth
    if name.startswith("bert.embeddings."):
        return last + 1
    layer = _LAYER.match(name)
    return last - int(layer[1]) % config.num_hidden_layers if layer else 0


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of each group, scaled by its layer."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["scale"]


def remove_frozen_gradients(optimizer: torch.optim.Optimizer, step: int) -> None:
    """Remove gradients of layers that do not train yet, so that neither weights nor moments change."""
    for group in optimizer.param_groups:
        if step < group["first_step"]:
            for parameter in group["params"]:
                parameter.grad = None
