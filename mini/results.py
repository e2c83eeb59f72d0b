"""Keep what the line has found in docs/results/, and write docs/results.md and its pictures from that.

    python -m mini.results --data DATA --out build/mini

The words are those of mini/results.md.j2, and so are the published figures and the list of the data; all other numbers
in tables are read from docs/results/, speeds from the manifests in models/. What has not been made under OUT stays
there as it is.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from export.html_report import describe_speed
from mini import ship
from mini.line import ABLATIONS, EMBED, NAME, TABLES, Arguments, Line, check_commands, kept_models, task_names, title_of
from mini.scores import BEFORE, WAYS, last_position
from mini.tasks import CLOZE, EMBED_AIM, TASKS, Aim, MiniTask
from tasks.files import atomic_write
from tasks.json_files import read_json
from tasks.machine import summarize_machine
from tasks.model_directory import read_model_directory
from training.ablations.results import files as ablation_files
from training.ablations.tables import paper_name
from training.command import command, parse
from training.loop.run_directory import METRICS_FILE, read_metrics
from training.reports.markdown import markdown_table
from training.reports.plot import plot_runs
from training.weights import checkpoint_digest

PAGE, FOLDER = Path("docs/results.md"), Path("docs/results")
CURVES = "pretraining.png"
VECTORS = "vectors of texts"
_ENDS = (WAYS[0], WAYS[-1])
INT8_POINTS = 0.5
"""That int8 may differ from fp32 by."""
Row = Sequence[str]
Record = Mapping[str, Any]


@command
def main() -> None:
    """Command line."""
    line = Line(parse(Arguments, "mini.results", __doc__))
    keep(line)
    runs = [FOLDER / leg.run.name for leg in line.legs()]
    page = page_of(runs, read_records())
    plot_runs({run.name: run for run in runs}, FOLDER / CURVES)
    atomic_write(PAGE, page.encode())
    print(f"{PAGE}, {FOLDER / CURVES}")


def page_of(runs: Sequence[Path], records: Mapping[str, Record]) -> str:
    """The page, in Markdown.

    Args:
        runs: the legs of pretraining.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), undefined=jinja2.StrictUndefined, autoescape=False
    )
    environment.filters["in_words"] = in_words
    tables = {
        "aims": aim_rows(records),
        "pretraining": pretraining_rows(runs),
        "dev": score_rows(records, "dev"),
        "test": score_rows(records, "test"),
        "same": same_rows(records),
        "speed": speed_rows(ship.MODELS),
        "vectors": vector_rows(records),
        "cost": cost_rows(runs, records),
    }
    drawn = {table: FOLDER / ABLATIONS / ablation_files(table)[-1] for table in TABLES}
    page = environment.get_template("results.md.j2").render(
        {name: markdown_table(rows) for name, rows in tables.items()},
        commands=list(dict.fromkeys(command for record in records.values() for command in record["commands"])),
        near_unpretrained=[*near_unpretrained(records)],
        below_baseline=[*below_baseline(records)],
        near_baseline=[*near_baseline(records)],
        easy_aims=[*easy_aims(records)],
        single_seeds=[short_title(task) for task, record in scored(records) if _best(record["grid"])["num_seeds"] == 1],
        unlike_fp32=[*unlike_fp32(records)],
        answers={name: record["ways"]["dev"][WAYS[0]]["scores"] for name, record in records.items() if "squad" in name},
        percent=percent,
        missing=[title for name, title in _titles().items() if name not in records],
        cloze=[(percent(made["scores"]["f1"]), titles) for made, titles in cloze_records(records) if titles],
        ablations=[ablation_files(table) for table, picture in drawn.items() if picture.exists()],
        no_ablations=[paper_name(table).lower() for table, picture in drawn.items() if not picture.exists()],
    )
    return f"{page.rstrip()}\n"


def keep(line: Line) -> None:
    """Copy the metrics of pretraining that has ended, scores and ablations, as far as they are made, to `FOLDER`."""
    for leg in line.legs():
        if not line.given and (leg.run / "checkpoint").exists():
            _copy(leg.run / METRICS_FILE, FOLDER / leg.run.name / METRICS_FILE)
    for name in line.scored():
        _copy(line.scores(name), _files()[name])
    for names in map(ablation_files, TABLES):
        if (line.ablations / names[-1]).exists():  # else it is not complete
            for name in names:
                _copy(line.ablations / name, FOLDER / ABLATIONS / name)


