"""Network of fine-tuning, contrastive training and distillation: new or of a checkpoint, and trained."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from tasks import AnyTask
from training.checkpoint.reader import create_model, labels_of, load_model, read_config
from training.checkpoint.task_card import read_task_card
from training.checkpoint.weights import read_weights
from training.finetuning.recipe import FinetuneRecipe
from training.loop.run_directory import RunDirectory
from training.loop.train import train
from training.loop.types import Evaluation, LoopSettings, Losses, Phase
from training.model.heads import BertForSequenceRegression, BertModel
from training.model.layer_subset import take_layers
from training.objectives.base import LabelledFeatures, LabelledObjective, VectorObjective
from training.objectives.finetuning import FinetuningData
from training.objectives.regression import standardise_head
from training.reports.result import training_machine


def create_network(recipe: FinetuneRecipe, task: AnyTask) -> BertModel:
    """Create the network of a task with the weights of the recipe's checkpoint, or new ones.

    Raises:
        ValueError: for layers that the checkpoint does not have.
    """
    num_labels = len(getattr(task.settings, "labels", ())) or None
    if recipe.from_scratch:
        model = create_model(task.name, recipe.shape(), num_labels=num_labels or 2, dropout=recipe.dropout)
    else:
        model = load_model(
            recipe.checkpoint,
            task.name,
            num_labels=num_labels,
            new_head=True,
            without=() if knows_labels(recipe.checkpoint, task) else ("classifier.",),
            dropout=recipe.dropout,
            config=recipe.shape(),
        )
        if isinstance(model, BertForSequenceRegression):
            weight = read_weights(recipe.checkpoint).get("classifier.weight")
            if weight is not None and torch.equal(weight, model.classifier.weight):  # not a new head
                standardise_head(model, task.settings)
    if recipe.take_layers:
        model = take_layers(model, recipe.take_layers)
    if recipe.frozen:
        model.bert.freeze()
    return model


def knows_labels(checkpoint: Path, task: AnyTask) -> bool:
    """Return whether a checkpoint's classifier has the labels of the task, in the same order."""
    card, labels = read_task_card(checkpoint), getattr(task.settings, "labels", ())
    return (card is None or card.task == task.name) and (not labels or labels_of(read_config(checkpoint)) == labels)


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
        eval_every: steps between scores; None for a quarter of the steps or, with `patience`, an epoch.
        label: name of the progress bar.

    Returns:
        Steps, epochs and tokens that the weights were trained for, and the machine, for the task card. They are fewer
        than the recipe's if the time was up, or if earlier weights were better on dev.
    """
    batches = FinetuningData(
        items, objective, global_batch_size=recipe.global_batch_size, seed=recipe.seed, pad_id=pad_id
    )
    steps_per_epoch = batches.num_batches(0)
    if len(items) < recipe.global_batch_size and run.world.is_main:
        print(
            f"warning: a batch has {recipe.global_batch_size} sequences, the training data {len(items)}, so that each "
            "step repeats some; lower --global-batch-size",
            file=sys.stderr,
        )
    num_steps = max(1, round(num_epochs * steps_per_epoch))
    if eval_every is None:
        eval_every = steps_per_epoch if recipe.patience else -(-num_steps // 4)
    losses: Losses = objective.joint_losses if isinstance(objective, VectorObjective) else objective.losses
    progress = train(
        model,
        [Phase(data=batches)],
        losses,
        num_steps=num_steps,
        settings=recipe,
        run=run,
        weights=objective.weights,
        evaluation=Evaluation(scores=scores, every=eval_every) if scores else None,
        label=label,
    )
    extent = {
        "num_steps": progress.step,
        "num_epochs": progress.step / steps_per_epoch,
        "num_tokens": progress.num_tokens,
    }
    return extent | training_machine(run.world)
