"""Model card of a checkpoint: `README.md`, with the metadata that Hugging Face's hub reads.

It states the recorded facts about the model, and lists the unknown ones.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jinja2

from tasks.bundle.machine import summarize_machine
from tasks.metrics import CHARACTERS_SUFFIX
from tasks.text.tokenizer import Tokenizer
from training.checkpoint.hub import checkpoint_name
from training.checkpoint.task_card import CARD_FILE, TaskCard
from training.checkpoint.writer import config_values
from training.data.sources import hub_source, is_hub, source_names
from training.model.heads import BertModel
from training.reports.usages import MASK, USAGES, usage_of

NOTES_BEGIN = "<!-- Notes on data, licences and limits go below; `export` keeps those of a model directory. -->"
TEMPLATE = "model_card.md.j2"
FOLDER = Path(__file__).parent
HUB_METRICS = {"macro_f1": "f1", "micro_f1": "f1", "weighted_f1": "f1", "mean_absolute_error": "mae"}
"""Names of scores -> different names on the hub."""
MAIN_SETTINGS = {
    "mode": "training",
    "max_minutes": "minutes",
    "num_steps": "steps",
    "num_epochs": "epochs",
    "global_batch_size": "global batch, sequences",
    "max_seq_length": "longest sequence, tokens",
    "long_seq_length": "longest sequence in the last steps, tokens",
    "long_fraction": "fraction of last steps",
    "train_seq_length": "longest sequence in training, tokens",
    "temperature": "temperature",
    "alpha": "weight of the labels",
    "similarity_weight": "weight of the loss of similarities",
    "projection": "projection of the teacher's vectors",
    "dimensions": "sizes to which vectors may be cut",
    "learning_rate": "learning rate, peak",
    "warmup_ratio": "warm-up, fraction of the steps",
    "weight_decay": "weight decay",
    "betas": "AdamW betas",
    "clip_norm": "gradients clipped to norm",
    "dropout": "dropout",
    "class_weights": "class weights",
    "label_smoothing": "label smoothing",
    "masking_rate": "masking rate",
    "initialization": "initialization",
    "dtype": "arithmetic",
    "seed": "seed",
}
"""Fields of a recipe that the card shows -> their labels."""


def describe_checkpoint(model: BertModel, *, tokenizer_from: Path, card: TaskCard) -> str:
    """Return the text of a checkpoint's README.md."""
    return model_card(
        card,
        {**asdict(model.config), **config_values(model, card.settings)},
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        mask=Tokenizer.load(tokenizer_from).mask_token or MASK,
    )


def model_card(card: TaskCard, config: Mapping[str, Any], *, num_parameters: int, mask: str = MASK) -> str:
    """Return the text of `README.md`.

    Args:
        config: values of `config.json`.
        num_parameters: number of parameters of the network; tied ones count once.
        mask: mask token of the tokenizer.
    """
    provenance = card.provenance
    recipe = provenance.get("recipe") or provenance.get("pretraining", {}).get("recipe", {})
    name = Path(recipe.get("run_dir", "")).name or f"bert-{card.task}"
    return render_card(
        TEMPLATE,
        metadata=_metadata(name, card, family=config.get("model_type", "bert")),
        name=name,
        card=card,
        config=config,
        millions=num_parameters / 1e6,
        usage=usage_of(card.task, card.settings, mask),
        rows=score_rows(card.scores),
        record=training_record(card.task, provenance, card.settings),
    )


def render_card(template: str, *, metadata: Mapping[str, Any], folder: Path = FOLDER, **values: Any) -> str:
    """Render a model card as Markdown, with a section for notes.

    Args:
        template: file in `folder`; it may import `card_parts.md.j2`.
        metadata: metadata for the hub, above the text.
        values: variables of the template.
    """
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in metadata.items()]  # JSON is valid YAML
    text = _environment(folder).get_template(template).render(metadata=lines, **values)
    return with_notes(text, "")


def with_notes(card: str, notes: str) -> str:
    """Replace the notes of a card; both are Markdown."""
    parts = (card.partition(NOTES_BEGIN)[0], NOTES_BEGIN, notes)
    return "\n\n".join(stripped for part in parts if (stripped := part.strip())) + "\n"


def read_notes(directory: Path) -> str:
    """Return the notes of the card in a directory, as Markdown; empty if there are none.

    Raises:
        ValueError: naming the card if it is not UTF-8.
    """
    path = directory / CARD_FILE
    if not path.is_file():
        return ""
    try:
        return path.read_text(encoding="utf-8").partition(NOTES_BEGIN)[2].strip()
    except UnicodeDecodeError as error:
        raise ValueError(f"`{path}` is not UTF-8, so its notes cannot be kept; fix or remove it") from error


