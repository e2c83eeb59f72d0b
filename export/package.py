"""Assemble a model directory: graph, tokenizer, and the manifest with where they came from."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version as library_version
from pathlib import Path
from typing import Any

import onnx
import onnxruntime

from export import card, html_report
from export.autotune.search import Trial
from export.choice import Choice
from export.html_report import REPORT_FILE
from export.interop import FOR_OTHERS, write_for_others
from export.quality import Quality
from export.source import Source
from export.variant import Numbers
from tasks.files import atomic_write, sha256
from tasks.machine import describe_machine
from tasks.manifest import MANIFEST_FILE, Manifest, Precision, check_json
from tasks.model_directory import DATA_FILE, MODEL_FILE, holds_manifest
from tasks.providers import PACKAGES
from tasks.registry import settings_to_dict
from tasks.tokenizer_files import TOKENIZER_FILE
from training.data.hub import is_hub
from training.data.sources import source_names
from training.model.encoder import EncoderConfig
from training.reports.model_card import CARD_FILE, with_notes
from training.weights import checkpoint_digest

_LIBRARIES = ("torch", "onnx", "tokenizers")
_NUM_NAMED = 3


@dataclass(frozen=True)
class Made:
    """A graph that was chosen and checked."""

    numbers: Numbers
    choice: Choice
    trials: list[Trial]
    judged_on: str
    """In words."""
    data: Mapping[str, Any]
    """What `Data.record` gives."""
    qualities: Mapping[str, Quality]
    """Of PyTorch and all numbers that were tried, by name."""
    differences: Mapping[str, float]
    """Largest difference of each output of the fp32 graph from PyTorch's."""
    truncate: bool
    """Whether texts that are too long are cut where a call does not say."""


def check_destination(model_dir: Path, checkpoint: Path, data: Sequence[Path], *, replace: bool) -> None:
    """Whether a model directory can be written without loss, before the work.

    Args:
        data: files that are read.

    Raises:
        ValueError: when something is there that is not to be replaced, or what is read would be.
    """
    is_ours = holds_manifest(model_dir)
    if is_ours and not replace:
        raise ValueError(f"already exists: `{model_dir}`; give --replace to overwrite it, or take another version")
    written, read = model_dir.resolve(), checkpoint.resolve()
    if written.is_relative_to(read) or read.is_relative_to(written):
        raise ValueError(f"`{model_dir}` and the checkpoint `{checkpoint}` lie in each other; write to another place")
    if os.path.lexists(model_dir) and not is_ours:
        raise ValueError(f"`{model_dir}` is no model directory and is not replaced: remove it, or take another version")
    if inside := [path for path in data if path.exists() and path.resolve().is_relative_to(written)]:
        raise ValueError(f"`{inside[0]}` lies in `{model_dir}`, which is to be replaced; move it away")
    if others := _others(model_dir):
        named = ", ".join(f"`{name}`" for name in others[:_NUM_NAMED]) + " ..." * (len(others) > _NUM_NAMED)
        raise ValueError(f"`{model_dir}` holds what no export wrote ({named}) and is not replaced: move it away")


def _others(model_dir: Path) -> list[str]:
    """What lies in a model directory and was not exported."""
    known = {MODEL_FILE, DATA_FILE, TOKENIZER_FILE, MANIFEST_FILE, CARD_FILE, REPORT_FILE, *FOR_OTHERS}
    return sorted({str(item.relative_to(model_dir)) for item in model_dir.rglob("*")} - known)


def check_record(source: Source, config: EncoderConfig, data: Sequence[Path]) -> None:
    """Whether a manifest can say where it comes from, before the work.

    Args:
        data: files that are read.

    Raises:
        ValueError: naming what is no finite number, or no text that UTF-8 has.
    """
    trained = source.card
    record = {
        "settings": settings_to_dict(source.task.settings),
        "config": asdict(config),
        "scores": dict(trained.scores) if trained else {},
        "training": dict(trained.provenance) if trained else {},
        "name": source.name,
        "data": source_names(data),
    }
    check_json(record)


