"""Copy scores to docs/results/, and write docs/results.md and its pictures from them.

    python -m mini.results --data DATA --out build/mini

Tables come from docs/results/, speeds from the manifests in models/. The text, the published figures and the list of
the data are in mini/results.md.j2. Results that have not been made under OUT stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from export.html_report import describe_speed
from mini import ship
from mini.cells import percent, score_name
from mini.commands import check_commands
from mini.distilled import DISTILLED, EMBED
from mini.pipeline import ABLATIONS, STUDENT_PRETRAINING, TABLES, Arguments, Pipeline, kept_models, title_of
from mini.places import NAME, distilled, task_names
from mini.scores import BEFORE, RUNTIMES, last_progress
from mini.shipped_table import shipped_rows
from mini.tasks import CLOZE, TASKS, MiniTask, Target
from tasks.files import atomic_write
from tasks.json_files import read_json
from tasks.machine import summarize_machine
from tasks.model_directory import read_model_directory
from training.ablations.results import files as ablation_files
from training.command import command, parse
from training.loop.run_directory import METRICS_FILE, read_metrics
from training.reports.markdown import markdown_table
from training.reports.plot import plot_runs
from training.weights import checkpoint_digest

PAGE, FOLDER = Path("docs/results.md"), Path("docs/results")
CURVES = "pretraining.png"
_ENDS = (RUNTIMES[0], RUNTIMES[-1])
Row = Sequence[str]
Record = Mapping[str, Any]


@command
def main() -> None:
    """Command line."""
    pipeline = Pipeline(parse(Arguments, "mini.results", __doc__))
    keep(pipeline)
    runs = [FOLDER / stage.run.name for stage in pipeline.pretraining_stages()]
    page = page_of(runs, read_records())
    plot_runs({run.name: run for run in runs}, FOLDER / CURVES)
    atomic_write(PAGE, page.encode())
    print(f"{PAGE}, {FOLDER / CURVES}")


def page_of(runs: Sequence[Path], records: Mapping[str, Record]) -> str:
    """Return the page in Markdown.

    Args:
        runs: run directories of the stages of pretraining.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), undefined=jinja2.StrictUndefined, autoescape=False
    )
    tables = {
        "shipped": shipped_rows(records),
        "targets": target_rows(records),
        "pretraining": pretraining_rows(runs),
        "dev": score_rows(records, "dev"),
        "test": score_rows(records, "test"),
        "same": same_rows(records),
        "speed": speed_rows(ship.MODELS),
        "vectors": vector_rows(records),
        "cost": cost_rows(runs, records),
    }
    pictures = {table: FOLDER / ABLATIONS / ablation_files(table)[-1] for table in TABLES}
    page = environment.get_template("results.md.j2").render(
        {name: markdown_table(rows) for name, rows in tables.items()},
        student_pretraining=STUDENT_PRETRAINING,
        commands=list(dict.fromkeys(command for record in records.values() for command in record["commands"])),
        ablations=[ablation_files(table) for table, picture in pictures.items() if picture.exists()],
    )
    return f"{page.rstrip()}\n"


def keep(pipeline: Pipeline) -> None:
    """Copy the metrics of finished pretraining, scores and finished ablations to `FOLDER`."""
    for stage in pipeline.pretraining_stages():
        if not pipeline.given and (stage.run / "checkpoint").exists():
            _copy(stage.run / METRICS_FILE, FOLDER / stage.run.name / METRICS_FILE)
    for name in pipeline.scored():
        _copy(pipeline.scores(name), _files()[name])
    for names in map(ablation_files, TABLES):
        if (pipeline.ablations / names[-1]).exists():  # written last
            for name in names:
                _copy(pipeline.ablations / name, FOLDER / ABLATIONS / name)


def _copy(source: Path, place: Path) -> None:
    atomic_write(place, source.read_bytes())


