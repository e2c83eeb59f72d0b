"""The runs behind the tables: a pretraining for every row that needs another, a fine-tuning for every cell and seed.

Runs that tables have in common are done once. Each has its own directory, so that whatever is finished is only looked
up, and whatever was killed goes on.
"""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from training.ablations.prepare import Prepared
from training.ablations.scales import Scale
from training.ablations.tables import LABELLED_DATA, Column, Pretraining, Row, Table
from training.checkpoint import WEIGHTS_FILE, read_json, read_task_card
from training.finetune import FinetuneRecipe
from training.grid import run_cell
from training.loop.distributed import World
from training.loop.run import RECIPE_FILE
from training.loop.train import PLACES_AND_PACE, recipe_fields
from training.pretrain import PretrainRecipe, pretrain
from training.reports.grid import Outcome, Setting

NUM_FEATURE_LAYERS = 4
"""The last ones, side by side: the best feature-based approach of table 7."""


@dataclass(frozen=True, kw_only=True)
class Runs:
    """Where the runs are, and what they have in common."""

    run_dir: Path
    scale: Scale
    seeds: tuple[int, ...]
    prepared: Prepared

    def pretraining(self, pretraining: Pretraining) -> PretrainRecipe:
        """The recipe of a pretraining."""
        layers, hidden, heads = self.scale.shape
        fields: dict[str, Any] = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads}
        fields |= {"corpus": self.prepared.corpus, "dev_corpus": self.prepared.dev_corpus}
        fields |= {**self.scale.pretraining, **pretraining.changes}
        return PretrainRecipe(run_dir=self.run_dir / "pretrain" / pretraining.name, **fields)

    def finetunings(self, row: Row, column: Column) -> list[FinetuneRecipe]:
        """The recipes of a cell, one a seed."""
        data, (train, dev) = LABELLED_DATA[column.task], self.prepared.labelled[column.task]
        checkpoint = self.pretraining(row.pretraining).run_dir / "checkpoint"
        fields: dict[str, Any] = {"task": data.task, "checkpoint": checkpoint, "train": (train,), "dev": (dev,)}
        fields |= {"columns": data.columns, "num_epochs": data.num_epochs * self.scale.epochs}
        fields |= {**self.scale.finetuning, **(self.scale.spans if data.task == "spans" else {})}
        fields |= {"from_scratch": row.from_scratch} | self._features(row, column)
        marks = {"scratch": row.from_scratch, "bilstm": row.bilstm, "features": column.feature_based}
        name = "-".join([column.task, *(mark for mark, holds in marks.items() if holds)])
        directory = self.run_dir / "finetune" / row.pretraining.name
        return [FinetuneRecipe(run_dir=directory / f"{name}-seed{seed}", seed=seed, **fields) for seed in self.seeds]

    def _features(self, row: Row, column: Column) -> dict[str, Any]:
        if not column.feature_based:
            return {"bilstm": self.scale.bilstm} if row.bilstm else {}
        depth = row.pretraining.changes.get("num_hidden_layers", self.scale.shape[0])
        layers = tuple(range(-1, -1 - min(NUM_FEATURE_LAYERS, depth), -1))
        return {
            "frozen": True,
            "layers": layers,
            "bilstm": self.scale.bilstm,
            "learning_rate": self.scale.feature_learning_rate,
        }

    def plan(self, tables: Sequence[Table]) -> list[PretrainRecipe | FinetuneRecipe]:
        """All runs, each once, in an order in which they can be done; the tables are whole before a second seed."""
        runs: dict[Path, PretrainRecipe | FinetuneRecipe] = {}
        for number, table in itertools.product(range(len(self.seeds)), tables):
            for row in table.rows:
                pretraining = self.pretraining(row.pretraining)
                cells = [self.finetunings(row, column)[number] for column in table.columns]
                runs[pretraining.run_dir] = pretraining
                runs |= {cell.run_dir: cell for cell in cells}
        return list(runs.values())


