"""A model directory as one page: whether it is the same model, what was tried, where it comes from."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

from export.autotune.search import NUMBERS, TOGETHER
from export.choice import choice_of, default_choice, shown
from export.targets import target_of
from export.variant import Numbers
from tasks.machine import summarize_machine
from tasks.manifest import Manifest
from tasks.metrics import is_loss, main_score
from tasks.model_directory import MODEL_FILE
from training.reports.page import render_page

REPORT_FILE = "report.html"
TEMPLATE = "report.html.j2"
MAX_METRICS = 3
_CHOICES = {
    "skip_layer_norm": "residual and LayerNorm in one operator",
    "embed_layer_norm": "sum of the embeddings and LayerNorm in one operator",
    "bias_gelu": "bias and Gelu in one operator",
    "disabled_optimizers": "load-time optimisers that are switched off",
    "max_batch_tokens": "tokens of a batch, at most",
    "num_threads": "threads of a batch",
    "standard": "ONNX's own operators alone",
    TOGETHER: "what was nearly as fast, together, beside the default",
    NUMBERS: "what the numbers gain, in the form that was chosen",
}
"""Fields that are tried, in words, where their names do not say it."""


def render(manifest: Manifest, num_bytes: int) -> str:
    """The page as HTML.

    Args:
        num_bytes: size of the graph with its weights.
    """
    provenance, qualities = manifest.provenance, manifest.scores["quality"]
    numbers, tried = provenance["graph"]["name"], provenance["graph"]["tried"]
    return render_page(
        TEMPLATE,
        folder=Path(__file__).parent,
        name=f"{manifest.name}/{manifest.version}",
        numbers=numbers,
        facts=_facts(manifest, num_bytes),
        judged_on=manifest.scores["judged_on"],
        differences=manifest.scores["fp32_difference"],
        metrics=[name for name in qualities["PyTorch"]["scores"] if not is_loss(name)][:MAX_METRICS],
        qualities=qualities,
        worst=qualities[numbers]["worst"] if manifest.precision != "fp32" else [],
        tried=_by_choice(tried, {TOGETHER: _chosen(manifest), NUMBERS: numbers}),
        mean_length=tried[-1]["mean_length"] if tried else None,
        default=_default(manifest, {trial["name"] for trial in tried}),
        origin=_origin(manifest),
    )


def outcome_in_words(manifest: Manifest, num_bytes: int) -> str:
    """What the numbers are, how large the graph is, and how good beside PyTorch.

    Args:
        num_bytes: size of the graph with its weights.
    """
    numbers, qualities = manifest.provenance["graph"]["name"], manifest.scores["quality"]
    own, found = qualities[numbers], [numbers, f"{num_bytes / 1e6:.1f} MB"]
    if judged := main_score(own["scores"]):
        metric, score = judged
        before = qualities["PyTorch"]["scores"][metric]
        found.append(f"{metric} {100 * score:.2f} (PyTorch {100 * before:.2f})")
    return ", ".join([*found, f"mean cosine to PyTorch {own['mean_cosine']:.4f}"])


def speed_in_words(manifest: Manifest) -> str:
    """What was measured when the form was chosen."""
    graph = manifest.provenance["graph"]
    if not graph["tried"]:
        return "not measured"
    texts = f"on sequences of {graph['tried'][-1]['mean_length']:.0f} tokens"
    if of_numbers := _speeds(graph["tried"], NUMBERS):
        own, floats = of_numbers[graph["name"]], of_numbers[Numbers().name]
        return f"{own:,.0f} tokens/s, {own / floats:.1f} times fp32, {texts}"
    return f"{_speeds(graph['tried'], TOGETHER)[_chosen(manifest)]:,.0f} tokens/s {texts}"


def _chosen(manifest: Manifest) -> str:
    """What won, as the last trials of choices name it."""
    return choice_of(manifest).changes(default_choice(target_of(manifest.execution)))


def _speeds(tried: Sequence[Mapping[str, Any]], name: str) -> dict[str, float]:
    return {shown(trial["value"]): trial["tokens_per_s"] for trial in tried if trial["name"] == name}


def _facts(manifest: Manifest, num_bytes: int) -> dict[str, str]:
    config, execution = manifest.provenance["checkpoint"]["config"], manifest.execution
    threads = f"{execution.num_threads} thread{'s' * (execution.num_threads != 1)}"
    in_floats = manifest.provenance["graph"]["numbers"]["fp32_layers"]
    return {
        "task": manifest.task,
        "network": f"{config['num_hidden_layers']} layers, hidden size {config['hidden_size']}",
        "graph": f"{num_bytes / 1e6:.1f} MB, opset {manifest.opset}",
        **({"parts in fp32": ", ".join(in_floats)} if in_floats else {}),
        "longest sequence": f"{manifest.settings.max_seq_length} tokens",
        "speed": speed_in_words(manifest),
        "batches": f"up to {execution.max_batch_tokens} tokens, {threads} each",
    }


def _default(manifest: Manifest, names: Container[str]) -> str:
    """What is often fast, of the fields that were tried."""
    choice = default_choice(target_of(manifest.execution))
    values = {**vars(choice.form), **vars(choice.execution)}
    return "; ".join(f"{name.replace('_', ' ')}: {shown(value)}" for name, value in values.items() if name in names)


def _by_choice(tried: Sequence[Mapping[str, Any]], chosen: Mapping[str, str]) -> dict[str, list[dict[str, Any]]]:
    """The trials by what was tried. Only the last ones tell what was chosen: those before led there."""
    found: dict[str, list[dict[str, Any]]] = {}
    for trial in tried:
        name, value = trial["name"], shown(trial["value"])
        row = {"value": value, "ratio": trial["ratio"], "speed": trial["tokens_per_s"]}
        row["chosen"] = value == chosen.get(name)
        found.setdefault(_CHOICES.get(name, name.replace("_", " ")), []).append(row)
    return found


def _origin(manifest: Manifest) -> dict[str, str]:
    provenance = manifest.provenance
    checkpoint = provenance["checkpoint"]
    return {
        "checkpoint": checkpoint["name"],
        "its SHA-256": checkpoint["sha256"],
        "CPU": summarize_machine(provenance["machine"]),
        **_data(provenance.get("data", {})),
        **provenance["versions"],
        "graph's SHA-256": manifest.files[MODEL_FILE],
    }


def _data(record: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for name, part in record.items():
        label = name.replace("_", " ")
        found[label] = part["what"]
        found |= {f"{label}, SHA-256 of {file}": digest for file, digest in part["files"].items()}
    return found