def read_records() -> Mapping[str, Record]:
    """Read the scores in `FOLDER`, by task.

    Raises:
        ValueError: if some come from another checkpoint than the shipped one, or from other commands than today's.
    """
    records = {name: read_json(file) for name, file in _files().items() if file.is_file()}
    kept = checkpoint_digest(ship.MODELS / NAME)
    if other := [
        f"{_files()[name]}" for name, record in records.items() if not distilled(name) and record["pretrained"] != kept
    ]:
        raise ValueError(
            f"remove scores that come from another checkpoint than `{ship.MODELS / NAME}`: {', '.join(other)}"
        )
    for name, record in records.items():
        check_commands(_files()[name], name, record)
    return records


def _files() -> dict[str, Path]:
    return {name: FOLDER / f"{name}.json" for name in task_names()}


def pretraining_rows(runs: Iterable[Path]) -> Iterable[Row]:
    """Yield a row per stage: tokens, time, speed, and the final masked LM scores on dev."""
    yield "", "tokens", "hours", "tokens/s", "loss on dev", "accuracy"
    for run in runs:
        last, dev = _progress(run), next((x for x in reversed(read_metrics(run)) if "eval_mlm_loss" in x), None)
        if dev is None:
            raise ValueError(f"no scores on dev in `{run / METRICS_FILE}`")
        yield (
            run.name,
            f"{last['num_tokens'] / 1e6:.1f}M",
            f"{last['elapsed_s'] / 3600:.2f}",
            f"{last['num_tokens'] / last['elapsed_s']:,.0f}",
            f"{dev['eval_mlm_loss']:.3f}",
            percent(dev["eval_mlm_accuracy"]),
        )


def target_rows(records: Mapping[str, Record]) -> Iterable[Row]:
    """Yield a row per target: the best model, in PyTorch and served."""
    yield "score", "target, two cores", "target, GPU", "baseline", *_ENDS, "reached"
    for task, record in scored(records):
        if task.target:
            by_runtime = record["ways"][task.target.split]
            found = [by_runtime[runtime]["scores"][task.metric] for runtime in ("baseline", *_ENDS)]
            yield _target_row(f"{task.title}: {score_name(task)} on {task.target.split}", task.target, found)


def _target_row(name: str, target: Target, scores: Sequence[float]) -> Row:
    """Return a row; the first of `scores` is the baseline."""
    reached = [value for value in (target.reach, target.stretch) if 100 * min(scores[1:]) >= value]
    verdict = ("**neither**", "two cores", "both")[len(reached)]
    return name, f"{target.reach:g}", f"{target.stretch:g}", *map(percent, scores), verdict


def _progress(run: Path) -> Record:
    """Return the last progress in a run's metrics."""
    if found := last_progress(run):
        return found
    raise ValueError(f"no progress in `{run / METRICS_FILE}`")


def scored(records: Mapping[str, Record]) -> Iterable[tuple[MiniTask, Record]]:
    """Yield the tasks with scores."""
    return ((task, records[task.name]) for task in TASKS if task.name in records)


def cloze_records(records: Mapping[str, Record]) -> list[tuple[Record, list[str]]]:
    """Return each training on synthetic cloze questions, with the titles of the tasks that start from it."""
    made: list[tuple[Record, list[str]]] = []
    for task, record in scored(records):
        if cloze := record.get("cloze"):
            titles = next((titles for other, titles in made if other == cloze), None)
            if titles is None:
                made.append((cloze, titles := []))
            titles += [short_title(task)] if task.after == CLOZE else []
    return made


def short_title(task: MiniTask) -> str:
    """Return the name of a task's data, for example `SST-2`."""
    return re.split(r",| \(", task.title)[0]


def score_rows(records: Mapping[str, Record], split: str) -> Iterable[Row]:
    """Yield a row per task: baseline, mean over seeds, and the best run's model in each runtime."""
    seeds = ("not pretrained", "fine-tuned, seeds") if split == "dev" else ()
    yield "task, score", "examples", "baseline", *seeds, *RUNTIMES
    for task, record in scored(records):
        if found := record["ways"].get(split):
            yield (
                f"{task.title}: {score_name(task)}",
                f"{found['num_examples']:,}",
                f"{percent(found['baseline']['scores'][task.metric])} ({found['baseline']['name']})",
                *(seed_cells(record["grid"]) if seeds else ()),
                *(percent(found[runtime]["scores"][task.metric]) for runtime in RUNTIMES),
            )