def run_all(
    runs: Sequence[PretrainRecipe | FinetuneRecipe], world: World, *, finished: Callable[[dict[Path, Outcome]], None]
) -> dict[Path, Outcome]:
    """Do all runs, or what is left of them.

    Args:
        finished: called after each run with the outcomes so far, by directory.
    """
    outcomes = {recipe.run_dir: _outcome(recipe) for recipe in runs if is_done(recipe)}
    left, clock = [recipe for recipe in runs if recipe.run_dir not in outcomes], _Clock()
    if world.is_main:
        print(f"{len(runs)} runs, {len(outcomes)} are finished", flush=True)
    world.barrier()  # all have seen what is finished
    for number, recipe in enumerate(left):
        start = time.monotonic()
        if world.is_main:
            place = f"[{len(runs) - len(left) + number + 1}/{len(runs)}]"
            print(f"\n{place} {_name(recipe)}{clock.time_left(left[number:])}", flush=True)
        outcomes[recipe.run_dir] = _run(recipe, world)
        clock.count(recipe, time.monotonic() - start)
        if world.is_main:
            finished(outcomes)
        world.barrier()
    return outcomes


def _run(recipe: PretrainRecipe | FinetuneRecipe, world: World) -> Outcome:
    if isinstance(recipe, PretrainRecipe):
        pretrain(recipe, world)
        return _outcome(recipe)
    outcome = run_cell(recipe, world)
    if world.is_main:
        (recipe.run_dir / "checkpoint" / WEIGHTS_FILE).unlink(missing_ok=True)  # only the scores are wanted
    return outcome


def is_done(recipe: PretrainRecipe | FinetuneRecipe) -> bool:
    """Whether the run was finished with the same recipe. (Data and checkpoint are compared when it is run.)"""
    path = recipe.run_dir / RECIPE_FILE
    if not path.is_file() or not (recipe.run_dir / "checkpoint").exists():
        return False
    before = read_json(path)
    wanted = {name: value for name, value in recipe_fields(recipe).items() if name not in PLACES_AND_PACE}
    return all(before.get(name) == value for name, value in wanted.items())


def _outcome(recipe: PretrainRecipe | FinetuneRecipe) -> Outcome:
    """Of a finished run."""
    card = read_task_card(recipe.run_dir / "checkpoint")
    assert card
    steps = recipe.num_steps if isinstance(recipe, PretrainRecipe) else recipe.num_epochs
    setting = Setting(recipe.learning_rate, recipe.global_batch_size, steps)
    return Outcome(name=recipe.run_dir.name, setting=setting, seed=recipe.seed, scores=card.scores)


def _name(recipe: PretrainRecipe | FinetuneRecipe) -> str:
    if isinstance(recipe, PretrainRecipe):
        return f"pretrain {recipe.run_dir.name}"
    return f"fine-tune {recipe.run_dir.parent.name}: {recipe.run_dir.name}"


class _Clock:
    """How long the runs that are left will take, by how long those like them took."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
        """Of a unit of work, by stage and kind."""

    def count(self, recipe: PretrainRecipe | FinetuneRecipe, seconds: float) -> None:
        """Take note of a run."""
        stage, kind, work = _work(recipe)
        self._seconds[stage, kind].append(seconds / work)

    def time_left(self, runs: Sequence[PretrainRecipe | FinetuneRecipe]) -> str:
        """Words for the rest; none before there is a run of each stage to go by."""
        left = 0.0
        for stage, kind, work in map(_work, runs):
            like_it = self._seconds.get((stage, kind), [])
            same_stage = [value for (other, _), values in self._seconds.items() if other == stage for value in values]
            known = like_it or same_stage
            if not known:
                return ""
            left += work * sum(known) / len(known)
        return f", about {timedelta(seconds=round(left))} left"


def _work(recipe: PretrainRecipe | FinetuneRecipe) -> tuple[str, str, float]:
    """Stage and kind of a run, and its size: weights of the layers x steps, or epochs."""
    if isinstance(recipe, PretrainRecipe):
        return "pretrain", recipe.direction, float(recipe.num_hidden_layers * recipe.hidden_size**2 * recipe.num_steps)
    return "fine-tune", f"{recipe.train[0]}, frozen {recipe.frozen}", recipe.num_epochs
