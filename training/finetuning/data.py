"""Data of fine-tuning: examples, task settings, features, and messages about them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tasks import AnyTask, create_task
from tasks.base import TaskSettings
from tasks.features import Features
from training.checkpoint.reader import load_tokenizer, read_config, read_shape
from training.checkpoint.task_card import read_task_card
from training.data.examples import Examples, encode_examples
from training.data.input_warnings import report_inputs
from training.finetuning.descriptions import (
    describe_examples,
    describe_sequences,
    note_overlap,
    pair_flags,
    warn_of_labels,
)
from training.finetuning.network import knows_labels
from training.finetuning.recipe import FinetuneRecipe
from training.objectives.base import (
    LabelledFeatures,
    LabelledObjective,
    TaskOptions,
    all_label_names,
    find_unknown_label,
)
from training.objectives.finetuning import FinetuningData, label_examples
from training.objectives.labelled import read_examples
from training.objectives.registry import OBJECTIVES, check_labels


@dataclass(frozen=True, kw_only=True)
class FinetuningExamples:
    """Examples of a run, and the task that encodes them."""

    task: AnyTask
    train: Examples
    dev: Examples
    """Empty without dev data."""


def read_data(recipe: FinetuneRecipe, settings: TaskSettings | None = None) -> FinetuningExamples:
    """Read training and dev data.

    Args:
        settings: settings of the task; None for those that follow from recipe and data.

    Raises:
        ValueError: naming file and line of a malformed example, or as `task_settings`.
    """
    tokenizer = load_tokenizer(recipe.checkpoint)
    train, dev = (
        read_examples(recipe.task, paths, columns=recipe.columns, tokenizer=tokenizer) if paths else Examples()
        for paths in (recipe.train, recipe.dev)
    )
    settings = settings or task_settings(recipe, train, dev)
    for examples in (train, dev):
        if problem := OBJECTIVES[recipe.task].mismatch(settings, examples):
            raise ValueError(problem)
    task = create_task(recipe.task, tokenizer, settings)
    check_labels(task, dev)
    return FinetuningExamples(task=task, train=train, dev=dev)


def task_settings(recipe: FinetuneRecipe, train: Examples, dev: Examples) -> TaskSettings:
    """Return the settings of the task, from the recipe and the data.

    Raises:
        ValueError: if max_seq_length exceeds the checkpoint's positions, if the training data have a single label, or
            if dev has a label that the training data lack, or has no pairs although the training data have.
    """
    objective, max_seq_length = OBJECTIVES[recipe.task], sequence_length(recipe)
    labels = all_label_names(objective, train)
    if unknown := find_unknown_label(objective, dev, labels):
        location, label = unknown
        hints = filter(None, [f"label `{label}` does not occur in the training data", objective.label_warning(labels)])
        raise ValueError(f"{location}: {'; '.join(hints)}")
    if dev and any(pair_flags(train)) and not any(pair_flags(dev)):
        raise ValueError(f"`{recipe.dev[0]}` has single texts, but the training data have pairs (--columns.text-pair)")
    if len(labels) == 1:
        raise ValueError(f"the only label in `{recipe.train[0]}` is `{labels[0]}`; at least two are needed")
    return objective.settings(task_options(recipe, max_seq_length), train)


def sequence_length(recipe: FinetuneRecipe) -> int:
    """Return the longest sequence of the trained model.

    Raises:
        ValueError: if it exceeds the checkpoint's positions.
    """
    max_positions = read_shape(recipe.checkpoint).num_positions
    length = recipe.max_seq_length or min(OBJECTIVES[recipe.task].default_max_seq_length, max_positions)
    if length > max_positions:
        raise ValueError(f"max_seq_length `{length}` is above the checkpoint's {max_positions} positions")
    return length


def task_options(recipe: FinetuneRecipe, max_seq_length: int) -> TaskOptions:
    """Return the options from which an objective makes the settings of its task."""
    return TaskOptions(
        max_seq_length=max_seq_length,
        doc_stride=recipe.doc_stride,
        max_query_length=recipe.max_query_length,
        max_answer_length=recipe.max_answer_length,
        null_threshold=recipe.null_threshold,
        thresholds=recipe.thresholds,
        has_dev=bool(recipe.dev),
    )


@dataclass(frozen=True, kw_only=True)
class EncodedData:
    """Features of the examples."""

    train: Sequence[LabelledFeatures]
    unusable: Sequence[str]
    """Locations of training examples that are left out."""
    dev: Sequence[Sequence[Features]]
    """Features of each dev example."""


def encode_data(recipe: FinetuneRecipe, data: FinetuningExamples) -> EncodedData:
    """Encode all examples. Dev examples are encoded before training, so that invalid ones raise immediately."""
    train, unusable = label_examples(data.task, data.train)
    dev = encode_examples(data.task, data.dev)
    if not train:
        reason = OBJECTIVES[recipe.task].unusable_reason
        raise ValueError(f"no example can be used: {reason}; the first: {unusable[0]}")
    return EncodedData(train=train, unusable=unusable, dev=dev)


def finetuning_batches(
    recipe: FinetuneRecipe, task: AnyTask, items: Sequence[LabelledFeatures], objective: LabelledObjective
) -> FinetuningData:
    """Return the batches of labelled features, with the targets of an objective."""
    return FinetuningData(
        items,
        objective,
        global_batch_size=recipe.global_batch_size,
        seed=recipe.seed,
        pad_id=task.tokenizer.pad_id,
    )


# Messages about the data


def report_data(recipe: FinetuneRecipe, data: FinetuningExamples, encoded: EncodedData) -> dict[str, Any]:
    """Describe the data, with warnings and notes.

    Returns:
        Records of truncated examples, for the task card.
    """
    sequences = describe_sequences(encoded.train, encoded.unusable, OBJECTIVES[recipe.task].unusable_reason)
    print(f"{describe_examples(data.task, data.train)}; {sequences}", flush=True)
    warn_of_labels(data.task, {"training": data.train, "dev": data.dev})
    if not data.dev:
        print("nothing will be scored: there are no dev data", flush=True)
    features = {"training sequences": [item.features for item in encoded.train], "dev examples": encoded.dev}
    cuts = {name: report_inputs(name, recipe.checkpoint, data.task, found) for name, found in features.items() if found}
    note_overlap(data.train, data.dev)
    _note_new_positions(recipe, data.task.settings)
    _note_new_classifier(recipe, data.task)
    return cuts


def _note_new_positions(recipe: FinetuneRecipe, settings: TaskSettings) -> None:
    """Print a note if sequences can be longer than those that the checkpoint was trained on."""
    card = None if recipe.from_scratch else read_task_card(recipe.checkpoint)
    if card and card.settings.max_seq_length < settings.max_seq_length:
        print(
            f"note: `{recipe.checkpoint}` was trained on up to {card.settings.max_seq_length} tokens, here are up to "
            f"{settings.max_seq_length}; positions beyond are new to it (pretrain longer, or lower --max-seq-length)",
            flush=True,
        )


def _note_new_classifier(recipe: FinetuneRecipe, task: AnyTask) -> None:
    """Print a note if the checkpoint has a classifier that is not used."""
    has_one = re.search("Classification|MultipleChoice", str(read_config(recipe.checkpoint).get("architectures")))
    if has_one and task.name != "spans" and not recipe.from_scratch and not knows_labels(recipe.checkpoint, task):
        print(f"note: the classifier of `{recipe.checkpoint}` has other labels or another task; a new one is trained")
