"""Assemble a model directory: graph, tokenizer, and the manifest with where they came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version as library_version
from pathlib import Path
from typing import Any

import onnx
import onnxruntime

from export.for_others import write_for_others
from export.machine import machine
from export.made import Made
from export.report import write_report
from export.source import Source
from export.tune import Choice, Trial
from export.variant import Numbers
from tasks.files import sha256
from tasks.manifest import MANIFEST_FILE, MODEL_FILE, Manifest, Precision
from tasks.providers import PACKAGES
from tasks.tokenizer import TOKENIZER_FILE
from training.checkpoint import checkpoint_digest
from training.model.bert import BertConfig

_LIBRARIES = ("torch", "onnx", "tokenizers")


def write_package(
    directory: Path,
    source: Source,
    config: BertConfig,
    made: Made,
    *,
    name: str,
    version: str,
    precision: Precision,
) -> None:
    """Write tokenizer and manifest beside the graph in a directory.

    Args:
        config: shape of the network.
    """
    source.task.tokenizer.backend.save(str(directory / TOKENIZER_FILE))
    write_for_others(directory, source, config.hidden_size)
    proto = onnx.load(directory / MODEL_FILE)
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
        files={file: sha256(directory / file) for file in (MODEL_FILE, TOKENIZER_FILE)},
        execution=made.choice.execution,
        provenance=_provenance(source, config, made),
        scores=_checkpoint_scores(source) | _scores(made),
    )
    (directory / MANIFEST_FILE).write_text(manifest.to_json(), encoding="utf-8")
    write_report(directory, manifest)


def graph_record(numbers: Numbers, choice: Choice, trials: Sequence[Trial]) -> dict[str, Any]:
    """What is written down of a graph."""
    return {
        "name": numbers.name,
        "numbers": asdict(numbers),
        "form": asdict(choice.form),
        "tried": [asdict(trial) for trial in trials],
    }


def _provenance(source: Source, config: BertConfig, made: Made) -> dict[str, Any]:
    return {
        "checkpoint": {"name": source.name, "sha256": checkpoint_digest(source.directory), "config": asdict(config)},
        "training": dict(source.card.provenance) if source.card else {},
        "graph": graph_record(made.numbers, made.choice, made.trials),
        "machine": machine(),
        "versions": {library: library_version(library) for library in _LIBRARIES}
        | {PACKAGES[made.choice.execution.provider]: onnxruntime.__version__},
    }


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
