"""Assemble a model directory: graph, tokenizer, manifest with provenance, model card and report."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version as library_version
from pathlib import Path
from typing import Any

import onnx

from export import card, html_report
from export.autotune.search import Trial
from export.html_report import REPORT_FILE
from export.interop import INTEROP_FILES, write_interop_files
from export.optimum_export.exporter import ExportedConfig
from export.quality_gate import Decision
from export.records import graph_record
from export.session import engine_version
from export.source import Source
from export.variant import Configuration
from tasks.bundle.files import atomic_write, sha256
from tasks.bundle.known_outputs import KnownOutputs
from tasks.bundle.machine import describe_machine
from tasks.bundle.manifest import MANIFEST_FILE, Manifest, Precision
from tasks.bundle.model_directory import GRAPH_FILES, file_for, graph_file, holds_manifest
from tasks.bundle.providers import PACKAGES
from tasks.embedding import Embedding
from tasks.small_vectors import SmallVectors
from tasks.text.tokenizer import Tokenizer
from tasks.text.tokenizer_files import TOKENIZER_FILE
from tasks.token_embedding import TokenEmbedding
from training.checkpoint.hub import hub_origin
from training.checkpoint.sentence_transformers import folder_digest
from training.checkpoint.task_card import CARD_FILE
from training.data.sources import is_hub
from training.model.config import EncoderConfig
from training.reports.model_card import with_notes
from training.reports.usages import MASK

_LIBRARIES = ("torch", "onnx", "tokenizers")
_NUM_NAMED = 3
"""Number of foreign files that an error names."""


@dataclass(frozen=True)
class ExportResult:
    """Result of an export: the chosen graph, and how it was measured."""

    decision: Decision
    configuration: Configuration
    trials: list[Trial]
    evaluated_on: str
    """Description of the evaluation set."""
    data: Mapping[str, Any]
    """Record of the data, see `ExportData.record`."""
    differences: Mapping[str, float]
    """Largest difference of each output of the fp32 graph from PyTorch's."""
    truncate: bool
    """True if the server truncates long texts unless a request overrides it."""
    small_vectors: SmallVectors | None = None
    """Calibration of int8 vectors; None without."""
    known_outputs: KnownOutputs | None = None
    """PyTorch's outputs for the known input."""


def check_destination(model_dir: Path, checkpoint: Path, data: Sequence[Path], *, replace: bool) -> None:
    """Check, before the work, that writing a model directory overwrites nothing that is still needed.

    Raises:
        ValueError: if something else exists there, or the export reads from it.
    """
    is_ours = holds_manifest(model_dir)
    if is_ours and not replace:
        raise ValueError(f"already exists: `{model_dir}`; overwrite it with --replace, or use another version")
    written, read = model_dir.resolve(), checkpoint.resolve()
    if written.is_relative_to(read) or read.is_relative_to(written):
        raise ValueError(f"`{model_dir}` and the checkpoint `{checkpoint}` overlap; write to another place")
    if os.path.lexists(model_dir) and not is_ours:
        raise ValueError(f"`{model_dir}` exists and is not a model directory; remove it, or use another version")
    if inside := [path for path in data if path.exists() and path.resolve().is_relative_to(written)]:
        raise ValueError(f"--replace would delete `{inside[0]}`, which the export reads; move it out of `{model_dir}`")
    known = {*GRAPH_FILES, TOKENIZER_FILE, MANIFEST_FILE, CARD_FILE, REPORT_FILE, *INTEROP_FILES}
    if foreign := sorted({str(item.relative_to(model_dir)) for item in model_dir.rglob("*")} - known):
        named = ", ".join(f"`{name}`" for name in foreign[:_NUM_NAMED]) + " ..." * (len(foreign) > _NUM_NAMED)
        raise ValueError(f"--replace would delete files in `{model_dir}` that no export wrote ({named}); move them")


