"""Scores of fine-tuning: the curve on a sample of the dev data, then all of them, and the checkpoint."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from tasks import AnyTask
from tasks.batching import predict
from tasks.spans import Spans, best_null_threshold
from training.checkpoint.evaluation import predict_with_progress, torch_run
from training.checkpoint.task_card import TaskCard
from training.data.examples import Examples
from training.finetuning.data import FinetuningExamples
from training.finetuning.recipe import FinetuneRecipe
from training.loop.distributed import World
from training.loop.run_directory import RunDirectory
from training.loop.train import train
from training.loop.types import Evaluation, Phase, Progress
from training.model.heads import BertModel
from training.objectives.finetuning import FinetuningData
from training.objectives.registry import OBJECTIVES, best_baseline
from training.reports.grid_report import Outcome, Setting, metric_of
from training.reports.result import write_result
from training.reports.scores import format_scores


def train_network(
    recipe: FinetuneRecipe, run: RunDirectory, data: FinetuningExamples, model: BertModel, batches: FinetuningData
) -> Progress:
    """Train the network on batches; the curve has the scores of a sample of the dev examples."""
    num_steps = max(1, round(recipe.num_epochs * batches.num_batches(0)))
    return train(
        model,
        [Phase(data=batches)],
        batches.objective.losses,
        num_steps=num_steps,
        settings=recipe,
        run=run,
        weights=batches.objective.weights,
        evaluation=_evaluation(recipe, data, model, run.world, every=-(-num_steps // 4)) if data.dev else None,
        label="fine-tune" if recipe.stage == "fine-tuning" else "distil",
    )


def _evaluation(
    recipe: FinetuneRecipe, data: FinetuningExamples, model: BertModel, world: World, *, every: int
) -> Evaluation:
    """Return the evaluation for the curve, on a sample of the dev examples.

    Thresholds are chosen on the sample each time, as they are on all dev examples in the end.
    """
    task, sample = data.task, data.dev.sample(recipe.eval_examples)

    def scores() -> dict[str, float]:
        with OBJECTIVES[task.name].evaluation_head(model, task):
            predictions = predict(task, sample, torch_run(model, task, world.device))
        tuned, found = _tuned(recipe, task, sample, predictions)
        return tuned.score(sample, found)

    return Evaluation(scores=scores, every=every)


def score_and_write(
    recipe: FinetuneRecipe,
    run: RunDirectory,
    data: FinetuningExamples,
    model: BertModel,
    *,
    origin: Mapping[str, Any],
    others: Mapping[str, Mapping[str, float]] = MappingProxyType({}),
) -> None:
    """Score all dev examples, write the checkpoint, and print the scores.

    Args:
        origin: provenance of the checkpoint.
        others: scores on dev by row, to compare with, such as those of a teacher.
    """
    task = data.task
    scores: dict[str, Any] = {}
    with OBJECTIVES[recipe.task].evaluation_head(model, task):
        if data.dev:
            task, scores = _score(recipe, data, model, run.world, others)
        card = TaskCard(task=task.name, settings=task.settings, scores=scores, provenance=origin)
        write_result(run, model, tokenizer_from=recipe.checkpoint, card=card)
    if scores:
        print(format_scores({name: row for name, row in scores.items() if isinstance(row, dict)}))
        if data.train:
            _warn_of_failure(recipe, scores)


def _score(
    recipe: FinetuneRecipe,
    data: FinetuningExamples,
    model: BertModel,
    world: World,
    others: Mapping[str, Mapping[str, float]],
) -> tuple[AnyTask, dict[str, Any]]:
    """Score all dev examples.

    Returns:
        The task, with the null threshold found by `--null-threshold auto`, or with the thresholds of its labels; and
        scores by row; last, those of a baseline, if there are training data with labels.
    """
    task, dev = data.task, data.dev
    predictions = predict_with_progress(task, dev, torch_run(model, task, world.device))
    rows = {"dev": task.score(dev, predictions)}
    tuned, found = _tuned(recipe, task, dev, predictions)
    if tuned is not task:
        before = "null threshold 0" if isinstance(task, Spans) else "thresholds 0.5"
        rows = {"dev": tuned.score(dev, found), f"dev, {before}": rows["dev"]}
        task = tuned
    if isinstance(task, Spans) and recipe.null_threshold == "auto":
        print(f"null threshold with the best F1 on dev: {task.settings.null_threshold:.3f}", flush=True)
    if data.train:
        name, baseline_scores = best_baseline(task.name, data.train, dev, task.tokenizer)
        others = {**others, name: baseline_scores}
    return task, {**rows, **others, "num_dev_examples": len(dev)}


def _tuned(
    recipe: FinetuneRecipe, task: AnyTask, dev: Examples, predictions: Sequence[Any]
) -> tuple[AnyTask, Sequence[Any]]:
    """Return the task with the thresholds that the recipe leaves to dev, and its predictions with them."""
    if isinstance(task, Spans) and recipe.null_threshold == "auto":
        tuned = Spans(task.tokenizer, replace(task.settings, null_threshold=best_null_threshold(dev, predictions)))
        return tuned, [tuned.decide(prediction) for prediction in predictions]
    return OBJECTIVES[task.name].tuned(task, dev, predictions)


def _warn_of_failure(recipe: FinetuneRecipe, scores: Mapping[str, Any]) -> None:
    """Warn if the score on dev is not above the baseline."""
    assert recipe.learning_rate is not None
    setting = Setting(recipe.learning_rate, recipe.global_batch_size, recipe.num_epochs)
    outcome = Outcome(name=recipe.run_dir.name, setting=setting, seed=recipe.seed, scores=scores)
    if failure := outcome.failure(metric_of(outcome.scores["dev"], None)):
        print(f"warning: {failure}: train longer, or try other learning rates and seeds (make grid)", file=sys.stderr)
