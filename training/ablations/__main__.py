"""What is each part of BERT worth? Tables 5, 6 and 8 and figure 5 of the paper, in small.

    python -m training.ablations --data data/ --run-dir runs/ablations --tables 5 --scale smoke
    python -m training.ablations --data data/ --run-dir runs/ablations --scale small

The data folder holds text to pretrain on, `pretrain/*.txt`, and labelled data: glue/SST-2/{train,dev}.tsv, the same of
MRPC and RTE, squad/{train,dev}-v1.1*.json, ner/wnut17/{train,dev}.conll; packed with xz or gzip or not. Each
pretraining sees the same number of examples, but for the table of steps. Killed, the same command goes on.
`ablations.md` and `ablations.json` in the run directory hold what is known so far, `table-*.png` draw it when all runs
are done.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from training.ablations.picture import plot_result
from training.ablations.prepare import Prepared, find_labelled, find_text, prepare
from training.ablations.report import JSON_FILE, Result, collect, markdown, write
from training.ablations.runs import Runs, run_all
from training.ablations.scales import SCALES, Scale, ScaleName
from training.ablations.tables import LABELLED_DATA, Table, TableName, TaskName, make_table
from training.command import command, parse
from training.loop.distributed import World, world


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
    results = lambda outcomes: [collect(table, runs, outcomes) for table in recipe.chosen]  # noqa: E731
    outcomes, left_out = run_all(
        runs.plan(recipe.chosen), world, finished=lambda some: write(results(some), recipe.run_dir, heading)
    )
    found = results(outcomes)
    if world.is_main:
        write(found, recipe.run_dir, heading)
        for result in found:
            picture = recipe.run_dir / result.table.picture
            if left_out:
                picture.unlink(missing_ok=True)  # of before, when more was there
            else:
                plot_result(result, picture)
        print("\n" + markdown(found, heading), flush=True)
    world.barrier()
    if left_out:
        raise ValueError(
            f"{len(left_out)} runs were left out, for the reasons above; remove their directories in "
            f"`{recipe.run_dir}`, and the same command does them"
        )
    return found


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
            print(f"tables -> {recipe.run_dir / JSON_FILE}")


if __name__ == "__main__":
    main()
