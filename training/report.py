"""Write a report of a run as one HTML page: scores with baselines, curves, predictions, settings and provenance.

    python -m training.report runs/mini
    python -m training.report runs/mini --data texts.txt --out page.html

The page needs no network and no script. The run may still be going on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import tyro
from markupsafe import Markup

from tasks.bundle.files import atomic_write, sha256
from tasks.embedding import Embedding
from tasks.text.json_files import read_json
from training.checkpoint.hub import checkpoint_name
from training.checkpoint.reader import CONFIG_FILE
from training.checkpoint.task_card import TaskCard, read_task_card
from training.checkpoint.weights import WEIGHTS_FILE, has_weights
from training.command_line.command import command, parse
from training.contrastive import ContrastiveRecipe
from training.data.sources import source_names
from training.distillation.tasks import TaskDistillRecipe
from training.distillation.vectors import VectorDistillRecipe
from training.finetuning.recipe import FinetuneRecipe
from training.loop.recipe import RECIPE_FILE, check_types, default_fields, flatten, stage_of
from training.loop.run_directory import read_metrics
from training.pretrain import UNIGRAM, PretrainRecipe
from training.reports.model_card import base_model, format_number, score_rows
from training.reports.page import Cell, Figure, Table, render_page
from training.reports.plot import curve_name, legend, panels, shows_loss, svg
from training.reports.samples import sample_predictions

REPORT_FILE = "report.html"
RECORDED = (
    *("data", "corpus_digest", "dev_corpus_digest", "init_sha256"),
    *("checkpoint_sha256", "tokenizer_sha256", "class_weights_sha256"),
)
"""Keys of recipe.json that are not settings."""


@dataclass(frozen=True, kw_only=True)
class ReportRecipe:
    """Write the report of a run."""

    run: tyro.conf.Positional[Path]
    """Run directory of training.pretrain, .finetune, .contrastive or .distill, finished or not."""
    data: tuple[Path, ...] = ()
    """Files with examples to predict: text for a pretrained checkpoint, else as for training.evaluate. By default, the
    dev data of the run."""
    out: Path | None = None
    """File to write; by default, report.html in the run directory."""


def write_report(recipe: ReportRecipe) -> Path:
    """Write the page and return its path.

    Raises:
        ValueError: if the directory is not a run, or the data cannot be used.
    """
    if not (recipe.run / RECIPE_FILE).is_file():
        runs = sorted(path.parent for path in recipe.run.glob(f"**/{RECIPE_FILE}"))
        runs.sort(key=lambda run: not has_weights(run / "checkpoint"))
        hint = f"one of its {len(runs)} runs, such as `{runs[0]}`" if runs else "the run directory of a training"
        raise ValueError(f"not a run: `{recipe.run}` has no {RECIPE_FILE}; give {hint}")
    path = recipe.out or recipe.run / REPORT_FILE
    atomic_write(path, render(recipe.run, recipe.data).encode())
    return path


def render(run: Path, data: Sequence[Path] = ()) -> str:
    """Render the page of a run as HTML; `data` as in `ReportRecipe`."""
    settings = read_json(run / RECIPE_FILE)
    check_types(recipe_type(settings), settings, run / RECIPE_FILE)
    lines, checkpoint = read_metrics(run), run / "checkpoint"
    card = read_task_card(checkpoint) if checkpoint.is_dir() else None
    step = lines[-1]["step"] if lines else 0
    state = f"not finished, at step {step:,}" if step else "no step logged yet"
    curves = [Figure(panel.title, legend(panel), Markup(svg(lines, panel))) for panel in panels(lines)]
    note, samples = sample_predictions(run, settings, data)
    return render_page(
        run.resolve().name,
        title="training report",
        command="make report",
        badge=Cell(f"finished, {step:,} steps", "right") if card else Cell(state),
        facts=facts(run, settings, lines, card),
        sections={
            "Scores": scores(settings, lines, card),
            "Curves": [curves, ABOUT_CURVES if curves else "No metrics yet."],
            "Predictions": [note, *([samples] if samples else [])],
            "Settings": setting_tables(settings, card),
            "Data and provenance": [
                Table(records(run, settings, card), kind="settings"),
                "Digests are SHA-256; nothing else is recorded.",
            ],
        },
    )


def recipe_type(settings: Mapping[str, Any]) -> type:
    """Return the type of a run's recipe."""
    types = {
        "pretraining": PretrainRecipe,
        "fine-tuning": FinetuneRecipe,
        "contrastive training": ContrastiveRecipe,
        "distillation": VectorDistillRecipe if settings.get("task") == Embedding.name else TaskDistillRecipe,
    }
    if (stage := stage_of(settings)) not in types:
        raise ValueError(f"broken `{RECIPE_FILE}`: `stage` must be one of {', '.join(types)}: `{stage}`")
    return types[stage]


