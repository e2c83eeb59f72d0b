"""Fine-tuning of one run, for `training.finetune`, `training.grid` and `training.distill`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tasks import AnyTask
from tasks.batching import predict
from tasks.spans import Spans, best_null_threshold, best_temperatures
from training.checkpoint.evaluation import predict_with_progress, torch_run
from training.checkpoint.task_card import TaskCard
from training.data.examples import Examples
from training.finetuning.data import FinetuningExamples, are_all_pairs, encode_data, read_data
from training.finetuning.network import create_network, train_on
from training.finetuning.recipe import FinetuneRecipe, finetuning_record, with_learning_rate
from training.loop.distributed import World
from training.loop.run_directory import RunDirectory
from training.model.heads import BertModel
from training.objectives.base import LabelledFeatures, LabelledObjective, TaskObjective
from training.objectives.classes import ClassObjective, class_weights, describe_weights
from training.objectives.registry import OBJECTIVES, best_baseline
from training.reports.grid_report import below_baseline, metric_of
from training.reports.result import input_digests, provenance, write_result
from training.reports.tables import ClassScores, format_class_scores, format_scores


def finetune(recipe: FinetuneRecipe, world: World) -> Path:
    """Fine-tune, or resume.

    Returns:
        The checkpoint directory.

    Raises:
        ValueError: if data or checkpoint cannot be used, or the run was started with another recipe.
    """
    with RunDirectory(recipe.run_dir, world) as run:
        recipe = with_learning_rate(recipe, run)
        data = read_data(recipe)
        objective = loss_objective(recipe, data, world)
        record = finetuning_record(recipe, input_digests(recipe.checkpoint, recipe.train, recipe.dev))
        if not run.begin(record):
            return run.checkpoint_path
        torch.manual_seed(recipe.seed)
        model = create_network(recipe, data.task)
        items, cuts = encode_data(recipe, data, world)
        origin = provenance(
            recipe.checkpoint, (*recipe.train, *recipe.dev), recipe, record.values, text_pairs=are_all_pairs(data.train)
        )
        train_and_write(recipe, run, data, model, items, objective, origin=origin | {"cuts": cuts})
        return run.checkpoint_path


def loss_objective(recipe: FinetuneRecipe, data: FinetuningExamples, world: World) -> TaskObjective:
    """Return the objective of the task, with the class weights and label smoothing of the recipe.

    Raises:
        ValueError: as `class_weights`.
    """
    objective = OBJECTIVES[recipe.task]
    if not isinstance(objective, ClassObjective):
        return objective
    weights: dict[str, float] = {}
    if recipe.class_weights:
        weights = class_weights(objective, data.task, data.train, recipe.class_weights)
        if world.is_main:
            print(f"class weights: {describe_weights(weights)}", flush=True)
    return objective.weighted(weights, recipe.label_smoothing)


def train_and_write(
    recipe: FinetuneRecipe,
    run: RunDirectory,
    data: FinetuningExamples,
    model: BertModel,
    items: Sequence[LabelledFeatures],
    objective: LabelledObjective,
    *,
    origin: Mapping[str, Any],
    others: Mapping[str, Mapping[str, float]] | None = None,
) -> None:
    """Train a network, score all dev examples, write the checkpoint, and print the scores.

    The curve is of a sample of the dev examples. Thresholds are chosen on the sample each time, as they are on all dev
    examples in the end.

    Args:
        others: scores on dev by row, to compare with, such as those of a teacher.
    """
    task, world, sample = data.task, run.world, data.dev.sample(recipe.eval_examples)

    def sample_scores() -> dict[str, float]:
        with OBJECTIVES[task.name].evaluation_head(model, task):
            predictions = predict(task, sample, torch_run(model, task, world.device))
        tuned, found = _tuned(recipe, task, sample, predictions)
        return tuned.score(sample, found)

    trained = train_on(
        items,
        objective,
        model,
        recipe,
        run,
        num_epochs=recipe.num_epochs,
        pad_id=task.tokenizer.pad_id,
        scores=sample_scores if data.dev else None,
        eval_every=recipe.eval_every,
        label="fine-tune" if recipe.stage == "fine-tuning" else "distil",
    )
    if world.is_main:
        rows: dict[str, Mapping[str, float]] = {}
        classes: ClassScores = {}
        tuned, scores = task, dict[str, Any]()
        with OBJECTIVES[recipe.task].evaluation_head(model, task):
            if data.dev:
                tuned, rows, classes = _score(recipe, data, model, world, others or {})
                scores = {**rows, "num_dev_examples": len(data.dev)}
            if classes:
                scores["by_class"] = [{"name": name, **values} for name, values in classes.items()]
            card = TaskCard(task=task.name, settings=tuned.settings, scores=scores, provenance={**origin, **trained})
            write_result(run, model, tokenizer_from=recipe.checkpoint, card=card)
        if rows:
            print(format_scores(rows) + format_class_scores(classes))
            if data.train and (problem := below_baseline(rows, metric_of(rows["dev"], None))):
                print(
                    f"warning: {problem}: train longer, or try other learning rates and seeds (make grid)",
                    file=sys.stderr,
                )
    world.barrier()


def _score(
    recipe: FinetuneRecipe,
    data: FinetuningExamples,
    model: BertModel,
    world: World,
    others: Mapping[str, Mapping[str, float]],
) -> tuple[AnyTask, dict[str, Mapping[str, float]], ClassScores]:
    """Score all dev examples.

    Returns:
        The task, with the null threshold found by `--null-threshold auto`, or with the thresholds of its labels;
        scores by row; last, those of a baseline, if there are training data with labels; and scores by class.
    """
    task, dev = data.task, data.dev
    predictions = predict_with_progress(task, dev, torch_run(model, task, world.device))
    rows = {"dev": task.score(dev, predictions)}
    tuned, found = _tuned(recipe, task, dev, predictions)
    if tuned is not task:
        before = "null threshold 0" if isinstance(task, Spans) else "thresholds 0.5"
        rows = {"dev": tuned.score(dev, found), f"dev, {before}": rows["dev"]}
        if isinstance(tuned, Spans):
            print(
                f"null threshold with the best F1 on dev: {tuned.settings.null_threshold:.3f}; temperatures that make "
                f'scores probabilities: {tuned.settings.temperature:.2f}, of "no answer" '
                f"{tuned.settings.null_temperature:.2f}",
                flush=True,
            )
    if data.train:
        name, baseline_scores = best_baseline(task.name, data.train, dev, task.tokenizer)
        others = {**others, name: baseline_scores}
    return tuned, {**rows, **others}, tuned.class_scores(dev, found)


def _tuned(
    recipe: FinetuneRecipe, task: AnyTask, dev: Examples, predictions: Sequence[Any]
) -> tuple[AnyTask, Sequence[Any]]:
    """Return the task with the thresholds that the recipe leaves to dev, and its predictions with them."""
    if isinstance(task, Spans) and recipe.null_threshold == "auto":
        threshold = best_null_threshold(dev, predictions)
        own, of_null = best_temperatures(dev, predictions, threshold)
        settings = replace(task.settings, null_threshold=threshold, temperature=own, null_temperature=of_null)
        tuned = Spans(task.tokenizer, settings)
        return tuned, [tuned.decide(prediction) for prediction in predictions]
    return OBJECTIVES[task.name].tuned(task, dev, predictions)
