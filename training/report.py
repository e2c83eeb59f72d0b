"""Write a report of a run as one HTML page: scores with baselines, curves, predictions, settings and provenance.

    python -m training.report runs/mini
    python -m training.report runs/mini --data texts.txt --out page.html

The page needs no network and no script. The run may still be going on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from markupsafe import Markup
from safetensors import SafetensorError, safe_open

from tasks.embedding import Embedding
from tasks.files import atomic_write, sha256
from tasks.json_files import read_json
from training.checkpoint.hub import cached_checkpoint, checkpoint_name
from training.checkpoint.reader import CONFIG_FILE
from training.checkpoint.task_card import TaskCard, read_task_card
from training.checkpoint.weights import WEIGHTS_FILE, has_weights
from training.command_line.command import command, parse
from training.contrastive import ContrastiveRecipe
from training.data.pretraining import Masking
from training.data.sources import source_names
from training.distillation.tasks import TaskDistillRecipe
from training.distillation.vectors import VectorDistillRecipe
from training.finetuning.recipe import FinetuneRecipe
from training.loop.recipe import RECIPE_FILE, check_types, default_fields, flatten, stage_of
from training.loop.run_directory import read_metrics
from training.objectives.baselines import masked_unigram
from training.pretrain import UNIGRAM, PretrainRecipe
from training.reports.model_card import base_model, format_number, score_rows
from training.reports.page import render_page
from training.reports.plot import curve_name, legend, panels, shows_loss, svg
from training.reports.sample_views import format_percent
from training.reports.samples import sample_predictions
from training.text.corpus import CORPUS_FILE, Corpus

REPORT_FILE = "report.html"
TEMPLATE = "report.html.j2"
RECORDED = ("data", "corpus_digest", "dev_corpus_digest", "init_sha256", "checkpoint_sha256", "tokenizer_sha256")
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
        inner = sorted(path.parent for path in recipe.run.glob(f"**/{RECIPE_FILE}"))
        inner.sort(key=lambda run: not has_weights(run / "checkpoint"))  # runs with weights first
        hint = (
            f"give one of its {len(inner)} runs, such as `{inner[0]}`"
            if inner
            else "give the run directory of a training"
        )
        raise ValueError(f"not a run: `{recipe.run}` has no {RECIPE_FILE}; {hint}")
    path = recipe.out or recipe.run / REPORT_FILE
    atomic_write(path, render(recipe.run, recipe.data).encode())
    return path


def render(run: Path, data: Sequence[Path] = ()) -> str:
    """Render the page of a run as HTML; `data` as in `ReportRecipe`."""
    settings = read_json(run / RECIPE_FILE)
    check_types(recipe_type(settings), settings, run / RECIPE_FILE)
    lines = read_metrics(run)
    checkpoint = run / "checkpoint"
    card = read_task_card(checkpoint) if checkpoint.is_dir() else None
    rows, about = scores(settings, lines, card)
    return render_page(
        TEMPLATE,
        filters={"percent": format_percent, "score": _score},
        tests={"loss": shows_loss},
        name=run.resolve().name,
        facts=facts(run, settings, lines, card),
        step=lines[-1]["step"] if lines else 0,
        is_finished=card is not None,
        rows=rows,
        about_scores=about,
        metrics={key: curve_name(key) for scores in rows.values() for key in scores},
        curves=[(panel.title, legend(panel), Markup(svg(lines, panel))) for panel in panels(lines)],
        eval_examples=settings.get("eval_examples"),
        samples=sample_predictions(run, settings, data),
        tables=setting_tables(settings, card),
        records=records(run, settings, card),
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
    task = card.task if card else settings.get("task", "masked-lm")
    found = {"task": task, "network": _network(run, settings)}
    if "corpus" in settings:
        found["corpus"] = _corpus(Path(settings["corpus"]))
    else:
        found["data"] = ", ".join(source_names([Path(path) for path in settings.get("train", ())]))
        found["teacher"] = ", ".join(checkpoint_name(Path(path)) for path in settings.get("teacher", ()))
        found["from"] = "random weights" if settings.get("from_scratch") else base_model({"recipe": settings})
    tokens = max((line.get("num_tokens", 0) for line in lines), default=0)
    found["tokens seen"] = format_count(tokens) if tokens else ""
    seconds = training_seconds(lines)
    found["time"] = f"about {format_seconds(seconds)}" if seconds else ""
    return {key: value for key, value in found.items() if value}


def _network(run: Path, settings: Mapping[str, Any]) -> str:
    """Describe the network of the run's checkpoint; without one, of its initial checkpoint or its recipe."""
    start = cached_checkpoint(settings.get("checkpoint") or settings.get("init") or "")
    files = [path for folder in (run / "checkpoint", start) if (path := folder / CONFIG_FILE).is_file()]
    shape = read_json(files[0]) if files else settings
    if "hidden_size" not in shape:
        return ""
    layers, hidden, heads = (shape[name] for name in ("num_hidden_layers", "hidden_size", "num_attention_heads"))
    text = f"{layers} layers, hidden size {hidden}, {heads} heads"
    weights = run / "checkpoint" / WEIGHTS_FILE
    return f"{text}, {format_count(num_parameters(weights))} parameters" if weights.is_file() else text


def num_parameters(weights: Path) -> int:
    """Return the number of parameters in a safetensors file; reads its header only.

    Raises:
        ValueError: naming a damaged file.
    """
    try:
        with safe_open(weights, "pt") as file:
            return sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"cannot read weights `{weights}`: {error}") from error


def _corpus(path: Path) -> str:
    if not (path / CORPUS_FILE).is_file():
        return path.name
    info = read_json(path / CORPUS_FILE)
    return f"{path.name}, {format_count(info['num_tokens'])} tokens"


