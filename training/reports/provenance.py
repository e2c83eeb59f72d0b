"""Provenance of a checkpoint, for its task card: recipe, digests of the data, starting checkpoint, machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from tasks.bundle.machine import describe_machine
from training.checkpoint.hub import checkpoint_record
from training.checkpoint.reader import load_tokenizer
from training.checkpoint.task_card import read_licence, read_task_card
from training.checkpoint.weights import checkpoint_digest
from training.data.sources import source_digest, source_names
from training.loop.distributed import World
from training.loop.recipe import recipe_fields
from training.loop.types import LoopSettings, Progress

PATH_FIELDS = ("checkpoint", "train", "dev")
"""Recipe fields with paths. They may change when a run resumes, as long as the digests stay the same."""


Digests = Callable[[Path, tuple[Path, ...], tuple[Path, ...]], dict[str, Any]]
"""`input_digests`, or a cached version of it."""


def input_digests(checkpoint: Path, train: Sequence[Path], dev: Sequence[Path]) -> dict[str, Any]:
    """Return SHA-256 digests of data, weights and tokenizer. They are written into recipe.json."""
    data = {"train": [source_digest(path) for path in train], "dev": [source_digest(path) for path in dev]}
    weights, tokenizer = checkpoint_digest(checkpoint), load_tokenizer(checkpoint).digest
    return {"data": data, "checkpoint_sha256": weights, "tokenizer_sha256": tokenizer}


def provenance(
    checkpoint: Path,
    data: Sequence[Path],
    recipe: LoopSettings,
    digests: Mapping[str, Any],
    *,
    text_pairs: bool = False,
) -> dict[str, Any]:
    """Return the provenance of fine-tuned or contrastively trained weights.

    Args:
        checkpoint: starting checkpoint.
        data: paths of the training data, then of the dev data.
        recipe: recipe of the run.
        digests: `input_digests` of checkpoint and data.
        text_pairs: True if each example is a pair of texts.
    """
    card = read_task_card(checkpoint)
    before = dict(card.provenance) if card else {}
    pretraining = before.pop("pretraining", None)
    return {
        **({"pretraining": pretraining} if pretraining else {}),
        **({"before": before} if before else {}),
        "checkpoint": {
            **checkpoint_record(checkpoint),
            "sha256": digests["checkpoint_sha256"],
            **({"licence": licence} if (licence := read_licence(checkpoint)) else {}),
        },
        "data": dict(zip(source_names(data), [*digests["data"]["train"], *digests["data"]["dev"]], strict=True)),
        "text_pairs": text_pairs,
        "recipe": recipe_fields(recipe),
    }


def training_extent(progress: Progress, batches_per_epoch: int) -> dict[str, Any]:
    """Return steps, epochs and tokens that the weights were trained for.

    These are fewer than the recipe's if the time was up, or if earlier weights were better on dev.
    """
    epochs = progress.step / batches_per_epoch
    return {"num_steps": progress.step, "num_epochs": epochs, "num_tokens": progress.num_tokens}


def training_machine(world: World) -> dict[str, Any]:
    """Return torch's version and the machine that trained the weights (the last one of a resumed run)."""
    gpu = {"gpu": torch.cuda.get_device_name(world.device), "gpus": world.size} if world.device.type == "cuda" else {}
    return {"torch": torch.__version__, "machine": describe_machine() | gpu}
