"""Runs of the tables: a pretraining for each row, a fine-tuning for each cell and seed.

Tables share runs. Each run has its own directory: finished runs are looked up, and interrupted ones continue.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any

from recipes.ablations.data import PreparedData
from recipes.ablations.finetune import AblationFinetuneRecipe
from recipes.ablations.pretrain import AblationPretrainRecipe, pretrain_ablation
from recipes.ablations.scales import Scale
from recipes.ablations.tables import LABELLED_DATA, Column, Pretraining, Row, Table
from tasks.text.json_files import read_json
from training.checkpoint.task_card import TASK_FILE, read_task_card
from training.checkpoint.weights import WEIGHTS_FILE, has_weights
from training.grid import Digests, look_up, run_cell
from training.loop.distributed import World
from training.loop.loss_monitor import DivergedError
from training.loop.recipe import RECIPE_FILE, RunMismatchError
from training.pretrain import corpora, recipe_record
from training.reports.grid_report import Outcome, Setting
from training.reports.result import input_digests

Recipe = AblationPretrainRecipe | AblationFinetuneRecipe
NUM_FEATURE_LAYERS = 4
"""Concatenated last layers: the best feature-based approach of table 7."""


@dataclass(frozen=True, kw_only=True)
class Runs:
    """Directories and recipes of all runs."""

    run_dir: Path
    scale: Scale
    seeds: tuple[int, ...]
    prepared: PreparedData

    def pretraining(self, pretraining: Pretraining) -> AblationPretrainRecipe:
        """Return the recipe of a pretraining."""
        layers, hidden, heads = self.scale.shape
        fields: dict[str, Any] = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads}
        fields |= {"corpus": self.prepared.corpus, "dev_corpus": self.prepared.dev_corpus}
        fields |= {**self.scale.pretraining, **pretraining.changes}
        return AblationPretrainRecipe(run_dir=self.run_dir / "pretrain" / pretraining.name, **fields)

    def finetunings(self, row: Row, column: Column) -> list[AblationFinetuneRecipe]:
        """Return the recipes of a cell, one for each seed."""
        data, (train, dev) = LABELLED_DATA[column.task], self.prepared.labelled[column.task]
        checkpoint = self.pretraining(row.pretraining).run_dir / "checkpoint"
        has_bilstm = row.bilstm or column.feature_based
        fields: dict[str, Any] = {"task": data.task, "checkpoint": checkpoint, "train": (train,), "dev": (dev,)}
        fields |= {"columns": data.columns, "from_scratch": row.from_scratch}
        fields |= {**self.scale.finetuning, **(self.scale.spans if data.task == "spans" else {})}
        fields |= {**(self.scale.bilstm if has_bilstm else {}), **(self._features(row) if column.feature_based else {})}
        fields["num_epochs"] = data.num_epochs * self.scale.epochs * (self.scale.bilstm_epochs if has_bilstm else 1)
        marks = {"scratch": row.from_scratch, "bilstm": row.bilstm, "features": column.feature_based}
        name = "-".join([column.task, *(mark for mark, holds in marks.items() if holds)])
        directory = self.run_dir / "finetune" / row.pretraining.name
        return [
            AblationFinetuneRecipe(run_dir=directory / f"{name}-seed{seed}", seed=seed, **fields) for seed in self.seeds
        ]

    def _features(self, row: Row) -> dict[str, Any]:
        depth = row.pretraining.changes.get("num_hidden_layers", self.scale.shape[0])
        layers = tuple(range(-1, -1 - min(NUM_FEATURE_LAYERS, depth), -1))
        return {"frozen": True, "layers": layers, **self.scale.features}

    def plan(self, tables: Sequence[Table]) -> list[Recipe]:
        """Return all runs, each once, in the order to do them: the first seed of all tables comes first."""
        runs: dict[Path, Recipe] = {}
        for number, table in itertools.product(range(len(self.seeds)), tables):
            for row in table.rows:
                pretraining = self.pretraining(row.pretraining)
                cells = [self.finetunings(row, column)[number] for column in table.columns]
                runs[pretraining.run_dir] = pretraining
                runs |= {cell.run_dir: cell for cell in cells}
        return list(runs.values())


def run_all(
    runs: Sequence[Recipe], world: World, *, finished: Callable[[dict[Path, Outcome]], None]
) -> tuple[dict[Path, Outcome], set[Path]]:
    """Do all runs that are not done yet. A refused run, or a pretraining that diverges, does not stop others.

    Args:
        finished: function to call after each run with the outcomes so far, by directory.

    Returns:
        The outcomes, and the directories of skipped runs; the reasons were printed.
    """
    outcomes: dict[Path, Outcome] = {}
    skipped: set[Path] = set()

    def attempt(recipe: Recipe, work: Callable[[], Outcome | None]) -> None:
        try:
            if isinstance(recipe, AblationFinetuneRecipe) and recipe.checkpoint.parent in skipped:
                raise RunMismatchError(f"`{recipe.run_dir}` builds on `{recipe.checkpoint.parent}`")
            if outcome := work():
                outcomes[recipe.run_dir] = outcome
        except (RunMismatchError, DivergedError) as error:
            skipped.add(recipe.run_dir)
            if world.is_main:
                print(f"skipped: {error}", flush=True)

    known = cache(input_digests)
    for recipe in runs:
        attempt(recipe, partial(_look_up, recipe, known))
    left = [recipe for recipe in runs if recipe.run_dir not in {*outcomes, *skipped}]
    seconds: dict[type, list[float]] = defaultdict(list)
    if world.is_main:
        print(f"{len(runs)} runs, {len(outcomes)} are finished", flush=True)
    world.barrier()  # all processes have seen the finished runs
    for number, recipe in enumerate(left):
        start = time.monotonic()
        if world.is_main:
            name = f"fine-tune {recipe.run_dir.parent.name}: {recipe.run_dir.name}"
            if isinstance(recipe, AblationPretrainRecipe):
                name = f"pretrain {recipe.run_dir.name}"
            number_of_all = f"[{len(runs) - len(left) + number + 1}/{len(runs)}]"
            print(f"\n{number_of_all} {name}{_time_left(left[number:], seconds)}", flush=True)
        attempt(recipe, partial(_run, recipe, world))
        if recipe.run_dir in outcomes:
            seconds[type(recipe)].append(time.monotonic() - start)
        if world.is_main:
            finished(outcomes)
        world.barrier()
    return outcomes, skipped


def _look_up(recipe: Recipe, digests: Digests) -> Outcome | None:
    """Return the outcome of a run; None if it is not done, or the checkpoint to start from does not exist yet.

    Raises:
        RunMismatchError: if the run had another recipe or other data.
    """
    if isinstance(recipe, AblationFinetuneRecipe):
        return look_up(recipe, digests) if has_weights(recipe.checkpoint) else None
    if not has_weights(recipe.run_dir / "checkpoint"):
        return None
    recipe_record(recipe, *corpora(recipe)).check(read_json(recipe.run_dir / RECIPE_FILE), recipe.run_dir)
    return _outcome(recipe)


def _run(recipe: Recipe, world: World) -> Outcome:
    if isinstance(recipe, AblationPretrainRecipe):
        pretrain_ablation(recipe, world)
        return _outcome(recipe)
    # A run whose pretrained weights were deleted could not be looked up before they were made again.
    outcome = look_up(recipe) or run_cell(recipe, world)
    if world.is_main:
        (recipe.run_dir / "checkpoint" / WEIGHTS_FILE).unlink(missing_ok=True)  # only the scores are needed
    return outcome


def _outcome(recipe: AblationPretrainRecipe) -> Outcome:
    """Return the outcome of a finished pretraining."""
    card = read_task_card(recipe.run_dir / "checkpoint")
    if card is None:
        raise RunMismatchError(f"`{recipe.run_dir / 'checkpoint'}` has no {TASK_FILE}; remove `{recipe.run_dir}`")
    setting = Setting(recipe.learning_rate, recipe.global_batch_size, recipe.num_steps)
    return Outcome(name=recipe.run_dir.name, setting=setting, seed=recipe.seed, scores=card.scores)


def _time_left(runs: Sequence[Recipe], seconds: dict[type, list[float]]) -> str:
    """Estimate the time left from the runs of each stage so far; empty until one of each is done."""
    if not all(seconds[type(recipe)] for recipe in runs):
        return ""
    left = sum(statistics.fmean(seconds[type(recipe)]) for recipe in runs)
    return f", about {timedelta(seconds=round(left))} left"
