"""Data of fine-tuning: examples, task settings, features, and messages about them."""

from __future__ import annotations

import re
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks import AnyTask, create_task
from tasks.base import TaskSettings
from tasks.text.tokenizer import Tokenizer
from training.checkpoint.reader import load_tokenizer, read_config, read_shape
from training.checkpoint.task_card import read_task_card
from training.checkpoint.tokenizer import check_truncation_side
from training.data.examples import Examples, encode_examples, hold_out, inputs_of
from training.data.input_warnings import report_inputs
from training.data.plausibility import report_doubts, spelling, visible
from training.finetuning.network import knows_labels
from training.finetuning.recipe import TASK_FIELDS, FinetuneRecipe
from training.loop.distributed import World
from training.objectives.base import LabelledFeatures, TaskOptions, all_label_names, find_unknown_label
from training.objectives.finetuning import label_examples
from training.objectives.labelled import read_examples
from training.objectives.registry import OBJECTIVES, check_labels

MAX_COUNTED = 40
"""Most labels whose numbers of examples are shown."""


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
    check_truncation_side(recipe.checkpoint, tokenizer, recipe.task)
    train, dev = read_parts(recipe, tokenizer)
    settings = settings or task_settings(recipe, train, dev)
    for examples in (train, dev):
        if problem := OBJECTIVES[recipe.task].mismatch(settings, examples):
            raise ValueError(problem)
    task = create_task(recipe.task, tokenizer, settings)
    check_labels(task, dev)
    return FinetuningExamples(task=task, train=train, dev=dev)


def read_parts(recipe: FinetuneRecipe, tokenizer: Tokenizer) -> tuple[Examples, Examples]:
    """Read the training and the dev examples.

    Raises:
        ValueError: as `read_examples`, or if --dev-fraction leaves one part without examples.
    """
    train, dev = (
        read_examples(recipe.task, paths, columns=recipe.columns, tokenizer=tokenizer) if paths else Examples()
        for paths in (recipe.train, recipe.dev)
    )
    if not recipe.dev_fraction:
        return train, dev
    parts = hold_out(train, recipe.dev_fraction)
    if not all(parts):
        raise ValueError(f"--dev-fraction `{recipe.dev_fraction}` of {len(train):,} examples leaves one part empty")
    return parts


def task_settings(recipe: FinetuneRecipe, train: Examples, dev: Examples) -> TaskSettings:
    """Return the settings of the task, from the recipe and the data.

    Raises:
        ValueError: if max_seq_length exceeds the checkpoint's positions, if the training data have a single label, or
            if dev has a label that the training data lack, or one of both has pairs of texts and the other has none.
    """
    objective, max_seq_length = OBJECTIVES[recipe.task], sequence_length(recipe)
    labels = all_label_names(objective, train)
    if unknown := find_unknown_label(objective, dev, labels):
        location, label = unknown
        problem, hint = f"label `{visible(label)}` does not occur in the training data", objective.label_warning(labels)
        if near := next((name for name in labels if spelling(name) == spelling(label)), None):
            hint = f"`{visible(near)}` does; write it in one way"
        raise ValueError(f"{location}: {problem}{'; ' * bool(hint)}{hint}")
    if recipe.dev and any(pair_flags(train)) != any(pair_flags(dev)):
        found, learned = ("single texts", "pairs")[:: 1 if any(pair_flags(train)) else -1]
        raise ValueError(f"`{recipe.dev[0]}` has {found}, but the training data have {learned} (--columns.text-pair)")
    if len(labels) == 1:
        hints = ["at least two are needed", *train.notes]
        raise ValueError(f"the only label in `{recipe.train[0]}` is `{labels[0]}`; {'; '.join(hints)}")
    options = {name: getattr(recipe, name) for name in TASK_FIELDS}
    return objective.settings(TaskOptions(max_seq_length=max_seq_length, has_dev=recipe.has_dev, **options), train)


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