def training_seconds(lines: Sequence[Mapping[str, Any]]) -> float:
    """Return the seconds of training: tokens between lines of the metrics over tokens a second."""
    seconds, before = 0.0, 0
    for line in lines:
        if line.get("tokens_per_s") and "num_tokens" in line:
            seconds += (line["num_tokens"] - before) / line["tokens_per_s"]
            before = line["num_tokens"]
    return seconds


def format_seconds(seconds: float) -> str:
    """Format seconds as 40 s, 12 min, 3.5 h or 2.1 days."""
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.{0 if unit == 'min' else 1}f} {unit}"
    return f"{seconds:.0f} s"


def format_count(count: float) -> str:
    """Format a count as 7.8M, 16.0k or 950."""
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.1f}{unit}"
    return f"{count:.0f}"


ABOUT_UNIGRAM = (
    "Unigram baseline: each token is predicted by its frequency and its own masked input, without other tokens."
)


def scores(
    settings: Mapping[str, Any], lines: Sequence[Mapping[str, Any]], card: TaskCard | None
) -> tuple[dict[str, dict[str, float]], str]:
    """Return scores by row, baselines last, and a sentence about them."""
    if card and (rows := score_rows(card.scores)):
        count = card.scores.get("num_dev_examples")
        about = f"On {count:,} dev examples." if count else ""
        return rows, f"{about} {ABOUT_UNIGRAM}" if UNIGRAM in rows else about
    last = next((line for line in reversed(lines) if any(key.startswith("eval_") for key in line)), None)
    if last is None:
        return {}, "None: the run has no dev data, or no evaluation yet."
    own = {key.removeprefix("eval_"): value for key, value in last.items() if key.startswith("eval_")}
    how_many = f"up to {settings['eval_examples']:,}" if "eval_examples" in settings else "all"
    about = f"The last evaluation, at step {last['step']:,}, on {how_many} dev examples."
    baseline = corpus_baseline(settings) if "mlm_loss" in own else None
    if baseline is None:
        return {"dev": own}, about
    return {"dev": own, UNIGRAM: baseline}, f"{about} {ABOUT_UNIGRAM}"


def corpus_baseline(settings: Mapping[str, Any]) -> dict[str, float] | None:
    """Return the unigram baseline on the dev corpus; None if a corpus no longer exists or has changed."""
    paths = [Path(settings[key]) for key in ("corpus", "dev_corpus") if settings.get(key)]
    if len(paths) < 2 or not all((path / CORPUS_FILE).is_file() for path in paths):
        return None
    corpus, dev = (Corpus(path) for path in paths)
    recorded = settings.get("corpus_digest"), settings.get("dev_corpus_digest")
    if (corpus.digest, dev.digest) != recorded or dev.tokenizer.vocab_size != corpus.tokenizer.vocab_size:
        return None
    return masked_unigram(corpus.token_counts(), dev.token_counts(), Masking())


@dataclass(frozen=True)
class Setting:
    """A field of a recipe."""

    name: str
    value: Any
    default: Any
    is_changed: bool
    """True if it differs from the default, or has none."""


def setting_tables(settings: Mapping[str, Any], card: TaskCard | None) -> list[tuple[str, list[Setting]]]:
    """Return the settings of the run, and of the pretraining before it."""
    tables = [("This run", compare_with_defaults(settings, recipe_type(settings)))]
    before = card.provenance.get("pretraining", {}).get("recipe") if card and "train" in settings else None
    if before and not settings.get("from_scratch"):
        tables.append(("The pretraining before it", compare_with_defaults(before, PretrainRecipe)))
    return tables


def compare_with_defaults(settings: Mapping[str, Any], recipe: type) -> list[Setting]:
    """Return each setting with the default of its recipe, by the name of its flag."""
    defaults = flatten(default_fields(recipe))
    return [
        Setting(name, _shown(value), _shown(defaults.get(name, "")), value != defaults.get(name, ...))
        for name, value in flatten(settings).items()
        if name.partition(".")[0] not in (*RECORDED, "stage")
    ]


def _shown(value: Any) -> str:
    return "-" if value is None or value == [] else format_number(value)


def records(run: Path, settings: Mapping[str, Any], card: TaskCard | None) -> dict[str, str]:
    """Return digests and versions by name."""
    found: dict[str, Any] = dict(card.provenance) if card else {}
    if not card:
        found = {key: settings[key] for key in RECORDED if settings.get(key)}
    weights = run / "checkpoint" / WEIGHTS_FILE
    if weights.is_file():
        found["weights of this checkpoint"] = sha256(weights)
    corpus = Path(settings.get("corpus") or "")
    if settings.get("corpus") and (corpus / CORPUS_FILE).is_file():
        info = read_json(corpus / CORPUS_FILE)
        found["corpus"] = {
            "counts": f"{info['num_documents']:,} documents, {info['num_sentences']:,} sentences",
            "sources": info.get("sources", {}),
        }
    return dict(_leaves(found))


def _leaves(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Flatten nested records into rows, without recipes."""
    rows = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            rows += _leaves(value, f"{prefix}{key} · ") if key != "recipe" else []
        else:
            rows.append((f"{prefix}{key}".replace("_", " "), format_number(value)))
    return rows


def _score(value: float, key: str) -> str:
    if key.endswith("error"):
        return f"{value:.4g}"
    return f"{value:.3f}" if shows_loss(key) else f"{100 * value:.1f}"


@command
def main() -> None:
    """Command line."""
    print(f"report -> {write_report(parse(ReportRecipe, 'training.report', __doc__))}")


if __name__ == "__main__":
    main()