def _copy(source: Path, place: Path) -> None:
    atomic_write(place, source.read_bytes())


def read_records() -> Mapping[str, Record]:
    """The scores in `FOLDER`, by task.

    Raises:
        ValueError: when some are of another checkpoint than that which is kept, or come from other commands than those
            of now.
    """
    records = {name: read_json(file) for name, file in _files().items() if file.is_file()}
    kept = checkpoint_digest(ship.MODELS / NAME)
    if strange := [f"{_files()[name]}" for name, record in records.items() if record["pretrained"] != kept]:
        raise ValueError(f"{', '.join(strange)}: of another checkpoint than `{ship.MODELS / NAME}`; remove them")
    for name, record in records.items():
        check_commands(_files()[name], name, record)
    return records


def _files() -> dict[str, Path]:
    return {name: FOLDER / f"{name}.json" for name in task_names()}


def pretraining_rows(runs: Iterable[Path]) -> Iterable[Row]:
    """A row a leg: tokens, time, speed, and the masked LM on dev in the end."""
    yield "", "tokens", "hours", "tokens/s", "loss on dev", "accuracy"
    for run in runs:
        last, dev = _position(run), next((x for x in reversed(read_metrics(run)) if "eval_mlm_loss" in x), None)
        if dev is None:
            raise ValueError(f"`{run / METRICS_FILE}` has no scores on dev")
        yield (
            run.name,
            f"{last['num_tokens'] / 1e6:.1f}M",
            f"{last['elapsed_s'] / 3600:.2f}",
            f"{last['num_tokens'] / last['elapsed_s']:,.0f}",
            f"{dev['eval_mlm_loss']:.3f}",
            percent(dev["eval_mlm_accuracy"]),
        )


def aim_rows(records: Mapping[str, Record]) -> Iterable[Row]:
    """A row for each score that was to be reached: of the best model, as PyTorch computes it and as it is served."""
    yield "score", "aim, two cores", "with a GPU", "without a model", *_ENDS, "reached"
    for task, record in scored(records):
        if task.aim:
            ways = record["ways"][task.aim.split]
            found = [ways[way]["scores"][task.metric] for way in ("baseline", *_ENDS)]
            yield _aim_row(f"{task.title}: {score_name(task)} on {task.aim.split}", task.aim, found)
    if EMBED in records:
        found = [records[EMBED][way]["spearman"] for way in (BEFORE[0], *_ENDS)]
        yield _aim_row(f"{VECTORS}: Spearman on STS-B dev, none of whose pairs was learnt from", EMBED_AIM, found)


def easy_aims(records: Mapping[str, Record]) -> Iterable[str]:
    """Tasks whose first aim is not above what needs no model."""
    for task, record in scored(records):
        if task.aim:
            known = record["ways"][task.aim.split]["baseline"]["scores"][task.metric]
            if task.aim.two_cores <= 100 * known:
                yield short_title(task)
    if EMBED in records and EMBED_AIM.two_cores <= 100 * records[EMBED][BEFORE[0]]["spearman"]:
        yield VECTORS


def _aim_row(name: str, aim: Aim, scores: Sequence[float]) -> Row:
    """A score beside what it should be; the first of `scores` takes no model."""
    reached = [value for value in (aim.two_cores, aim.gpu) if 100 * min(scores[1:]) >= value]
    verdict = ("**neither**", "the first", "both")[len(reached)]
    return name, f"{aim.two_cores:g}", f"{aim.gpu:g}", *map(percent, scores), verdict


def _position(run: Path) -> Record:
    """How far a run came."""
    if found := last_position(run):
        return found
    raise ValueError(f"`{run / METRICS_FILE}` does not say how far it came")


def _titles() -> dict[str, str]:
    """What each task is called, and the vectors."""
    return {task.name: task.title for task in TASKS} | {EMBED: VECTORS}