def encode_data(
    recipe: FinetuneRecipe, data: FinetuningExamples, world: World
) -> tuple[list[LabelledFeatures], dict[str, Any]]:
    """Encode all examples; describe them, with warnings and notes.

    Dev examples are encoded before training, so that invalid ones raise immediately.

    Returns:
        Features of the usable training examples, and records of truncated examples, for the task card.
    """
    task, objective = data.task, OBJECTIVES[recipe.task]
    train, unusable = label_examples(task, data.train)
    dev = encode_examples(task, data.dev)
    left_out = ""
    if unusable:
        hint = objective.unusable_hint(unusable)
        left_out = f"{objective.unusable_reason}; the first: {unusable.locations[0]}{'; ' * bool(hint)}{hint}"
    if not train:
        raise ValueError(f"no example can be used: {left_out}")
    if not world.is_main:
        return train, {}
    left_out = f", {len(unusable):,} left out ({left_out})" if unusable else ""
    num_sequences = sum(len(item.features) for item in train)
    print(f"{describe_examples(task, data.train)}; {num_sequences:,} sequences{left_out}", flush=True)
    if warning := objective.label_warning(getattr(task.settings, "labels", ())):
        print(f"warning: {warning}", file=sys.stderr)
    report_doubts("training data", data.train, objective.warnings(task, data.train), are_trained_on=True)
    if recipe.dev_fraction:
        data.dev.notes.clear()  # those of the same files
        part = f"{len(data.dev):,} of {len(data.train) + len(data.dev):,} examples"
        print(f"dev data: {part}, at random, in the proportions of the labels", flush=True)
    report_doubts("dev data", data.dev, objective.warnings(task, data.dev))
    if not data.dev:
        print("nothing will be scored: there are no dev data", flush=True)
    name = "training sequences"
    cuts = {name: report_inputs(name, recipe.checkpoint, task, (item.features for item in train))}
    if data.dev:
        cuts["dev examples"] = report_inputs("dev examples", recipe.checkpoint, task, dev)
    trained = {tuple(inputs_of(example)) for example in data.train}
    if count := sum(tuple(inputs_of(example)) in trained for example in data.dev):
        print(f"note: {count:,} of {len(data.dev):,} dev examples are in the training data, too", flush=True)
    if not recipe.from_scratch:
        _note_new_parts(recipe.checkpoint, task)
    return train, cuts


def _note_new_parts(checkpoint: Path, task: AnyTask) -> None:
    """Print notes if positions are new to the checkpoint, or if it has a classifier that is not used."""
    card, longest = read_task_card(checkpoint), task.settings.max_seq_length
    if card and card.settings.max_seq_length < longest:
        print(
            f"note: `{checkpoint}` was trained on up to {card.settings.max_seq_length} tokens, here are up to "
            f"{longest}; positions beyond are new to it (pretrain longer, or lower --max-seq-length)",
            flush=True,
        )
    has_classifier = re.search("Classification|MultipleChoice", str(read_config(checkpoint).get("architectures")))
    if has_classifier and task.name != "spans" and not knows_labels(checkpoint, task):
        print(f"note: the classifier of `{checkpoint}` has other labels or another task; a new one is trained")


# Descriptions, so that a user notices a wrong column or file


def describe_examples(task: AnyTask, examples: Examples) -> str:
    """Return the number of examples, whether they are pairs, and the labels of the task."""
    pairs = pair_flags(examples)
    some = f", {sum(pairs):,} of them with a pair" if any(pairs) else ""
    kind = "" if not pairs else ": pairs of texts" if all(pairs) else f": texts{some}"
    labels = getattr(task.settings, "labels", ())
    if getattr(task.settings, "is_multi_label", False):
        return f"{len(examples):,} examples{kind}; {_label_counts(task, examples)}"
    names = f"; {len(labels)} labels ({', '.join(labels[:8])}{', …' if len(labels) > 8 else ''})" if labels else ""
    return f"{len(examples):,} examples{kind}{names}"


def _label_counts(task: AnyTask, examples: Examples) -> str:
    """Return the number of examples of each label, and of those without any; the commonest first."""
    names = [OBJECTIVES[task.name].label_names(example) for example in examples]
    counts = Counter(dict.fromkeys(task.settings.labels, 0) | Counter(name for item in names for name in item))
    listed = ", ".join(f"{name} {count:,}" for name, count in counts.most_common(MAX_COUNTED))
    more = ", …" if len(counts) > MAX_COUNTED else ""
    return f"any number of {len(counts)} labels ({listed}{more}; none {sum(not item for item in names):,})"


def pair_flags(examples: Examples) -> list[bool]:
    """Return for each example whether it is a pair of texts; an empty list for tasks without pairs."""
    return [bool(example.text_pair) for example in examples if hasattr(example, "text_pair")]


def are_all_pairs(examples: Examples) -> bool:
    """Return whether all examples are pairs of texts."""
    pairs = pair_flags(examples)
    return bool(pairs) and all(pairs)