def training_record(task: str, provenance: Mapping[str, Any], settings: object = None) -> dict[str, Any]:
    """Return the facts about the training that a card shows, as far as the provenance of the task card has them."""
    recipe = provenance.get("recipe") or provenance.get("pretraining", {}).get("recipe", {})
    pretrainings = _chain(provenance.get("pretraining"))
    finetunings = _chain(provenance) if "recipe" in provenance else []
    anew = [number for number, record in enumerate(finetunings) if record.get("recipe", {}).get("from_scratch")]
    if anew:  # since weights were last random
        pretrainings, finetunings = [], finetunings[anew[-1] :]
    next_sentences = " and next sentences" if task == "masked-lm" and recipe.get("next_sentences") else ""
    return {
        "sentence": f"{usage_of(task, settings).sentence}{next_sentences}",
        "text_pairs": provenance.get("text_pairs", False),
        "cuts": {what: cut for what, cut in provenance.get("cuts", {}).items() if cut["num_cut"]},
        "stages": _numbered("Pretraining", pretrainings) + _numbered("Fine-tuning", finetunings),
        "base": base_model(provenance),
        "distilled": "teachers" in provenance,
        "teachers": [teacher for record in (*pretrainings, *finetunings) for teacher in record.get("teachers", ())],
        "pretraining_tokens": sum(record.get("num_tokens", 0) for record in pretrainings),
    }


@functools.cache
def _environment(folder: Path) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder, FOLDER]),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"code": code, "number": format_number, "score": format_score}
    return environment


def score_rows(scores: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return the tables of scores by row: the checkpoint's own first, then baselines."""
    return {
        name: {key: value for key, value in row.items() if isinstance(value, int | float)}
        for name, row in scores.items()
        if isinstance(row, Mapping)
    }


def base_model(provenance: Mapping[str, Any]) -> str:
    """Return the name of the checkpoint that was fine-tuned; empty if there is none, or only its shape was used."""
    recipe = provenance.get("recipe", {})
    if "checkpoint" not in recipe or recipe.get("from_scratch"):
        return ""
    return checkpoint_name(Path(recipe["checkpoint"]))


def format_number(value: Any) -> str:
    """Format a setting or count for people: 12,000, 0.0005, `a, b` for lists."""
    if isinstance(value, list | tuple):
        return ", ".join(map(format_number, value))
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "default"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def format_score(row: Mapping[str, float], name: str) -> str:
    """Format the score of a row; empty if it has none."""
    if name not in row:
        return ""
    return f"{row[name]:,.0f}" if name == "tokens/s" else f"{row[name]:.4f}"


def code(text: object) -> str:
    """Format any text as Markdown's inline code that fits into a cell of a table."""
    line = " ".join(str(text).split()).replace("|", "\\|")
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
    space = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{space}{line}{space}{fence}"


def _metadata(name: str, card: TaskCard, *, family: str) -> dict[str, Any]:
    usage = USAGES.get(card.task)
    dev = score_rows(card.scores).get("dev", {})
    base = base_model(card.provenance)
    values: dict[str, Any] = {"library_name": "transformers", "tags": [family, "bertline", card.task]}
    if usage:
        values["pipeline_tag"] = usage.pipeline_tag
    if re.fullmatch(r"([\w.-]{1,96}/)?[\w.-]{1,96}", base):
        values["base_model"] = base
    if dev and usage:
        types = {metric: HUB_METRICS.get(metric, metric.removesuffix(CHARACTERS_SUFFIX)) for metric in dev}
        result = {
            "task": {"type": usage.pipeline_tag},
            "dataset": _dataset([Path(path) for path in card.provenance.get("recipe", {}).get("dev", ())]),
            "metrics": [{"type": types[key], "name": key, "value": round(value, 6)} for key, value in dev.items()],
        }
        values["metrics"] = list(dict.fromkeys(types.values()))
        values["model-index"] = [{"name": name, "results": [result]}]
    return values


def _dataset(paths: Sequence[Path]) -> dict[str, str]:
    """Return the data of the scores in the hub's format; a data set of the hub by its id."""
    named = zip(paths, source_names(paths), strict=True)
    sources = [hub_source(path) if is_hub(path) else (name, {}) for path, name in named]
    name = ", ".join(source for source, _ in sources) or "dev"
    if len(paths) == 1 and is_hub(paths[0]):
        return {"name": name, "type": name, **sources[0][1]}
    return {"name": name, "type": "private", "split": "dev"}


def _numbered(title: str, records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        _stage(f"{title}, {number} of {len(records)}" if len(records) > 1 else title, record)
        for number, record in enumerate(records, start=1)
    ]


def _chain(record: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """Return the records of stages of one kind, in the order in which they ran."""
    return [*_chain(record.get("before")), record] if record else []


def _stage(title: str, record: Mapping[str, Any]) -> dict[str, Any]:
    recipe = record.get("recipe", {})
    values = recipe | {key: record[key] for key in ("num_steps", "num_epochs") if key in record}
    if not values.get("long_seq_length"):
        values.pop("long_fraction", None)
    if not values.get("label_smoothing"):
        values.pop("label_smoothing", None)
    data = record.get("data", {})
    if "corpus" in record:
        data = {"corpus (its corpus.json)": record["corpus"]}
    if init := record.get("init"):
        data = data | {f"weights to start from: {init['name']}": init["sha256"]}
    return {
        "title": title.replace("Fine-tuning", "Distillation") if "teachers" in record else title,
        "settings": {label: values[key] for key, label in MAIN_SETTINGS.items() if values.get(key) is not None},
        "data": data,
        "torch": record.get("torch"),
        "machine": summarize_machine(record["machine"]) if "machine" in record else "",
        "from_scratch": recipe.get("from_scratch", False),
    }
