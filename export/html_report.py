"""Report of a model directory (`report.html`): quality, speed and provenance on one page."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from export.agreement import TITLES, describe
from export.autotune.search import ABOUT_AS_FAST, FINALISTS, PRECISION
from export.records import configuration_of, default_of
from export.variant import GraphPrecision, format_value
from tasks.bundle.machine import summarize_machine
from tasks.bundle.manifest import Manifest
from tasks.bundle.model_directory import graph_file
from tasks.metrics import main_score
from training.reports.model_card import format_score
from training.reports.page import Block, Cell, Table, render_page

REPORT_FILE = "report.html"
MAX_METRICS = 3
_TITLES = {
    "skip_layer_norm": "residual and LayerNorm fused",
    "embed_layer_norm": "embeddings and LayerNorm fused",
    "bias_gelu": "bias and Gelu fused",
    "disabled_optimizers": "disabled load-time optimisers",
    "max_batch_tokens": "max_batch_tokens",
    "num_threads": "threads per batch",
    "standard": "standard ONNX operators only",
    FINALISTS: "finalists, as differences from the default",
    PRECISION: "speed of precisions, in the chosen configuration",
}
"""Titles of trials whose field names are not clear enough."""


def render(manifest: Manifest, num_bytes: int) -> str:
    """Return the page as HTML."""
    return render_page(
        f"{manifest.name}/{manifest.version}",
        title="export report",
        command="python -m export",
        badge=Cell(manifest.provenance["graph"]["name"], "right"),
        facts=_facts(manifest, num_bytes),
        sections={
            "Quality": _quality(manifest),
            "Speed": _speed(manifest),
            "Provenance": [Table([[label, Cell(text, "code")] for label, text in _origin(manifest)], kind="settings")],
        },
    )


def _quality(manifest: Manifest) -> list[Block]:
    own, scores = f"{manifest.provenance['graph']['name']} (this graph)", manifest.scores
    rows = quality_rows(manifest)
    times = "; ".join(f"{name} {time:.2f}" for name, time in scores.get("times", {}).items())
    differences = scores["fp32_difference"].values()
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    table = [
        [
            Cell(name, "strong") if name == own else name,
            *(Cell(format_score(row, metric), "strong" if name == own else "") for metric in names),
        ]
        for name, row in rows.items()
    ]
    blocks: list[Block] = [
        f"Evaluated on {scores['evaluated_on']}."
        + (f" The fp32 graph differs from PyTorch by at most {max(differences):.1e}." if differences else ""),
        Table(table, ["", *names], "scores"),
        "Cosines compare with PyTorch. Neighbours and predictions: the fraction that are PyTorch's"
        + (", among the different texts of the evaluation." if manifest.task == "embedding" else "."),
        f"Times of the graphs within the limits, in the default configuration, where 1 is the fastest: {times}."
        if times
        else "",
    ]
    worst = scores["quality"][own.removesuffix(" (this graph)")]["worst"] if manifest.precision != "fp32" else []
    if worst:
        blocks += [
            "Largest differences from PyTorch:",
            Table([[place.replace("`", ""), f"{cosine:.4f}"] for place, cosine in worst], ["example", "cosine"]),
        ]
    return blocks


def quality_rows(manifest: Manifest) -> dict[str, dict[str, float]]:
    """Return the scores, cosines and agreements of everything that was evaluated; this graph is named as such."""
    own, speeds = manifest.provenance["graph"]["name"], precision_speeds(manifest)
    return {
        f"{name} (this graph)" if name == own else name: {
            **main_scores(quality["scores"]),
            "mean cosine": quality["mean_cosine"],
            "lowest cosine": quality["min_cosine"],
            **{
                title: quality["agreement"][key] for key, title in TITLES.items() if key in quality.get("agreement", {})
            },
            **({"tokens/s": speeds[name]} if name in speeds else {}),
        }
        for name, quality in manifest.scores["quality"].items()
    }


def main_scores(scores: Mapping[str, float]) -> dict[str, float]:
    """Return the official scores, without the scores of single labels."""
    return dict(itertools.islice(scores.items(), MAX_METRICS))


def _speed(manifest: Manifest) -> list[Block]:
    graph = manifest.provenance["graph"]
    trials = graph["trials"]
    if not trials:
        return ["Not tuned: the default graph variant. To find the fastest on this machine, run: python -m export tune"]
    chosen = {FINALISTS: _chosen(manifest), PRECISION: graph["name"]}
    rows: dict[str, list[list[str | Cell]]] = {}
    for trial in trials:
        name, value, ratio = trial["name"], format_value(trial["value"]), trial["ratio"]
        is_chosen = value == chosen.get(name)
        speed = f"{100 * ratio:.0f}%, {trial['tokens_per_s']:,.0f} tokens/s"
        rows.setdefault(_TITLES.get(name, name.replace("_", " ")), []).append(
            [f"{value} (chosen)" if is_chosen else value, Cell(speed, "strong" if is_chosen else "soft", ratio)]
        )
    tried = {trial["name"] for trial in trials}
    values = default_of(manifest).values().items()
    named = (f"{name.replace('_', ' ')}: {format_value(value)}" for name, value in values if name in tried)
    default = "; ".join(named)
    return [
        "The autotuner varied one field after the other, each together with the best values found before, on sequences "
        f"of {trials[-1]['mean_length']:.0f} tokens on average. 100% is the fastest of a group. Then combinations of "
        "nearly as fast values raced as finalists: among those within "
        f"{1 - ABOUT_AS_FAST:.0%} of the fastest, the one closest to the default was chosen. The default is what "
        f"--no-tune uses ({default}).",
        *(Table(group, [title, "speed"], "halves") for title, group in rows.items()),
    ]


def describe_result(manifest: Manifest, num_bytes: int) -> str:
    """Return precision, size and quality of a graph in one line."""
    precision, qualities = manifest.provenance["graph"]["name"], manifest.scores["quality"]
    quality, parts = qualities[precision], [precision, f"{num_bytes / 1e6:.1f} MB"]
    if best_score := main_score(quality["scores"]):
        metric, score = best_score
        reference = qualities["PyTorch"]["scores"][metric]
        parts.append(f"{metric} {100 * score:.2f} (PyTorch {100 * reference:.2f})")
    parts.append(f"mean cosine to PyTorch {quality['mean_cosine']:.4f}")
    agreement = describe(quality.get("agreement", {}))
    return ", ".join([*parts, agreement] if agreement else parts)


def describe_speed(manifest: Manifest) -> str:
    """Return the speed of the chosen configuration in one line."""
    graph = manifest.provenance["graph"]
    if not graph["trials"]:
        return "not measured"
    texts = f"on sequences of {graph['trials'][-1]['mean_length']:.0f} tokens"
    if precisions := precision_speeds(manifest):
        own, fp32 = precisions[graph["name"]], precisions[GraphPrecision().name]
        return f"{own:,.0f} tokens/s, {own / fp32:.1f} times fp32, {texts}"
    return f"{_speeds(graph['trials'], FINALISTS)[_chosen(manifest)]:,.0f} tokens/s {texts}"


def precision_speeds(manifest: Manifest) -> dict[str, float]:
    """Return the tokens/s of fp32 and of the graph's own precision; empty if they were not compared."""
    return _speeds(manifest.provenance["graph"]["trials"], PRECISION)


