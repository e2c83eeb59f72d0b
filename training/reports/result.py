"""Result of a run: the provenance in its task card, its curves and its checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from tasks.bundle.machine import describe_machine
from training.checkpoint.hub import checkpoint_record
from training.checkpoint.reader import load_tokenizer
from training.checkpoint.task_card import TaskCard, read_licence, read_task_card
from training.checkpoint.weights import checkpoint_digest
from training.checkpoint.writer import save_checkpoint
from training.data.sources import source_digest, source_names
from training.loop.distributed import World
from training.loop.recipe import recipe_fields
from training.loop.run_directory import RunDirectory
from training.loop.types import LoopSettings
from training.model.heads import BertModel
from training.reports.model_card import describe_checkpoint

PATH_FIELDS = ("checkpoint", "train", "dev", "class_weights")
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
        data: paths of the training data, then of the dev data.
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


def training_machine(world: World) -> dict[str, Any]:
    """Return torch's version and the machine that trained the weights (the last one of a resumed run)."""
    gpu = {"gpu": torch.cuda.get_device_name(world.device), "gpus": world.size} if world.device.type == "cuda" else {}
    return {"torch": torch.__version__, "machine": describe_machine() | gpu}


def write_result(run: RunDirectory, model: BertModel, *, tokenizer_from: Path, card: TaskCard) -> None:
    """Write the curves, then the checkpoint, which marks the run as finished; remove the resumable states."""
    from training.reports.plot import plot_run  # matplotlib takes half a second: not before the end of a run

    plot_run(run.path)
    readme = describe_checkpoint(model, tokenizer_from=tokenizer_from, card=card)
    save_checkpoint(run.checkpoint_path, model.cpu(), tokenizer_from=tokenizer_from, card=card, readme=readme)
    run.drop_states()
