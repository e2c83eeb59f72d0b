"""Training on labelled features: the common part of fine-tuning, contrastive training and distillation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from training.loop.run_directory import RunDirectory
from training.loop.train import train
from training.loop.types import Evaluation, LoopSettings, Phase
from training.model.heads import BertModel
from training.objectives.base import LabelledFeatures, LabelledObjective
from training.objectives.finetuning import FinetuningData
from training.reports.result import training_machine


def train_on(
    items: Sequence[LabelledFeatures],
    objective: LabelledObjective,
    model: BertModel,
    recipe: LoopSettings,
    run: RunDirectory,
    *,
    num_epochs: float,
    pad_id: int,
    scores: Callable[[], dict[str, float]] | None,
    eval_every: int | None = None,
    label: str,
) -> dict[str, Any]:
    """Train a network on labelled features.

    Args:
        scores: function that scores the current weights for the curve; None without dev data.
        eval_every: steps between scores; None for a quarter of the steps.
        label: name of the progress bar.

    Returns:
        Steps, epochs and tokens that the weights were trained for, and the machine, for the task card. They are fewer
        than the recipe's if the time was up, or if earlier weights were better on dev.
    """
    batches = FinetuningData(
        items, objective, global_batch_size=recipe.global_batch_size, seed=recipe.seed, pad_id=pad_id
    )
    steps_per_epoch = batches.num_batches(0)
    num_steps = max(1, round(num_epochs * steps_per_epoch))
    every = -(-num_steps // 4) if eval_every is None else eval_every
    progress = train(
        model,
        [Phase(data=batches)],
        objective.losses,
        num_steps=num_steps,
        settings=recipe,
        run=run,
        weights=objective.weights,
        evaluation=Evaluation(scores=scores, every=every) if scores else None,
        label=label,
    )
    extent = {
        "num_steps": progress.step,
        "num_epochs": progress.step / steps_per_epoch,
        "num_tokens": progress.num_tokens,
    }
    return extent | training_machine(run.world)
