"""Copy scores to docs/results/, and write docs/results.md and its pictures from them.

    python -m recipes.mini.results --data DATA --out build/mini

Tables come from docs/results/, speeds from the manifests in models/. The text, the published figures and the list of
the data are in recipes/mini/results.md.j2. Results that have not been made under OUT stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import matplotlib.pyplot as plt

from recipes.ablations.results import files as ablation_files
from recipes.mini import publish, tables
from recipes.mini.pipeline import (
    ABLATIONS,
    NAME,
    STUDENT_PRETRAINING,
    TABLES,
    Arguments,
    Pipeline,
    check_commands,
)
from recipes.mini.tables import Record
from recipes.mini.tasks import is_distilled, task_names
from tasks.bundle.files import atomic_write
from tasks.text.json_files import read_json
from training.checkpoint.weights import checkpoint_digest
from training.command_line.command import command, parse
from training.loop.run_directory import METRICS_FILE
from training.reports.plot import plot_runs, save_figure
from training.reports.tables import markdown_table

PAGE, FOLDER = Path("docs/results.md"), Path("docs/results")
CURVES, RELIABILITY = "pretraining.png", "answer-reliability.png"


@command
def main() -> None:
    """Command line."""
    pipeline = Pipeline(parse(Arguments, "recipes.mini.results", __doc__))
    keep(pipeline)
    runs, records = [FOLDER / run.name for run in pipeline.pretraining_runs()], read_records()
    page = page_of(runs, records)
    plot_runs({run.name: run for run in runs}, FOLDER / CURVES)
    if reliability := records.get("answer", {}).get("beyond", {}).get("reliability"):
        plot_reliability(reliability["bins"], FOLDER / RELIABILITY)
    atomic_write(PAGE, page.encode())
    print(f"{PAGE}, {FOLDER / CURVES}, {FOLDER / RELIABILITY}")


def page_of(runs: Sequence[Path], records: Mapping[str, Record]) -> str:
    """Return the page in Markdown.

    Args:
        runs: run directories of the stages of pretraining.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), undefined=jinja2.StrictUndefined, autoescape=False
    )
    rows = {
        "shipped": tables.shipped_rows(records),
        "pretraining": tables.pretraining_rows(runs),
        "dev": tables.score_rows(records, "dev"),
        "test": tables.score_rows(records, "test"),
        "same": tables.same_rows(records),
        "speed": tables.speed_rows(publish.MODELS),
        "vectors": tables.vector_rows(records),
        "cost": tables.cost_rows(runs, records),
    }
    pictures = {table: FOLDER / ABLATIONS / ablation_files(table)[-1] for table in TABLES}
    page = environment.get_template("results.md.j2").render(
        {name: markdown_table(found) for name, found in rows.items()},
        student_pretraining=STUDENT_PRETRAINING,
        ablations=[ablation_files(table) for table, picture in pictures.items() if picture.exists()],
    )
    return f"{page.rstrip()}\n"


def plot_reliability(bins: Sequence[Mapping[str, float]], path: Path) -> None:
    """Plot how often replies were right against their mean score, for each range of the score (`reliability`)."""
    figure, axes = plt.subplots(figsize=(5, 4.2), layout="constrained")
    axes.plot([0, 1], [0, 1], color="0.6", linestyle="--", label="as the score says")
    x, y = ([each[key] for each in bins] for key in ("score", "right"))
    axes.plot(x, y, marker="o", label="measured")
    for each in bins:
        place: dict[str, Any] = {"xytext": (6, -12), "textcoords": "offset points", "fontsize": 8, "color": "0.35"}
        axes.annotate(f"{each['count']:,}", (each["score"], each["right"]), **place)
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="score of the reply", ylabel="right (exact match)")
    axes.legend(loc="upper left")
    save_figure(figure, path)


def keep(pipeline: Pipeline) -> None:
    """Copy the metrics of finished pretraining, scores and finished ablations to `FOLDER`."""
    copies: dict[Path, Path] = {}
    for run in pipeline.pretraining_runs():
        if not pipeline.given and (run / "checkpoint").exists():
            copies[run / METRICS_FILE] = FOLDER / run.name / METRICS_FILE
    copies |= {pipeline.scores(name): FOLDER / f"{name}.json" for name in pipeline.scored()}
    for names in map(ablation_files, TABLES):
        if (pipeline.ablations / names[-1]).exists():  # written last
            copies |= {pipeline.ablations / name: FOLDER / ABLATIONS / name for name in names}
    for source, place in copies.items():
        atomic_write(place, source.read_bytes())


def read_records() -> Mapping[str, Record]:
    """Read the scores in `FOLDER`, by task.

    Raises:
        ValueError: if some come from another checkpoint than the shipped one, or from other commands than today's.
    """
    files = {name: FOLDER / f"{name}.json" for name in task_names()}
    records = {name: read_json(file) for name, file in files.items() if file.is_file()}
    kept = checkpoint_digest(publish.MODELS / NAME)
    for name, record in records.items():
        if not is_distilled(name) and record["pretrained"] != kept:
            raise ValueError(
                f"remove `{files[name]}`, which comes from another checkpoint than `{publish.MODELS / NAME}`"
            )
        check_commands(files[name], name, record)
    return records


if __name__ == "__main__":
    main()