def scored(records: Mapping[str, Record]) -> Iterable[tuple[MiniTask, Record]]:
    """The tasks that there are scores of."""
    return ((task, records[task.name]) for task in TASKS if task.name in records)


def cloze_records(records: Mapping[str, Record]) -> list[tuple[Record, list[str]]]:
    """What the tasks that go on from the questions that text asks of itself tell of these, and what these tasks are:
    one for each time that it was trained."""
    made: list[tuple[Record, list[str]]] = []
    for task, record in scored(records):
        if cloze := record.get("cloze"):
            titles = next((titles for other, titles in made if other == cloze), None)
            if titles is None:
                made.append((cloze, titles := []))
            titles += [short_title(task)] if task.after == CLOZE else []
    return made


def short_title(task: MiniTask) -> str:
    """What the data of a task are called."""
    return re.split(r",| \(", task.title)[0]


def score_rows(records: Mapping[str, Record], split: str) -> Iterable[Row]:
    """A row a task: what does without pretraining, the seeds, and the best run's model each way."""
    seeds = ("not pretrained", "fine-tuned, seeds") if split == "dev" else ()
    yield "task, score", "examples", "without a model", *seeds, *WAYS
    for task, record in scored(records):
        if found := record["ways"].get(split):
            yield (
                f"{task.title}: {score_name(task)}",
                f"{found['num_examples']:,}",
                f"{percent(found['baseline']['scores'][task.metric])} ({found['baseline']['name']})",
                *(seed_cells(record["grid"]) if seeds else ()),
                *(percent(found[way]["scores"][task.metric]) for way in WAYS),
            )


def seed_cells(grid: Mapping[str, Any]) -> list[str]:
    """Mean and deviation of the network that was not pretrained, and of the best setting's seeds."""
    return [_mean(grid["unpretrained"]), _mean(_best(grid))]


def _best(grid: Mapping[str, Any]) -> Mapping[str, Any]:
    """The setting of the best run."""
    return next(row for row in grid["settings"] if any(run["name"] == grid["best"]["name"] for run in row["runs"]))


def near_unpretrained(records: Mapping[str, Record]) -> Iterable[str]:
    """Tasks in which pretraining is not worth more than the larger of the two deviations over seeds."""
    for task, record in scored(records):
        rows = _best(record["grid"]), record["grid"]["unpretrained"]
        means, deviations = [row["mean"] for row in rows], [row["standard_deviation"] or 0.0 for row in rows]
        if None not in means and means[0] - means[1] <= max(deviations):
            yield f"{short_title(task)} ({' against '.join(map(_with_deviation, rows))})"


def below_baseline(records: Mapping[str, Record]) -> Iterable[str]:
    """Tasks in which random weights, fine-tuned, end below what needs no model: to be above them says little."""
    for task, record in scored(records):
        mean = record["grid"]["unpretrained"]["mean"]
        if mean is not None and mean < record["ways"]["dev"]["baseline"]["scores"][task.metric]:
            yield short_title(task)


def near_baseline(records: Mapping[str, Record]) -> Iterable[str]:
    """Tasks judged by accuracy or F1 of a label whose mean accuracy is not above that of what needs no model by two
    standard errors of the dev set."""
    for task, record in scored(records):
        if task.metric not in ("accuracy", "f1_1"):
            continue
        dev, runs = record["ways"]["dev"], _best(record["grid"])["runs"]
        mean = statistics.fmean(run["dev"]["accuracy"] for run in runs if run["score"] is not None)
        known = dev["baseline"]["scores"]["accuracy"]
        if mean - known <= 2 * math.sqrt(mean * (1 - mean) / dev["num_examples"]):
            yield f"{short_title(task)} ({percent(mean)} against {percent(known)})"


def unlike_fp32(records: Mapping[str, Record]) -> Iterable[str]:
    """Tasks and sets whose served int8 score is further from PyTorch's than it should be."""
    for task, record in scored(records):
        for split, ways in record["ways"].items():
            yield from _unlike(f"{short_title(task)} on {split}", [ways[way]["scores"][task.metric] for way in _ENDS])
    if EMBED in records:
        yield from _unlike(VECTORS, [records[EMBED][way]["spearman"] for way in _ENDS])