def seed_cells(grid: Mapping[str, Any]) -> list[str]:
    """Return mean and deviation without pretraining, and of the best setting's seeds."""
    return [_mean(grid["unpretrained"]), _mean(_best(grid))]


def _best(grid: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the setting of the best run."""
    return next(row for row in grid["settings"] if any(run["name"] == grid["best"]["name"] for run in row["runs"]))


def _mean(row: Mapping[str, Any]) -> str:
    if row["mean"] is None:
        return f"none of {row['num_seeds']} ended"
    return f"{_with_deviation(row)} ({sum(run['score'] is not None for run in row['runs'])})"


def _with_deviation(row: Mapping[str, Any]) -> str:
    deviation = row["standard_deviation"]
    return percent(row["mean"]) + ("" if deviation is None else f" ± {100 * deviation:.1f}")


def same_rows(records: Mapping[str, Record]) -> Iterable[Row]:
    """Yield the number of dev predictions that equal PyTorch's, or the largest difference of scores."""
    yield "task", "examples", *RUNTIMES[1:]
    shipped = [(f"`{task.name}`", records[task.name]) for task in DISTILLED if task.name in records]
    for title, record in [*shipped, *((task.title, record) for task, record in scored(records))]:
        if found := record.get("ways", {}).get("dev"):
            yield title, f"{found['num_examples']:,}", *(_same(found[runtime]) for runtime in RUNTIMES[1:])


def _same(found: Record) -> str:
    return f"{found['same']:,}" if "same" in found else f"within {found['largest_difference']:.2g}"


def speed_rows(models: Path) -> Iterable[Row]:
    """Yield a row per shipped model, with the speed measured by the autotuner."""
    yield "model", "precision", "MB, all files", "speed", "measured on"
    for name, place in sorted(kept_models()):
        if not (models / place).exists():
            continue
        manifest = read_model_directory(models / place).manifest
        made = manifest.provenance
        size = sum(item.stat().st_size for item in (models / place).rglob("*") if item.is_file()) / 1e6
        machine = summarize_machine(made["machine"])
        yield name, made["graph"]["name"], f"{size:.1f}", describe_speed(manifest), machine


def vector_rows(records: Mapping[str, Record]) -> Iterable[Row]:
    """Yield Spearman's correlation of cosines with STS-B's scores, in each runtime."""
    columns = [*BEFORE, *RUNTIMES]
    yield "", "pairs", *columns
    if record := records.get(EMBED):
        scores = (percent(record[column]["spearman"]) for column in columns)
        yield "Spearman", f"{record['num_examples']:,}", *scores


def cost_rows(runs: Sequence[Path], records: Mapping[str, Record]) -> Iterable[Row]:
    """Yield runs, hours and tokens of each stage."""
    yield "stage", "runs", "hours", "tokens", "tokens/s", "on"
    ends = [_progress(run) for run in runs]
    hours, tokens = sum(end["elapsed_s"] for end in ends) / 3600, sum(end["num_tokens"] for end in ends)
    yield _cost_row("Pretraining", {"num_runs": len(runs), "hours": hours, "num_tokens": tokens}, "see above")
    made = [(f"{title_of(CLOZE)}: {', '.join(tasks)}", record) for record, tasks in cloze_records(records) if tasks]
    made += [(title_of(name), records[name]) for name in task_names() if name in records]
    for title, record in made:
        machine = summarize_machine(record["machine"]) if record["machine"] else "not recorded"
        yield _cost_row(title, record["cost"], machine)


def _cost_row(stage: str, cost: Record, machine: str) -> Row:
    speed = cost["num_tokens"] / cost["hours"] / 3600 if cost["hours"] else 0
    tokens = f"{cost['num_tokens'] / 1e6:.1f}M"
    return stage, f"{cost['num_runs']}", f"{cost['hours']:.2f}", tokens, f"{speed:,.0f}", machine


if __name__ == "__main__":
    main()
