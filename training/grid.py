"""Fine-tune with each setting of a grid and several seeds, and keep the best run on dev (appendix A.3 of the paper).

    python -m training.grid classification --checkpoint runs/mini/checkpoint --train a.tsv --dev b.tsv --run-dir runs/a
    python -m training.grid spans --checkpoint runs/mini/checkpoint --train a.json --dev b.json --run-dir runs/b \\
        --learning-rates 5e-5 3e-5 2e-5 --batch-sizes 16 32 --epochs 2 3 4 --seeds 0 1 2

With --teacher, each run is a distillation (training.distill); its outputs are computed once for all runs.

A seed varies the order of the data, dropout and the weights of a new head. Each run has its own directory in the run
directory. The same command resumes; a longer list adds runs. The results are `checkpoint/` of the best run, `grid.json`
with means and deviations by setting and the failed runs, and `grid.png`.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import tyro

from tasks.bundle.files import atomic_directory, atomic_write
from tasks.text.json_files import read_json
from training.checkpoint.reader import load_tokenizer, read_shape
from training.checkpoint.task_card import TASK_FILE, read_task_card
from training.checkpoint.weights import WEIGHTS_FILE
from training.command_line.bounds import refuse_unused
from training.command_line.command import command, parse
from training.distillation.tasks import (
    TaskDistillRecipe,
    distil_task,
    distillation_record,
    read_teachers,
    with_directories,
)
from training.finetuning.data import read_parts
from training.finetuning.recipe import FinetuneRecipe, default_learning_rate, finetuning_record
from training.finetuning.run import finetune
from training.loop.distributed import World, world
from training.loop.loss_monitor import DivergedError
from training.loop.recipe import RECIPE_FILE, RecipeRecord, check_no_run
from training.objectives.registry import best_baseline
from training.reports.grid_report import (
    GridReport,
    Outcome,
    Setting,
    best_outcome,
    format_report,
    metric_of,
    plot_report,
    report,
)
from training.reports.result import Digests, input_digests

REPORT_FILE = "grid.json"
PLOT_FILE = "grid.png"
FAILURE_FILE = "failure.json"


@dataclass(frozen=True, kw_only=True)
class GridRecipe(TaskDistillRecipe):
    """Fine-tune, or distil, with each setting of a grid and several seeds."""

    teacher: tuple[Path, ...] = ()
    """Distil with these teachers, as training.distill does; by default, fine-tune on the labels."""
    contrast: tyro.conf.Suppress[bool] = False
    learning_rate: tyro.conf.Suppress[float] = 5e-5
    global_batch_size: tyro.conf.Suppress[int] = 32
    num_epochs: tyro.conf.Suppress[float] = 3.0
    seed: tyro.conf.Suppress[int] = 0
    learning_rates: tuple[float, ...] | None = None
    """Peak learning rates to try. None: 1, 0.6 and 0.4 times the default of fine-tuning for the hidden size of the
    encoder, which are the paper's 5e-5, 3e-5 and 2e-5 for BERT-base."""
    batch_sizes: tuple[int, ...] = (32,)
    """Global batch sizes to try, in sequences."""
    epochs: tuple[float, ...] = (3.0,)
    """Numbers of epochs to try."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds; each setting runs once with each."""
    metric: str | None = None
    """Score on dev that chooses the best run; None for the task's first."""
    from_scratch: bool = True
    """Also run the best setting from random weights, to show the effect of pretraining."""
    keep: Literal["best", "all"] = "best"
    """Keep the weights of the best run, or of all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("learning_rates", "batch_sizes", "epochs", "seeds"):
            values = getattr(self, name)
            if values is not None and (not values or len(set(values)) < len(values)):
                raise ValueError(f"{name} must be one or more different values: `{' '.join(map(str, values))}`")
        if not self.teacher:
            for name in ("unlabelled", "outputs", "alpha", "temperature"):
                refuse_unused(self, name, "needs --teacher")
        if not self.train:
            raise ValueError("give --train, the data to learn on")
        if not self.has_dev:
            raise ValueError("a grid chooses by the score on held-out data; add --dev or --dev-fraction")
        for setting in self.settings():
            self.recipes(setting)

    def settings(self) -> list[Setting]:
        """Return all combinations of learning rate, batch size and epochs."""
        rates = self.learning_rates or (self.learning_rate,)
        return [Setting(*values) for values in itertools.product(rates, self.batch_sizes, self.epochs)]

    def recipes(self, setting: Setting, *, from_scratch: bool = False) -> list[FinetuneRecipe]:
        """Return the recipes of a setting, one for each seed.

        Raises:
            ValueError: if one of its values is impossible.
        """
        kind = TaskDistillRecipe if self.teacher and not from_scratch else FinetuneRecipe
        common: dict[str, Any] = {item.name: getattr(self, item.name) for item in fields(kind)}
        common |= {item.name: getattr(setting, item.name) for item in fields(setting)} | {"from_scratch": from_scratch}
        prefix = "scratch-" if from_scratch else ""
        name = f"{prefix}lr{setting.learning_rate}-batch{setting.global_batch_size}-epochs{setting.num_epochs:g}"
        return [kind(**common | {"seed": seed, "run_dir": self.run_dir / f"{name}-seed{seed}"}) for seed in self.seeds]


def grid(recipe: GridRecipe, world: World) -> GridReport:
    """Run or resume the grid, and put the best checkpoint at `<run_dir>/checkpoint`.

    Raises:
        ValueError: if data or checkpoint cannot be used, the run directory is not a grid's or has another recipe, the
            metric is unknown, or all runs failed.
    """
    check_no_run(recipe.run_dir)
    if (recipe.run_dir / "checkpoint").exists() and not (recipe.run_dir / REPORT_FILE).is_file():
        raise ValueError(f"`{recipe.run_dir}` holds a checkpoint that is not a grid's; choose another run directory")
    _check_metric(recipe)
    recipe = with_learning_rates(recipe, world)
    recipes = [run_recipe for setting in recipe.settings() for run_recipe in recipe.recipes(setting)]
    progress = _Progress(recipe, recipes, world)
    outcomes: list[Outcome] = []
    best = None
    for run_recipe in recipes:
        outcomes.append(progress.run(run_recipe))
        if scored := [outcome for outcome in outcomes if outcome.scores]:
            best = best_outcome(scored, metric_of(scored[0].scores["dev"], recipe.metric))
        if best and world.is_main and recipe.keep == "best" and _weights(recipe, best).is_file():
            _drop_weights(recipe, [outcome for outcome in outcomes if outcome is not best])
    if not best:
        raise ValueError(f"all {len(outcomes)} runs failed; the first: {outcomes[0].error}")
    if not _weights(recipe, best).is_file():  # the metric or the settings have changed
        directory = recipe.run_dir / best.name
        raise ValueError(f"the best run is now `{directory}`, whose weights were dropped; remove it to run it again")
    baselines = recipe.recipes(best.setting, from_scratch=True) if recipe.from_scratch else []
    unpretrained = [progress.run(run_recipe) for run_recipe in baselines]
    found = report(recipe.task, outcomes, unpretrained, metric_of(best.scores["dev"], recipe.metric))
    if world.is_main:
        if recipe.keep == "best":
            _drop_weights(recipe, unpretrained)
        _write(recipe, found, best)
    world.barrier()
    return found


def with_learning_rates(recipe: GridRecipe, world: World) -> GridRecipe:
    """Set the learning rates if the recipe has none."""
    if recipe.learning_rates is not None:
        return recipe
    hidden_size = read_shape(recipe.checkpoint).hidden_size
    rates = tuple(float(f"{factor * default_learning_rate(hidden_size):.2g}") for factor in (1, 0.6, 0.4))
    if world.is_main:
        shown = " ".join(f"{rate:g}" for rate in rates)
        print(f"learning rates: {shown}, by default for hidden size {hidden_size} (--learning-rates)", flush=True)
    return replace(recipe, learning_rates=rates)


class _Progress:
    """Runs of a grid: starts one after the other, and prints its number and the time left."""

    def __init__(self, recipe: GridRecipe, recipes: Sequence[FinetuneRecipe], world: World) -> None:
        num_baselines = len(recipe.seeds) if recipe.from_scratch else 0
        self._world = world
        self._digests = functools.cache(input_digests)
        self._epochs_left = [run_recipe.num_epochs for run_recipe in recipes] + [max(recipe.epochs)] * num_baselines
        self._num_runs = len(self._epochs_left)
        self._epochs_done, self._seconds = 0.0, 0.0
        baselines = f" + {num_baselines} from random weights" if num_baselines else ""
        done = sum(look_up(run_recipe, self._digests) is not None for run_recipe in recipes)
        self._print(
            f"{len(recipes)} runs (settings x seeds: {len(recipe.settings())} x {len(recipe.seeds)}){baselines}, "
            f"{sum(self._epochs_left):g} epochs in all" + (f"; {done} runs are finished" if done else "")
        )

    def run(self, run_recipe: FinetuneRecipe) -> Outcome:
        """Start or resume a run, or look up its outcome."""
        number = self._num_runs - len(self._epochs_left) + 1
        seconds_left = self._seconds / (self._epochs_done or 1) * sum(self._epochs_left)
        epochs = self._epochs_left.pop(0)
        if outcome := look_up(run_recipe, self._digests):
            return outcome
        left = f", about {timedelta(seconds=round(seconds_left))} left" if seconds_left else ""
        self._print(f"\n[{number}/{self._num_runs}] {run_recipe.run_dir.name}{left}")
        start = time.monotonic()
        outcome = run_cell(run_recipe, self._world, self._digests)
        if outcome.error:
            self._print(f"\nfailed: {outcome.error}")
        else:
            self._epochs_done, self._seconds = self._epochs_done + epochs, self._seconds + time.monotonic() - start
        return outcome

    def _print(self, text: str) -> None:
        if self._world.is_main:
            print(text, flush=True)


def run_cell(run_recipe: FinetuneRecipe, world: World, digests: Digests = input_digests) -> Outcome:
    """Start or resume a run that `look_up` does not find.

    Raises:
        ValueError: as `finetune`.
    """
    failure_path = run_recipe.run_dir / FAILURE_FILE
    try:
        distil_task(run_recipe, world) if isinstance(run_recipe, TaskDistillRecipe) else finetune(run_recipe, world)
    except DivergedError as diverged:
        if world.is_main:
            failure = {"error": str(diverged), "recipe": _record(run_recipe, digests).values}
            atomic_write(failure_path, (json.dumps(failure, indent=2) + "\n").encode())
            shutil.rmtree(run_recipe.run_dir / "state", ignore_errors=True)
        return _outcome(run_recipe, {}, error=str(diverged))
    if world.is_main:
        failure_path.unlink(missing_ok=True)  # of an earlier recipe
    card = read_task_card(run_recipe.run_dir / "checkpoint")
    return _outcome(run_recipe, card.scores if card else {})


def look_up(run_recipe: FinetuneRecipe, digests: Digests = input_digests) -> Outcome | None:
    """Return the outcome of a run; None if it is not finished, or failed with another recipe or other data.

    Raises:
        RunMismatchError: if it finished with another recipe or other data.
        ValueError: naming a damaged file.
    """
    if card := read_task_card(run_recipe.run_dir / "checkpoint"):
        _record(run_recipe, digests).check(read_json(run_recipe.run_dir / RECIPE_FILE), run_recipe.run_dir)
        return _outcome(run_recipe, card.scores)
    path = run_recipe.run_dir / FAILURE_FILE
    failure = read_json(path) if path.is_file() else {}
    if failure and not _record(run_recipe, digests).difference(failure["recipe"]):
        return _outcome(run_recipe, {}, error=failure["error"])
    return None


def _record(run_recipe: FinetuneRecipe, digests: Digests) -> RecipeRecord:
    if isinstance(run_recipe, TaskDistillRecipe):
        return distillation_record(run_recipe, read_teachers(run_recipe), digests)
    return finetuning_record(run_recipe, digests(run_recipe.checkpoint, run_recipe.train, run_recipe.dev))


def _outcome(run_recipe: FinetuneRecipe, scores: Mapping[str, Any], *, error: str | None = None) -> Outcome:
    assert run_recipe.learning_rate is not None
    setting = Setting(run_recipe.learning_rate, run_recipe.global_batch_size, run_recipe.num_epochs)
    return Outcome(name=run_recipe.run_dir.name, setting=setting, seed=run_recipe.seed, scores=scores, error=error)


def _weights(recipe: GridRecipe, outcome: Outcome) -> Path:
    return recipe.run_dir / outcome.name / "checkpoint" / WEIGHTS_FILE


def _drop_weights(recipe: GridRecipe, outcomes: Sequence[Outcome]) -> None:
    """Remove the weights of some runs. Task cards stay: they mark finished runs."""
    for outcome in outcomes:
        _weights(recipe, outcome).unlink(missing_ok=True)


def _check_metric(recipe: GridRecipe) -> None:
    """Check the metric before hours of training: the baseline has the same scores as a run."""
    if recipe.metric:
        tokenizer = load_tokenizer(recipe.checkpoint)
        train, dev = read_parts(recipe, tokenizer)
        metric_of(best_baseline(recipe.task, train, dev, tokenizer)[1], recipe.metric)


def _write(recipe: GridRecipe, found: GridReport, best: Outcome) -> None:
    """Write report, plot and checkpoint, and print the report. The checkpoint's scores record how it was chosen.

    Raises:
        ValueError: if all runs failed.
    """
    text = json.dumps(asdict(found), indent=2, ensure_ascii=False) + "\n"
    atomic_write(recipe.run_dir / REPORT_FILE, text.encode())
    plot_report(found, recipe.run_dir / PLOT_FILE)
    print("\n" + format_report(found), flush=True)
    if found.best["failure"]:
        raise ValueError(f"all {found.num_runs} runs failed; the best: {found.best['failure']}")
    source = _weights(recipe, best).parent
    card = read_task_card(source)
    assert card
    choice = {"selection": found.selection, "num_settings": found.num_settings, "num_runs": found.num_runs}
    with atomic_directory(recipe.run_dir / "checkpoint", replace=True) as directory:
        for file in source.iterdir():
            try:
                os.link(file, directory / file.name)
            except OSError:  # the file system has no links
                shutil.copyfile(file, directory / file.name)
        (directory / TASK_FILE).unlink()  # a link: the run keeps its own
        card = replace(card, scores={**card.scores, **choice})
        (directory / TASK_FILE).write_text(card.to_json(), encoding="utf-8")
    print(f"best: {best.name}, {found.selection}")


@command
def main() -> None:
    """Command line."""
    recipe = parse(GridRecipe, "training.grid", __doc__)
    with world() as peers:
        recipe = with_directories(recipe, peers)
        grid(recipe, peers)
        if peers.is_main:
            print(f"checkpoint -> {recipe.run_dir / 'checkpoint'}")


if __name__ == "__main__":
    main()
