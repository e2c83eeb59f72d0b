"""Model card of a model directory (`README.md`): properties of the graph, quality, and how to call it.

It is rendered from the manifest alone, so that tuning can render it again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from export.agreement import TITLES
from export.html_report import describe_speed, main_scores, quality_rows
from tasks.bundle.machine import summarize_machine
from tasks.bundle.manifest import Manifest
from training.reports.grid_report import CONTRAST_ROW, TEACHER_ROW
from training.reports.model_card import HUB_METRICS, render_card, score_rows, training_record
from training.reports.usages import MASK, usage_of

TEMPLATE = "model_card.md.j2"
_EXAMPLES = {False: '["A text."]', True: '[("A text.", "Its pair.")]'}
"""Examples of tasks whose usage has none; the key is True for networks trained on pairs."""
_DATA = {"evaluated_on": "Evaluated on", "calibrated_on": "Calibrated on"}


def render(manifest: Manifest, num_bytes: int, mask: str = MASK) -> str:
    """Return the text of `README.md`."""
    provenance, task = manifest.provenance, manifest.task
    record = training_record(task, provenance["training"], settings=manifest.settings)
    data = provenance.get("data", {})
    record["text_pairs"] |= data.get("evaluated_on", {}).get("text_pairs", False)
    usage = usage_of(task, manifest.settings, mask)
    examples = usage.examples or _EXAMPLES[record["text_pairs"]]
    rows, training_rows = (
        _teacher_rows(manifest) | quality_rows(manifest),
        score_rows(manifest.scores.get("checkpoint", {})),
    )
    return render_card(
        TEMPLATE,
        folder=Path(__file__).parent,
        metadata=_metadata(manifest),
        name=f"{manifest.name}/{manifest.version}",
        manifest=manifest,
        settings=manifest.settings,
        config=provenance["checkpoint"]["config"],
        precision=provenance["graph"]["name"],
        fp32_layers=provenance["graph"]["precision"]["fp32_layers"],
        megabytes=num_bytes / 1e6,
        differences=manifest.scores["fp32_difference"],
        rows=rows,
        has_teachers=any(map(_is_teacher_row, rows)),
        has_scores=bool(manifest.scores["quality"]["PyTorch"]["scores"]),
        has_agreement=bool(manifest.scores["quality"]["PyTorch"].get("agreement")),
        small_rows={
            kind: {TITLES.get(key, key): value for key, value in scores.items()}
            for kind, scores in (manifest.small_vectors.losses if manifest.small_vectors else {}).items()
        },
        training_rows={name: row for name, row in training_rows.items() if name not in rows},
        data={label: data[key] for key, label in _DATA.items() if key in data},
        speed=describe_speed(manifest),
        num_trials=len(provenance["graph"]["trials"]),
        machine=summarize_machine(provenance["machine"]),
        execution=manifest.in_onnx_runtime,
        record=record,
        examples=examples,
        usage=usage,
        client=usage.python.format(examples=examples, model=f'"{manifest.name}", version="{manifest.version}"'),
        optimum_class=usage.optimum_class,
    )


def _teacher_rows(manifest: Manifest) -> dict[str, dict[str, float]]:
    """Return the scores of teachers, and of the student without them, if they are of the data of the evaluation."""
    provenance = manifest.provenance
    evaluated_on = provenance.get("data", {}).get("evaluated_on", {}).get("files", {})
    if not evaluated_on or not set(evaluated_on.values()) <= set(provenance["training"].get("data", {}).values()):
        return {}
    rows = score_rows(manifest.scores.get("checkpoint", {}))
    metrics = main_scores(manifest.scores["quality"]["PyTorch"]["scores"])
    return {
        name: {metric: scores[metric] for metric in metrics if metric in scores}
        for name, scores in rows.items()
        if _is_teacher_row(name)
    }


def _is_teacher_row(name: str) -> bool:
    return name.startswith(TEACHER_ROW) or name == CONTRAST_ROW


def _metadata(manifest: Manifest) -> dict[str, Any]:
    """Return the metadata for the Hugging Face hub; languages and licence are unknown."""
    family = manifest.provenance["checkpoint"]["config"].get("model_type", "bert")
    scores = main_scores(manifest.scores["quality"][manifest.provenance["graph"]["name"]]["scores"])
    values: dict[str, Any] = {
        "library_name": "sentence-transformers" if manifest.task == "embedding" else "onnx",
        "tags": [family, "bertline", "onnx", manifest.task],
        "pipeline_tag": usage_of(manifest.task).pipeline_tag,
    }
    if scores:
        values["metrics"] = list(dict.fromkeys(HUB_METRICS.get(metric, metric) for metric in scores))
    return values