def write_package(
    directory: Path,
    source: Source,
    config: EncoderConfig,
    made: Made,
    *,
    name: str,
    version: str,
    precision: Precision,
    notes: str,
) -> None:
    """Write tokenizer and manifest beside the graph in a directory.

    Args:
        config: shape of the network.
        notes: of the model card.
    """
    source.task.tokenizer.backend.save(str(directory / TOKENIZER_FILE))
    write_for_others(directory, source, config.hidden_size)
    proto = onnx.load(directory / MODEL_FILE, load_external_data=False)
    opset = next(item.version for item in proto.opset_import if not item.domain)
    manifest = Manifest(
        name=name,
        version=version,
        task=source.task.name,
        settings=source.task.settings,
        precision=precision,
        opset=opset,
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        inputs=tuple(item.name for item in proto.graph.input),
        outputs=tuple(item.name for item in proto.graph.output),
        files=digests(directory),
        execution=made.choice.execution,
        provenance=_provenance(source, config, made),
        scores=_checkpoint_scores(source) | _scores(made),
        truncate=made.truncate,
    )
    write_manifest(directory, manifest, notes)


def write_manifest(directory: Path, manifest: Manifest, notes: str) -> None:
    """Write the manifest, and what it says as pages for people.

    Args:
        notes: that the model card ends with.
    """
    for name, text in pages(manifest, graph_bytes(directory), notes).items():
        atomic_write(directory / name, text.encode())


def graph_bytes(directory: Path) -> int:
    """Size of a graph with its weights."""
    paths = [directory / MODEL_FILE, directory / DATA_FILE]
    return sum(path.stat().st_size for path in paths if path.is_file())


def pages(manifest: Manifest, num_bytes: int, notes: str = "") -> dict[str, str]:
    """All files that tell what a manifest does, by name.

    Args:
        num_bytes: size of the graph with its weights.
        notes: that the model card ends with.
    """
    return {
        MANIFEST_FILE: manifest.to_json(),
        REPORT_FILE: html_report.render(manifest, num_bytes),
        CARD_FILE: with_notes(card.render(manifest, num_bytes), notes),
    }


def digests(directory: Path) -> dict[str, str]:
    """SHA-256 of the files that a server reads."""
    names = (MODEL_FILE, DATA_FILE, TOKENIZER_FILE)
    return {name: sha256(directory / name) for name in names if (directory / name).is_file()}


def graph_record(numbers: Numbers, choice: Choice, trials: Sequence[Trial]) -> dict[str, Any]:
    """What is written down of a graph."""
    return {
        "name": numbers.name,
        "numbers": asdict(numbers),
        "form": asdict(choice.form),
        "tried": [asdict(trial) for trial in trials],
    }


def runtime_version(choice: Choice) -> dict[str, str]:
    """Of the distribution with the provider that runs a choice, by its name."""
    return {PACKAGES[choice.execution.provider]: onnxruntime.__version__}


def _provenance(source: Source, config: EncoderConfig, made: Made) -> dict[str, Any]:
    return {
        "checkpoint": {"name": source.name, "sha256": checkpoint_digest(source.directory), "config": asdict(config)},
        "training": _without_places(source.card.provenance) if source.card else {},
        "data": dict(made.data),
        "graph": graph_record(made.numbers, made.choice, made.trials),
        "machine": describe_machine(),
        "versions": {library: library_version(library) for library in _LIBRARIES} | runtime_version(made.choice),
    }


def _without_places(training: Mapping[str, Any]) -> dict[str, Any]:
    """A record of training with names instead of paths: servers show manifests to whoever asks."""
    found = dict(training)
    if "recipe" in found:
        found["recipe"] = {key: _name(value) for key, value in found["recipe"].items()}
    return found | {key: _without_places(found[key]) for key in ("pretraining", "before") if key in found}


def _name(value: Any) -> Any:
    """The last part of a path, of that of a run's checkpoint the last two; whatever is no path as it is."""
    if isinstance(value, list | tuple):
        return [_name(item) for item in value]
    if not isinstance(value, str) or "/" not in value or is_hub(Path(value)):
        return value
    path = Path(value)
    return f"{path.parent.name}/{path.name}" if path.name == "checkpoint" else path.name


def _checkpoint_scores(source: Source) -> dict[str, Any]:
    """What the checkpoint scored, where it was trained for the very task that is exported."""
    if source.card and source.card.task == source.task.name and source.card.scores:
        return {"checkpoint": dict(source.card.scores)}
    return {}


def _scores(made: Made) -> dict[str, Any]:
    return {
        "judged_on": made.judged_on,
        "fp32_difference": dict(made.differences),
        "quality": {name: asdict(quality) for name, quality in made.qualities.items()},
    }
