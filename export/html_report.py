"""Report of a model directory (`report.html`): quality, speed and provenance on one page."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

from export.agreement import TITLES, describe
from export.autotune.search import FINALISTS, PRECISION
from export.records import configuration_of, default_of
from export.variant import GraphPrecision, format_value
from tasks.machine import summarize_machine
from tasks.manifest import Manifest
from tasks.metrics import is_loss, main_score
from tasks.model_directory import graph_file
from training.reports.page import render_page

REPORT_FILE = "report.html"
TEMPLATE = "report.html.j2"
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
    """Return the page as HTML.

    Args:
        num_bytes: size of the graph with its weights.
    """
    provenance, qualities = manifest.provenance, manifest.scores["quality"]
    precision, trials = provenance["graph"]["name"], provenance["graph"]["trials"]
    return render_page(
        TEMPLATE,
        folder=Path(__file__).parent,
        name=f"{manifest.name}/{manifest.version}",
        precision=precision,
        facts=_facts(manifest, num_bytes),
        evaluated_on=manifest.scores["evaluated_on"],
        differences=manifest.scores["fp32_difference"],
        metrics=[name for name in qualities["PyTorch"]["scores"] if not is_loss(name)][:MAX_METRICS],
        agreements={name: title for name, title in TITLES.items() if name in qualities[precision].get("agreement", {})},
        qualities=qualities,
        times=manifest.scores.get("times", {}),
        worst=qualities[precision]["worst"] if manifest.precision != "fp32" else [],
        trials=_by_title(trials, {FINALISTS: _chosen(manifest), PRECISION: precision}),
        mean_length=trials[-1]["mean_length"] if trials else None,
        default=_describe_default(manifest, {trial["name"] for trial in trials}),
        origin=_origin(manifest),
    )


def describe_result(manifest: Manifest, num_bytes: int) -> str:
    """Return precision, size and quality of a graph in one line.

    Args:
        num_bytes: size of the graph with its weights.
    """
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


def _describe_default(manifest: Manifest, names: Container[str]) -> str:
    """Return the default values of the fields that were tried."""
    values = default_of(manifest).values()
    return "; ".join(
        f"{name.replace('_', ' ')}: {format_value(value)}" for name, value in values.items() if name in names
    )


def _by_title(trials: Sequence[Mapping[str, Any]], chosen: Mapping[str, str]) -> dict[str, list[dict[str, Any]]]:
    """Group the trials by title, and mark the chosen values of the last two groups."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for trial in trials:
        name, value = trial["name"], format_value(trial["value"])
        row = {"value": value, "ratio": trial["ratio"], "speed": trial["tokens_per_s"]}
        row["chosen"] = value == chosen.get(name)
        groups.setdefault(_TITLES.get(name, name.replace("_", " ")), []).append(row)
    return groups


def _origin(manifest: Manifest) -> dict[str, str]:
    provenance = manifest.provenance
    checkpoint = provenance["checkpoint"]
    return {
        "checkpoint": checkpoint["name"],
        **({"checkpoint, commit of the hub": checkpoint["revision"]} if "revision" in checkpoint else {}),
        "checkpoint, SHA-256": checkpoint["sha256"],
        "CPU": summarize_machine(provenance["machine"]),
        **_data(provenance.get("data", {})),
        **provenance["versions"],
        "graph, SHA-256": manifest.files[graph_file(manifest, manifest.execution)],
    }


def _data(record: Mapping[str, Any]) -> dict[str, str]:
    rows = {}
    for name, part in record.items():
        label = name.replace("_", " ")
        rows[label] = part["description"]
        rows |= {f"{label}, SHA-256 of {file}": digest for file, digest in part["files"].items()}
    return rows