def write_package(
    directory: Path,
    source: Source,
    config: EncoderConfig | ExportedConfig,
    result: ExportResult,
    *,
    name: str,
    version: str,
    precision: Precision,
    space: str,
    notes: str,
) -> None:
    """Write tokenizer, manifest, model card and report next to the graph in a directory."""
    source.task.tokenizer.backend.save(str(directory / TOKENIZER_FILE))
    proto = onnx.load(directory / file_for(result.configuration.execution), load_external_data=False)
    hidden_size = config.hidden_size
    if isinstance(source.task, Embedding | TokenEmbedding):  # layers over the vectors can change their size
        hidden_size = int(proto.graph.output[0].type.tensor_type.shape.dim[-1].dim_value)
    write_interop_files(directory, source, hidden_size)
    opset = next(item.version for item in proto.opset_import if not item.domain)
    manifest = Manifest(
        name=name,
        version=version,
        task=source.task.name,
        settings=source.task.settings,
        precision=precision,
        opset=opset,
        hidden_size=hidden_size,
        vocab_size=config.vocab_size,
        inputs=tuple(item.name for item in proto.graph.input),
        outputs=tuple(item.name for item in proto.graph.output),
        files=digests(directory),
        execution=result.configuration.execution,
        fallback=result.configuration.fallback.execution if result.configuration.fallback else None,
        provenance=_provenance(source, config, result),
        scores=_scores(source, result),
        truncate=result.truncate,
        space=space,
        small_vectors=result.small_vectors,
        known_outputs=result.known_outputs,
    )
    write_manifest(directory, manifest, notes)


def write_manifest(directory: Path, manifest: Manifest, notes: str) -> None:
    """Write the manifest, and the model card and report made from it."""
    mask = Tokenizer.load(directory).mask_token or MASK
    for name, text in pages(manifest, graph_bytes(directory, manifest), notes, mask).items():
        atomic_write(directory / name, text.encode())


def graph_bytes(directory: Path, manifest: Manifest) -> int:
    """Return the size of the graph that a manifest's `execution` runs, with its weights, in bytes."""
    name = graph_file(manifest, manifest.execution)
    paths = [directory / name, directory / f"{name}.data"]
    return sum(path.stat().st_size for path in paths if path.is_file())


def pages(manifest: Manifest, num_bytes: int, notes: str = "", mask: str = MASK) -> dict[str, str]:
    """Return manifest, model card and report as text, by file name."""
    return {
        MANIFEST_FILE: manifest.to_json(),
        REPORT_FILE: html_report.render(manifest, num_bytes),
        CARD_FILE: with_notes(card.render(manifest, num_bytes, mask), notes),
    }


def digests(directory: Path) -> dict[str, str]:
    """Return the SHA-256 of each file that a server reads."""
    names = (*GRAPH_FILES, TOKENIZER_FILE)
    return {name: sha256(directory / name) for name in names if (directory / name).is_file()}


def runtime_version(configuration: Configuration) -> dict[str, str]:
    """Return name and version of the packages that run a configuration."""
    settings = (item.execution for item in (configuration, configuration.fallback) if item)
    return {PACKAGES[item.provider]: engine_version(item) for item in settings}


def _provenance(source: Source, config: EncoderConfig | ExportedConfig, result: ExportResult) -> dict[str, Any]:
    versions = {library: library_version(library) for library in _LIBRARIES}
    return {
        "checkpoint": {**source.origin, "sha256": folder_digest(source.folder), "config": asdict(config)},
        "training": _without_paths(source.card.provenance) if source.card else {},
        "data": dict(result.data),
        "graph": graph_record(result.decision.network, result.decision.precision, result.configuration, result.trials),
        "machine": describe_machine(),
        "versions": versions | runtime_version(result.configuration),
    }


def _without_paths(training: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record of training with names instead of paths, because servers show manifests to clients."""
    record = dict(training)
    if "recipe" in record:
        record["recipe"] = {key: _short_name(value) for key, value in record["recipe"].items()}
    return record | {key: _without_paths(record[key]) for key in ("pretraining", "before") if key in record}


def _short_name(value: Any) -> Any:
    """Return the last part of a path, `<run>/checkpoint`, or `org/name@commit` of the hub; other values as they are."""
    if isinstance(value, list | tuple):
        return [_short_name(item) for item in value]
    if not isinstance(value, str) or "/" not in value or is_hub(Path(value)):
        return value
    if origin := hub_origin(value):
        return str(origin)
    path = Path(value)
    return f"{path.parent.name}/{path.name}" if path.name == "checkpoint" else path.name


def _scores(source: Source, result: ExportResult) -> dict[str, Any]:
    """Return the scores of the graphs, and of the checkpoint, if it was trained for the exported task."""
    card = source.card
    return {
        **({"checkpoint": dict(card.scores)} if card and card.task == source.task.name and card.scores else {}),
        "evaluated_on": result.evaluated_on,
        "fp32_difference": dict(result.differences),
        "quality": {name: asdict(quality) for name, quality in result.decision.qualities.items()},
        **({"times": dict(result.decision.times)} if result.decision.times else {}),
    }
