"""What is each part of BERT worth? Tables 5, 6 and 8 and figure 5 of the paper, in small.

    python -m training.ablations --data data/ --run-dir runs/ablations --tables 5 --scale smoke
    python -m training.ablations --data data/ --run-dir runs/ablations --scale small

The data folder holds text to pretrain on, `pretrain/*.txt`, and labelled data: glue/SST-2/{train,dev}.tsv, the same of
MRPC and RTE, squad/{train,dev}-v1.1*.json, ner/wnut17/{train,dev}.conll; packed with xz or gzip or not. Each
pretraining sees the same number of examples, but for the table of steps. Killed, the same command goes on.
`table-5.md` and `table-5.json` in the run directory hold what is known so far, `table-5.png` draws it when all runs of
the table are done; so do those of the others. Tables may be asked for one by one: what they have in common stays.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tasks.files import atomic_write
from training.ablations.plot import plot_result
from training.ablations.prepare import Prepared, find_labelled, find_text, prepare
from training.ablations.results import Result, collect, files, markdown, to_dict
from training.ablations.runs import Runs, run_all
from training.ablations.scales import SCALES, Scale, ScaleName
from training.ablations.tables import LABELLED_DATA, Table, TableName, TaskName, make_table
from training.command import command, parse
from training.loop.distributed import World, world
from training.reports.grid_report import Outcome


@dataclass(frozen=True, kw_only=True)
class AblationsRecipe:
    """Compare BERT with what is left out of it or changed."""

    data: Path
    """Folder with text and labelled data."""
    run_dir: Path
    """Directory of all runs and of what they show."""
    tables: tuple[TableName, ...] = ("5", "6", "8", "steps")
    """Pretraining tasks, model sizes, masking, and (figure 5) the number of steps."""
    scale: ScaleName = "small"
    """Sizes of networks, corpus and runs: smoke only shows that everything works (minutes), small (L2 H128) and mini
    (L4 H256) take hours on 2 CPU cores, full a day on a GPU."""
    tasks: tuple[TaskName, ...] | None = None
    """Columns; None for those of the scale."""
    seeds: tuple[int, ...] | None = None
    """Of fine-tuning; None for those of the scale."""
    text: str = "pretrain/*.txt*"
    """Files to pretrain on, in the data folder; the last is held out."""

    def __post_init__(self) -> None:
        for name in ("tables", "tasks", "seeds"):
            values = getattr(self, name)
            if values is not None and (not values or len(set(values)) < len(values)):
                raise ValueError(f"{name} must be one or more different values: `{' '.join(map(str, values))}`")
        if not self.text or Path(self.text).is_absolute():
            raise ValueError(f"--text must be a pattern within the data folder, such as pretrain/*.txt: `{self.text}`")
        _ = self.chosen  # which says what is wrong

    @property
    def sizes(self) -> Scale:
        """The scale."""
        return SCALES[self.scale]

    @property
    def chosen_tasks(self) -> tuple[TaskName, ...]:
        """Tasks to fine-tune on."""
        return self.tasks or tuple(task for task in LABELLED_DATA if task in self.sizes.tasks)

    @property
    def chosen(self) -> list[Table]:
        """The tables."""
        return [make_table(name, self.sizes, self.chosen_tasks) for name in self.tables]


def ablations(recipe: AblationsRecipe, world: World) -> list[Result]:
    """Do all runs of the tables, or what is left of them.

    Raises:
        ValueError: naming the data that is not there; in the end, when runs were left out.
    """
    scale = recipe.sizes
    prepared = world.on_main(lambda: _prepare(recipe))
    runs = Runs(run_dir=recipe.run_dir, scale=scale, seeds=recipe.seeds or scale.seeds, prepared=prepared)
    heading = f"Ablations, scale {recipe.scale}{scale.caution}, seeds {' '.join(map(str, runs.seeds))}"
    kept: dict[TableName, Result] = {}

    def keep(outcomes: Mapping[Path, Outcome]) -> None:
        for table in recipe.chosen:
            result = collect(table, runs, outcomes)
            if kept.get(table.name) != result:
                kept[table.name] = result
                _write(result, recipe.run_dir, heading)

    outcomes, left_out = run_all(runs.plan(recipe.chosen), world, finished=keep)
    if world.is_main:
        keep(outcomes)
        for result in kept.values():
            print("\n" + markdown(result, heading), end="", flush=True)
    world.barrier()
    if left_out:
        raise ValueError(
            f"{len(left_out)} runs were left out, for the reasons above; remove their directories in "
            f"`{recipe.run_dir}`, and the same command does them"
        )
    return [collect(table, runs, outcomes) for table in recipe.chosen]


def _write(result: Result, run_dir: Path, heading: str) -> None:
    """Write a table, and draw it when it is complete."""
    values, text, picture = (run_dir / file for file in files(result.table.name))
    atomic_write(values, (json.dumps(to_dict(result, heading), indent=2, ensure_ascii=False) + "\n").encode())
    atomic_write(text, markdown(result, heading).encode())
    if result.is_complete:
        plot_result(result, picture)
    else:
        picture.unlink(missing_ok=True)  # of before, when more was there


def _prepare(recipe: AblationsRecipe) -> Prepared:
    labelled = find_labelled(recipe.data, recipe.chosen_tasks)
    text = find_text(recipe.data, recipe.text, recipe.sizes.num_text_files)
    return prepare(recipe.run_dir, recipe.sizes, text, labelled)


@command
def main() -> None:
    """Command line."""
    recipe = parse(AblationsRecipe, "training.ablations", __doc__)
    with world() as peers:
        ablations(recipe, peers)
        if peers.is_main:
            print(f"tables -> {recipe.run_dir}")


if __name__ == "__main__":
    main()
