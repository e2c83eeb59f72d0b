"""Compare BERT with parts left out or changed: tables 5, 6 and 8 and figure 5 of the paper, at small scale.

    python -m recipes.ablations --data data/ --run-dir runs/ablations --tables 5 --scale smoke
    python -m recipes.ablations --data data/ --run-dir runs/ablations --scale small

The data folder holds text, `pretrain/*.txt`, and labelled data: glue/SST-2/{train,dev}.tsv, the same for MRPC and RTE,
squad/{train,dev}-v1.1*.json, ner/wnut17/{train,dev}.conll; also compressed with xz or gzip. All pretraining runs see
the same number of examples, except in the table of steps. After an interruption, the same command continues. The run
directory holds the results so far of each table, such as `table-5.md` and `table-5.json`, and a plot, `table-5.png`,
when all its runs are done. Tables share runs, so they can also be made one by one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from recipes.ablations.data import find_labelled, find_text, prepare
from recipes.ablations.model import register
from recipes.ablations.results import Result, collect, files, markdown, plot_result, to_dict
from recipes.ablations.runs import Runs, run_all
from recipes.ablations.scales import SCALES, Scale, ScaleName
from recipes.ablations.tables import LABELLED_DATA, Table, TableName, TaskName, make_table
from tasks.bundle.files import atomic_write
from training.command_line.command import command, parse
from training.loop.distributed import World, world
from training.reports.grid_report import Outcome


@dataclass(frozen=True, kw_only=True)
class AblationsRecipe:
    """Compare BERT with parts left out or changed."""

    data: Path
    """Folder with text and labelled data."""
    run_dir: Path
    """Directory of all runs and of the tables."""
    tables: tuple[TableName, ...] = ("5", "6", "8", "steps")
    """Tables to make: pretraining tasks (5), model sizes (6), masking (8), number of steps (figure 5)."""
    scale: ScaleName = "small"
    """Size of networks, corpus and runs. smoke only checks that everything works (minutes); small (L2 H128) and mini
    (L4 H256) take hours on 2 CPU cores; full takes a day on a GPU."""
    tasks: tuple[TaskName, ...] | None = None
    """Tasks to fine-tune on, the columns; None for those of the scale."""
    seeds: tuple[int, ...] | None = None
    """Seeds of fine-tuning; None for those of the scale."""
    text: str = "pretrain/*.txt*"
    """Pattern of files to pretrain on, in the data folder; the last is held out."""

    def __post_init__(self) -> None:
        if Path(self.text).is_absolute():
            raise ValueError(f"--text must be a pattern within the data folder, such as pretrain/*.txt: `{self.text}`")
        _ = self.chosen  # raises if a table has no column

    @property
    def sizes(self) -> Scale:
        """Scale of the runs."""
        return SCALES[self.scale]

    @property
    def chosen_tasks(self) -> tuple[TaskName, ...]:
        """Tasks to fine-tune on, in the order of columns."""
        return self.tasks or tuple(task for task in LABELLED_DATA if task in self.sizes.tasks)

    @property
    def chosen(self) -> list[Table]:
        """Tables to make."""
        return [make_table(name, self.sizes, self.chosen_tasks) for name in self.tables]


def ablations(recipe: AblationsRecipe, world: World) -> list[Result]:
    """Do all runs of the tables that are not done yet.

    Raises:
        ValueError: naming missing data; at the end, if runs were skipped.
    """
    scale = recipe.sizes
    prepared = world.on_main(
        lambda: prepare(
            recipe.run_dir,
            scale,
            find_text(recipe.data, recipe.text, scale.num_text_files),
            find_labelled(recipe.data, recipe.chosen_tasks),
        )
    )
    runs = Runs(run_dir=recipe.run_dir, scale=scale, seeds=recipe.seeds or scale.seeds, prepared=prepared)
    heading = f"Ablations, scale {recipe.scale}{scale.caution}, seeds {' '.join(map(str, runs.seeds))}"
    written: dict[TableName, Result] = {}

    def write_changed(outcomes: Mapping[Path, Outcome]) -> None:
        for table in recipe.chosen:
            result = collect(table, runs, outcomes)
            if written.get(table.name) != result:
                written[table.name] = result
                _write(result, recipe.run_dir, heading)

    outcomes, skipped = run_all(runs.plan(recipe.chosen), world, finished=write_changed)
    if world.is_main:
        write_changed(outcomes)
        for result in written.values():
            print("\n" + markdown(result, heading), end="", flush=True)
    world.barrier()
    if skipped:
        raise ValueError(
            f"{len(skipped)} runs were skipped, for the reasons above; remove their directories in "
            f"`{recipe.run_dir}`, and the same command does them"
        )
    return [collect(table, runs, outcomes) for table in recipe.chosen]


def _write(result: Result, run_dir: Path, heading: str) -> None:
    """Write a table, and plot it if it is complete."""
    values, text, picture = (run_dir / file for file in files(result.table.name))
    atomic_write(values, (json.dumps(to_dict(result, heading), indent=2, ensure_ascii=False) + "\n").encode())
    atomic_write(text, markdown(result, heading).encode())
    if result.is_complete:
        plot_result(result, picture)
    else:
        picture.unlink(missing_ok=True)  # of an earlier, complete table


@command
def main() -> None:
    """Command line."""
    recipe = parse(AblationsRecipe, "recipes.ablations", __doc__)
    register()
    with world() as peers:
        ablations(recipe, peers)
        if peers.is_main:
            print(f"tables -> {recipe.run_dir}")


if __name__ == "__main__":
    main()