def _chosen(manifest: Manifest) -> str:
    """Return the chosen configuration, described like the values of finalists."""
    return configuration_of(manifest).describe(default_of(manifest))


def _speeds(trials: Sequence[Mapping[str, Any]], name: str) -> dict[str, float]:
    return {format_value(trial["value"]): trial["tokens_per_s"] for trial in trials if trial["name"] == name}


def _facts(manifest: Manifest, num_bytes: int) -> dict[str, str]:
    config, execution = manifest.provenance["checkpoint"]["config"], manifest.execution
    threads = f"{execution.num_threads} thread{'s' * (execution.num_threads != 1)}"
    fp32_layers = manifest.provenance["graph"]["precision"]["fp32_layers"]
    return {
        "task": manifest.task,
        "network": f"{config['num_hidden_layers']} layers, hidden size {config['hidden_size']}",
        "graph": f"{num_bytes / 1e6:.1f} MB, opset {manifest.opset}",
        **({"layers in fp32": ", ".join(fp32_layers)} if fp32_layers else {}),
        "max_seq_length": f"{manifest.settings.max_seq_length} tokens",
        "speed": describe_speed(manifest),
        "batches": f"up to {execution.max_batch_tokens} tokens, {threads} each",
    }


def _origin(manifest: Manifest) -> list[tuple[str, str]]:
    provenance = manifest.provenance
    checkpoint = provenance["checkpoint"]
    rows = {
        "checkpoint": checkpoint["name"],
        **({"checkpoint, commit of the hub": checkpoint["revision"]} if "revision" in checkpoint else {}),
        "checkpoint, SHA-256": checkpoint["sha256"],
        "CPU": summarize_machine(provenance["machine"]),
        **provenance["versions"],
        "graph, SHA-256": manifest.files[graph_file(manifest, manifest.execution)],
    }
    for name, part in provenance.get("data", {}).items():
        label = name.replace("_", " ")
        rows[label] = part["description"]
        rows |= {f"{label}, SHA-256 of {file}": digest for file, digest in part["files"].items()}
    return list(rows.items())
