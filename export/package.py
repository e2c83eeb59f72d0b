"""Assemble a model directory: graph, tokenizer, and the manifest with where they came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version as library_version
from pathlib import Path
from typing import Any

import onnx

from export import optimise, quantise
from export.source import Source
from tasks.files import sha256
from tasks.manifest import MANIFEST_FILE, MODEL_FILE, Manifest, Precision
from tasks.tokenizer import TOKENIZER_FILE
from training.checkpoint import checkpoint_digest
from training.model.bert import BertConfig

_LIBRARIES = ("torch", "transformers", "optimum", "optimum-onnx", "onnx", "onnxruntime", "tokenizers")


def write_package(
    directory: Path,
    graph: Path,
    source: Source,
    config: BertConfig,
    *,
    name: str,
    version: str,
    precision: Precision,
    scores: Mapping[str, Any],
) -> None:
    """Move the graph into a directory, and write tokenizer and manifest beside it.

    Args:
        config: shape of the network.
        scores: how far the graph is from PyTorch; those of the checkpoint are added.
    """
    graph.rename(directory / MODEL_FILE)
    source.task.tokenizer.backend.save(str(directory / TOKENIZER_FILE))
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
        execution=optimise.EXECUTION,
        provenance=_provenance(source, config, precision),
        scores=_checkpoint_scores(source) | dict(scores),
    )
    (directory / MANIFEST_FILE).write_text(manifest.to_json(), encoding="utf-8")


def _provenance(source: Source, config: BertConfig, precision: Precision) -> dict[str, Any]:
    recipe = {"fusion": optimise.RECIPE} | ({"quantisation": quantise.RECIPE} if precision == "int8" else {})
    return {
        "checkpoint": {"name": source.name, "sha256": checkpoint_digest(source.directory), "config": asdict(config)},
        "training": dict(source.card.provenance) if source.card else {},
        "recipe": recipe,
        "versions": {library: library_version(library) for library in _LIBRARIES},
    }


def _checkpoint_scores(source: Source) -> dict[str, Any]:
    """What the checkpoint scored, where it was trained for the very task that is exported."""
    if source.card and source.card.task == source.task.name and source.card.scores:
        return {"checkpoint": dict(source.card.scores)}
    return {}