def facts(
    run: Path, settings: Mapping[str, Any], lines: Sequence[Mapping[str, Any]], card: TaskCard | None
) -> dict[str, str]:
    """Return the line below the title: task, network, data, tokens and time, as far as they are known."""
    found = {"task": card.task if card else settings.get("task", "masked-lm")}
    config = run / "checkpoint" / CONFIG_FILE
    shape = read_json(config) if config.is_file() else settings
    if "hidden_size" in shape:
        layers, hidden, heads = (shape[name] for name in ("num_hidden_layers", "hidden_size", "num_attention_heads"))
        found["network"] = f"{layers} layers, hidden size {hidden}, {heads} heads"
    if "corpus" in settings:
        found["corpus"] = Path(settings["corpus"]).name
    else:
        found["data"] = ", ".join(source_names([Path(path) for path in settings.get("train", ())]))
        found["teacher"] = ", ".join(checkpoint_name(Path(path)) for path in settings.get("teacher", ()))
        found["from"] = "random weights" if settings.get("from_scratch") else base_model({"recipe": settings})
    tokens, seconds = (max((line.get(key, 0) for line in lines), default=0) for key in ("num_tokens", "elapsed_s"))
    found["tokens seen"] = f"{tokens:,}" if tokens else ""
    found["time"] = str(timedelta(seconds=round(seconds))) if seconds else ""
    return {key: value for key, value in found.items() if value}


CLASS_SCORES = ("precision", "recall", "f1", "support")
ABOUT_CURVES = "If a point stands for several steps, the line is their mean and the band their range."
ABOUT_UNIGRAM = (
    "Unigram baseline: each token is predicted by its frequency and its own masked input, without other tokens."
)


def scores(settings: Mapping[str, Any], lines: Sequence[Mapping[str, Any]], card: TaskCard | None) -> list[Table | str]:
    """Return the table of scores, a row for each score and a column for each baseline, and a note about it."""
    rows = score_rows(card.scores) if card else {}
    if rows and card:
        count = card.scores.get("num_dev_examples")
        about = f"On {count:,} dev examples. " if count else ""
    else:
        last = next((line for line in reversed(lines) if any(key.startswith("eval_") for key in line)), None)
        if last is None:
            return ["None: the run has no dev data, or no evaluation yet."]
        rows = {"dev": {key.removeprefix("eval_"): value for key, value in last.items() if key.startswith("eval_")}}
        how_many = f"up to {settings['eval_examples']:,}" if "eval_examples" in settings else "all"
        about = f"The last evaluation, at step {last['step']:,}, on {how_many} dev examples. "
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    table = [
        [
            curve_name(name),
            *(_score(row, name, "strong" if own == 0 else "soft") for own, row in enumerate(rows.values())),
        ]
        for name in names
    ]
    about += f"In percent{', except losses' if any(map(shows_loss, names)) else ''}."
    about += f" The first ({next(iter(rows))}) is this run's, the others are baselines." if len(rows) > 1 else ""
    about += f" {ABOUT_UNIGRAM}" if UNIGRAM in rows else ""
    classes = card.scores.get("by_class", []) if card else []
    by_class = [[item["name"], *(_score(item, name, "strong") for name in CLASS_SCORES)] for item in classes]
    return [Table(table, ["", *rows], "scores"), about, *([Table(by_class, ["", *CLASS_SCORES])] if by_class else [])]


def _score(row: Mapping[str, Any], name: str, mark: str) -> str | Cell:
    """Return a score with its bar; losses, errors and counts have none."""
    if name not in row:
        return ""
    value = row[name]
    if name == "support":
        return f"{value:,}"
    if shows_loss(name):
        return Cell(f"{value:.4g}" if name.endswith("error") else f"{value:.3f}", mark)
    return Cell(f"{100 * value:.1f}", mark, value if 0 <= value <= 1 else None)


def setting_tables(settings: Mapping[str, Any], card: TaskCard | None) -> list[str | Table]:
    """Return the settings of the run, and of the pretraining before it."""
    found = compare_with_defaults(settings, recipe_type(settings))
    before = card.provenance.get("pretraining", {}).get("recipe") if card and "train" in settings else None
    if before and not settings.get("from_scratch"):
        return ["This run:", *found, "The pretraining before it:", *compare_with_defaults(before, PretrainRecipe)]
    return [*found]


def compare_with_defaults(settings: Mapping[str, Any], recipe: type) -> list[Table]:
    """Return the settings that differ from the default of the recipe or have none, and the others, by flag."""
    defaults = flatten(default_fields(recipe))
    changed: list[list[str | Cell]] = []
    others: list[list[str]] = []
    for name, value in flatten(settings).items():
        if name.partition(".")[0] in (*RECORDED, "stage"):
            continue
        if value == defaults.get(name, ...):
            others.append([name, _shown(value)])
        else:
            changed.append([name, Cell(_shown(value), "strong"), Cell(_shown(defaults.get(name, "")), "soft")])
    return [
        Table(changed, ["changed setting", "value", "default"], "settings"),
        Table(others, kind="settings", folded="default settings"),
    ]


def _shown(value: Any) -> str:
    return "-" if value is None or value == [] else format_number(value)


def records(run: Path, settings: Mapping[str, Any], card: TaskCard | None) -> list[tuple[str, Cell]]:
    """Return digests and versions by name."""
    found: dict[str, Any] = dict(card.provenance) if card else {}
    if not card:
        found = {key: settings[key] for key in RECORDED if settings.get(key)}
    weights = run / "checkpoint" / WEIGHTS_FILE
    if weights.is_file():
        found["weights of this checkpoint"] = sha256(weights)
    return _leaves(found)


def _leaves(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Cell]]:
    """Flatten nested records into rows, without recipes."""
    rows = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            rows += _leaves(value, f"{prefix}{key} · ") if key != "recipe" else []
        else:
            rows.append((f"{prefix}{key}".replace("_", " "), Cell(format_number(value), "code")))
    return rows


@command
def main() -> None:
    """Command line."""
    print(f"report -> {write_report(parse(ReportRecipe, 'training.report', __doc__))}")


if __name__ == "__main__":
    main()