def _unlike(name: str, ends: Sequence[float]) -> Iterable[str]:
    if 100 * abs(ends[1] - ends[0]) > INT8_POINTS:
        yield f"{name} ({percent(ends[1])} instead of {percent(ends[0])})"


def _mean(row: Mapping[str, Any]) -> str:
    if row["mean"] is None:
        return f"none of {row['num_seeds']} ended"
    return f"{_with_deviation(row)} ({sum(run['score'] is not None for run in row['runs'])})"


def _with_deviation(row: Mapping[str, Any]) -> str:
    deviation = row["standard_deviation"]
    return percent(row["mean"]) + ("" if deviation is None else f" ± {100 * deviation:.1f}")


def same_rows(records: Mapping[str, Record]) -> Iterable[Row]:
    """On how many dev examples each way says what PyTorch says, or how far numbers differ."""
    yield "task", "examples", *WAYS[1:]
    for task, record in scored(records):
        found = record["ways"]["dev"]
        yield task.title, f"{found['num_examples']:,}", *(_same(found[way]) for way in WAYS[1:])


def _same(found: Record) -> str:
    return f"{found['same']:,}" if "same" in found else f"within {found['largest_difference']:.2g}"


def speed_rows(models: Path) -> Iterable[Row]:
    """A row for each model that is kept: what is measured when its form is chosen."""
    yield "model", "graph", "MB, all files", "speed", "measured on"
    for name, place in sorted(kept_models()):
        if not (models / place).exists():
            continue
        manifest = read_model_directory(models / place).manifest
        made = manifest.provenance
        size = sum(item.stat().st_size for item in (models / place).rglob("*") if item.is_file()) / 1e6
        machine = summarize_machine(made["machine"])
        yield name, made["graph"]["name"], f"{size:.1f}", describe_speed(manifest), machine


def vector_rows(records: Mapping[str, Record]) -> Iterable[Row]:
    """Spearman's correlation of cosines with STS-B's scores, each way."""
    ways = [*BEFORE, *WAYS]
    yield "", "pairs", *ways
    if record := records.get(EMBED):
        scores = (percent(record[way]["spearman"]) for way in ways)
        yield "Spearman", f"{record['num_examples']:,}", *scores


def cost_rows(runs: Sequence[Path], records: Mapping[str, Record]) -> Iterable[Row]:
    """Runs, hours and tokens of each stage."""
    yield "stage", "runs", "hours", "tokens", "tokens/s", "on"
    legs = [_position(run) for run in runs]
    hours, tokens = sum(leg["elapsed_s"] for leg in legs) / 3600, sum(leg["num_tokens"] for leg in legs)
    yield _cost_row("Pretraining", {"num_runs": len(runs), "hours": hours, "num_tokens": tokens}, "see above")
    made = [(f"{title_of(CLOZE)}: {in_words(tasks)}", record) for record, tasks in cloze_records(records) if tasks]
    made += [(title_of(name), records[name]) for name in task_names() if name in records]
    for title, record in made:
        machine = summarize_machine(record["machine"]) if record["machine"] else "not recorded"
        yield _cost_row(title, record["cost"], machine)


def _cost_row(stage: str, cost: Record, machine: str) -> Row:
    speed = cost["num_tokens"] / cost["hours"] / 3600 if cost["hours"] else 0
    tokens = f"{cost['num_tokens'] / 1e6:.1f}M"
    return stage, f"{cost['num_runs']}", f"{cost['hours']:.2f}", tokens, f"{speed:,.0f}", machine


def score_name(task: MiniTask) -> str:
    """What the score of a task is called."""
    return {"f1_1": "F1", "f1": "F1", "matthews": "Matthews", "spearman": "Spearman"}.get(task.metric, task.metric)


def in_words(items: Sequence[str]) -> str:
    """Such as `a, b and c`; nothing for nothing."""
    if not items:
        return ""
    return " and ".join(filter(None, [", ".join(items[:-1]), items[-1]]))


def percent(score: float) -> str:
    """With one digit."""
    return f"{100 * score:.1f}"


if __name__ == "__main__":
    main()
