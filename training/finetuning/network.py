"""Network of fine-tuning: new, or with the weights of a checkpoint."""

from __future__ import annotations

from pathlib import Path

import torch

from tasks import AnyTask
from training.checkpoint.reader import create_model, labels_of, load_model, read_config
from training.checkpoint.task_card import read_task_card
from training.checkpoint.weights import read_weights
from training.finetuning.recipe import FinetuneRecipe
from training.model.heads import BertForSequenceRegression, BertModel
from training.model.layer_subset import take_layers
from training.objectives.regression import standardise_head


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
