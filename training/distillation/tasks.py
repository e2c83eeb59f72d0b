"""Distil a task: the student learns the probabilities of teachers, with or without labels."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

import numpy as np
import torch

from tasks.base import TaskSettings
from tasks.classification import ClassificationSettings, sigmoid
from tasks.regression import RegressionSettings
from tasks.spans import SpanSettings
from tasks.tagging import TaggingSettings
from training.checkpoint.sentence_transformers import checkpoint_directory
from training.checkpoint.task_card import read_task_card
from training.command_line.bounds import FRACTION, POSITIVE, refuse_unused
from training.data.examples import Examples, encode_examples, inputs_of
from training.data.input_warnings import report_inputs
from training.distillation.outputs import TeacherOutputs, record_outputs
from training.distillation.teachers import (
    TEACHER_FIELDS,
    Teacher,
    digest_of,
    licences,
    outputs_folder,
    precision,
    read_teacher,
    scores_of_teachers,
)
from training.finetuning.data import (
    FinetuningExamples,
    are_all_pairs,
    encode_data,
    pair_flags,
    read_data,
    sequence_length,
)
from training.finetuning.network import create_network
from training.finetuning.recipe import LOSS_FIELDS, FinetuneRecipe, finetuning_record, with_learning_rate
from training.finetuning.run import finetune, loss_objective, train_and_write
from training.loop.distributed import World, resolve_on_all
from training.loop.recipe import RecipeRecord
from training.loop.run_directory import RunDirectory
from training.loop.types import Stage
from training.objectives.base import LabelledFeatures
from training.objectives.distillation import MATCHINGS, Rows, TaskDistillation
from training.objectives.registry import OBJECTIVES
from training.reports.grid_report import CONTRAST_ROW
from training.reports.result import PATH_FIELDS, Digests, input_digests, provenance


@dataclass(frozen=True, kw_only=True)
class TaskDistillRecipe(FinetuneRecipe):
    """Train a student on the probabilities of teachers."""

    stage: ClassVar[Stage] = "distillation"

    teacher: tuple[Path, ...] = ()
    """Teachers: checkpoints that were fine-tuned for the task, with the same labels; the student learns the mean of
    their probabilities. Their tokenizers may differ from the student's."""
    train: tuple[Path, ...] = ()
    """Labelled data: files as for training.finetune."""
    unlabelled: tuple[Path, ...] = ()
    """Data without labels. Texts, one a line, or tables with `text` (and `text_pair`); spans: SQuAD's format, or tables
    with `question` and `context`; multiple choice: as labelled data, without the label."""
    outputs: Path | None = None
    """Folder for the outputs of teachers, which are computed once for each teacher and data. Default: the folder
    `teacher-outputs` next to the run directory."""
    alpha: Annotated[float, FRACTION] = 0.1
    """Weight of the labels, 0 to 1; the teachers have the rest. Without --train, it is 0."""
    temperature: Annotated[float, POSITIVE] = 2.0
    """Divisor of the logits before the softmax. A higher one shows more of the less probable labels."""
    contrast: bool = True
    """Also fine-tune the student on the labels alone, to see what the teacher is worth. It takes as long again; its run
    is the folder `fine-tuned` in the run directory."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.train:  # nothing has labels
            object.__setattr__(self, "alpha", 0.0)
        if not (self.train or self.unlabelled):
            raise ValueError("give --train, --unlabelled or both, the data to learn on")
        if not self.alpha:
            for name in LOSS_FIELDS:
                refuse_unused(self, name, "is for the loss of labels, whose weight --alpha is 0")


RecipeT = TypeVar("RecipeT", bound=TaskDistillRecipe)


def with_directories(recipe: RecipeT, world: World) -> RecipeT:
    """Return a recipe whose student and teachers are directories; those of the hub are downloaded."""
    student, *others = (resolve_on_all(path, world) for path in (recipe.checkpoint, *recipe.teacher))
    return replace(recipe, checkpoint=checkpoint_directory(student), teacher=tuple(others))


def distil_task(recipe: TaskDistillRecipe, world: World) -> Path:
    """Train, or resume.

    Returns:
        The checkpoint directory.

    Raises:
        ValueError: if data, teacher or checkpoint cannot be used, or the run was started with another recipe.
    """
    if recipe.task not in MATCHINGS:
        raise ValueError(f"task `{recipe.task}` cannot be distilled (one of: {', '.join(MATCHINGS)})")
    if not recipe.teacher:
        raise ValueError("give --teacher, whose outputs to learn")
    with RunDirectory(recipe.run_dir, world) as run:
        _distil(with_learning_rate(recipe, run), run)
        return run.checkpoint_path


def _distil(recipe: TaskDistillRecipe, run: RunDirectory) -> None:
    world, teachers = run.world, read_teachers(recipe)
    data, unlabelled = _read_data(recipe, teachers)
    labels_objective = loss_objective(recipe, data, world)
    record = distillation_record(recipe, teachers)
    if not run.begin(record):
        return
    create_network(recipe, data.task)  # raises for layers that it does not have, before hours of work
    items, cuts = _encode(recipe, data, unlabelled, world)
    examples = Examples([*data.train.located(), *unlabelled.located()])
    outputs = [_record(recipe, teacher, examples, world) for teacher in teachers]
    records = [teacher.record() for teacher in teachers]
    if world.is_main:
        print(f"teacher: {licences(records)}", flush=True)
    others = world.on_main(lambda: scores_of_teachers(recipe, teachers, data.dev, world) if data.dev else {})
    if recipe.contrast and recipe.train and recipe.has_dev:
        others |= _contrast(recipe, world)
    targets = [_teacher_targets(data.task.settings, *pair) for pair in zip(teachers, outputs, strict=True)]
    if not recipe.train and isinstance(data.task.settings, RegressionSettings):  # numbers like the teachers'
        numbers = np.mean([[target(number)[0, 0] for number in range(len(examples))] for target in targets], axis=0)
        scale = {"label_mean": float(numbers.mean()), "label_deviation": float(numbers.std()) or 1.0}
        data = replace(data, task=data.task.with_settings(**scale))
    torch.manual_seed(recipe.seed)
    model = create_network(recipe, data.task)
    objective = TaskDistillation(
        labels_objective,
        MATCHINGS[recipe.task](data.task, recipe.temperature),
        lambda example: [target(example) for target in targets],
        alpha=recipe.alpha,
    )
    paths, pairs = (*recipe.train, *recipe.unlabelled, *recipe.dev), are_all_pairs(examples)
    origin = provenance(recipe.checkpoint, paths, recipe, record.values, text_pairs=pairs)
    origin |= {"cuts": cuts, "teachers": records}
    train_and_write(recipe, run, data, model, items, objective, origin=origin, others=others)


def read_teachers(recipe: TaskDistillRecipe) -> list[Teacher]:
    """Read the teachers of a recipe.

    Raises:
        ValueError: if one cannot teach the task.
    """
    return [read_teacher(path, recipe.task) for path in recipe.teacher]


def distillation_record(
    recipe: TaskDistillRecipe, teachers: Sequence[Teacher], of_inputs: Digests = input_digests
) -> RecipeRecord:
    """Return the record of a recipe, with digests of data, weights, tokenizer and teachers.

    Args:
        of_inputs: `training.reports.result.input_digests`, or a cached version of it.
    """
    digests = of_inputs(recipe.checkpoint, (*recipe.train, *recipe.unlabelled), recipe.dev)
    digests = digests | {"teachers_sha256": [teacher.digest for teacher in teachers]}
    return finetuning_record(recipe, digests, paths=(*PATH_FIELDS, *TEACHER_FIELDS, "unlabelled"))


# Data


def _read_data(recipe: TaskDistillRecipe, teachers: Sequence[Teacher]) -> tuple[FinetuningExamples, Examples]:
    """Read labelled and unlabelled data, and check that the teachers fit to them."""
    data = read_data(recipe, None if recipe.train else _settings_of(teachers[0], recipe))
    unlabelled = Examples()
    for path in recipe.unlabelled:
        found = OBJECTIVES[recipe.task].read_unlabelled(path, recipe.columns.without_labels())
        if not found:
            raise ValueError(f"no examples in `{path}`")
        unlabelled.join(found.map(data.task.complete))
    if any(pair_flags(data.train)) and unlabelled and not any(pair_flags(unlabelled)):
        raise ValueError(f"`{recipe.unlabelled[0]}` has single texts, but the training data have pairs (text_pair)")
    for teacher in teachers:
        _check_teacher(teacher, data)
    kinds = {getattr(teacher.task.settings, "activation", "") for teacher in teachers}
    if not recipe.train and len(kinds) > 1:
        raise ValueError(f"teachers give numbers of different kinds ({', '.join(sorted(kinds))}): leave out one kind")
    return data, unlabelled


def _settings_of(teacher: Teacher, recipe: TaskDistillRecipe) -> TaskSettings:
    """Return the settings of a student without labelled data: those of the teacher, with the lengths of the recipe."""
    settings = teacher.task.settings
    given: dict[str, Any] = {"max_seq_length": sequence_length(recipe)}
    if isinstance(settings, SpanSettings | TaggingSettings):
        given["doc_stride"] = min(recipe.doc_stride, given["max_seq_length"] // 2)
    if isinstance(settings, SpanSettings):
        if recipe.null_threshold == "auto" and not (settings.unanswerable and recipe.has_dev):
            raise ValueError("--null-threshold auto needs a teacher of unanswerable questions, and dev data")
        given |= {"max_query_length": recipe.max_query_length, "max_answer_length": recipe.max_answer_length}
        given["null_threshold"] = 0.0 if recipe.null_threshold == "auto" else recipe.null_threshold
    if isinstance(settings, ClassificationSettings):
        thresholds = () if recipe.thresholds == "auto" else recipe.thresholds
        if thresholds and not settings.is_multi_label:
            raise ValueError("--thresholds are for multi-label models, and the teacher gives one label: leave it out")
        given["thresholds"] = thresholds * len(settings.labels) if len(thresholds) == 1 else thresholds
    return replace(settings, **given)


def _check_teacher(teacher: Teacher, data: FinetuningExamples) -> None:
    """Check that a teacher knows the labels of the student."""
    name, own, theirs = teacher.name, data.task.settings, teacher.task.settings
    labels = [set(getattr(settings, "labels", ())) for settings in (own, theirs)]
    for who, missing in (("teacher", labels[0] - labels[1]), ("student", labels[1] - labels[0])):
        if missing:
            some = ", ".join(f"`{label}`" for label in sorted(missing)[:5])
            raise ValueError(f"teacher `{name}` and student have other labels: the {who} lacks {some}")
    kinds = [getattr(settings, "problem_type", "") for settings in (own, theirs)]
    if kinds[0] != kinds[1]:
        raise ValueError(f"teacher `{name}` is a {kinds[1]} model, and the data are for {kinds[0]}")
    if isinstance(theirs, SpanSettings) and getattr(own, "unanswerable", False) and not theirs.unanswerable:
        print(
            f"warning: teacher `{name}` was trained without unanswerable questions, and cannot teach when there is no "
            "answer; raise --alpha, so that the labels do",
            file=sys.stderr,
        )


def _encode(
    recipe: TaskDistillRecipe, data: FinetuningExamples, unlabelled: Examples, world: World
) -> tuple[list[LabelledFeatures], dict[str, Any]]:
    """Return the features of all examples, which the labelled ones precede, and records of truncation."""
    items: list[LabelledFeatures] = []
    cuts: dict[str, Any] = {}
    if recipe.train:
        items, cuts = encode_data(recipe, data, world)
    else:
        encode_examples(data.task, data.dev)  # raises for invalid ones before training
    features = encode_examples(data.task, unlabelled)
    if unlabelled and world.is_main:
        print(f"{len(unlabelled):,} examples without labels", flush=True)
        cuts["unlabelled examples"] = report_inputs("unlabelled examples", recipe.checkpoint, data.task, features)
    for number, windows in enumerate(features, start=len(data.train)):
        without_label = OBJECTIVES[recipe.task].without_label(data.task, windows)
        items += [replace(item, example=number) for item in without_label]
    return items, cuts


# Teachers


def _record(recipe: TaskDistillRecipe, teacher: Teacher, examples: Examples, world: World) -> TeacherOutputs:
    """Return the outputs of a teacher for all examples; the main process computes those that are missing."""
    made_from = teacher.made_from() | {"examples": digest_of(map(inputs_of, examples))} | precision(world)
    load = partial(teacher.outputs, examples, MATCHINGS[recipe.task].rows, world)
    return record_outputs(outputs_folder(recipe), made_from, examples.locations, load, world, unit="example")


def _teacher_targets(settings: TaskSettings, teacher: Teacher, outputs: TeacherOutputs) -> Callable[[int], Rows]:
    """Return a function from the number of an example to the teacher's outputs, in the student's order and unit."""
    theirs = teacher.task.settings
    labels, names = (tuple(getattr(item, "labels", ())) for item in (settings, theirs))
    order = [names.index(label) for label in labels] if labels else slice(None)
    with_sigmoid = getattr(theirs, "activation", "") == "sigmoid" != getattr(settings, "activation", "")
    return lambda example: sigmoid(outputs[example]) if with_sigmoid else outputs[example][:, order]


def _contrast(recipe: TaskDistillRecipe, world: World) -> dict[str, dict[str, float]]:
    """Fine-tune the student only on the labels; return its dev scores by row."""
    names = [item.name for item in fields(FinetuneRecipe) if item.init]
    values = {name: getattr(recipe, name) for name in names} | {"run_dir": recipe.run_dir / CONTRAST_ROW}
    if world.is_main:
        print(f"contrast: the same student without a teacher, in `{values['run_dir']}` (--no-contrast)", flush=True)
    card = read_task_card(finetune(FinetuneRecipe(**values), world))
    return {CONTRAST_ROW: card.scores["dev"]} if card and recipe.has_dev else {}
