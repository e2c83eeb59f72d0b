"""The whole way from a checkpoint to a model directory."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from export.graph import export_graph
from export.optimise import EXECUTION, fuse
from export.package import write_package
from export.parity import Limits, check_cosine, check_parity
from export.quantise import quantise
from export.session import ort_run
from export.source import SettingsChanges, Source, read_source
from tasks.batching import Run
from tasks.files import atomic_directory
from tasks.manifest import ModelDirectory, Precision, check_precision, parse_model_path, read_model_directory
from training.evaluate import torch_run
from training.model.bert import BertModel

Progress = Callable[[str], object]


def export_checkpoint(
    checkpoint: str | Path,
    model_dir: str | Path,
    *,
    precision: Precision = "fp32",
    task: str | None = None,
    settings: SettingsChanges | None = None,
    texts: Sequence[str] = (),
    limits: Limits | None = None,
    replace: bool = False,
    progress: Progress = lambda line: None,
) -> ModelDirectory:
    """Export a checkpoint into a model directory, which is whole or absent.

    Args:
        checkpoint: a BERT directory in Hugging Face's layout, ours or foreign.
        model_dir: `models/<name>/<version>`.
        task: None for the task that the checkpoint was trained for.
        settings: settings to use instead of what the checkpoint says.
        texts: texts on which graph and PyTorch are compared sequence by sequence; none for random ids.
        limits: how far the graph may be from PyTorch.
        replace: overwrite an existing model directory.
        progress: called with a line about each finished stage.

    Raises:
        ParityError: when the graph is not faithful.
        ValueError: naming the file, setting or flag that is wrong.
    """
    check_precision(precision)
    name, version = parse_model_path(model_dir)
    if Path(model_dir).exists() and not replace:
        raise ValueError(f"already exists: `{model_dir}`; give --replace to overwrite it, or take another version")
    source = read_source(checkpoint, task=task, settings=settings)
    model = source.load_model()
    progress(_describe(source, model))
    with (
        atomic_directory(model_dir, replace=replace) as directory,
        tempfile.TemporaryDirectory(dir=directory) as stages,
    ):
        graph, scores = _make_graph(source, model, Path(stages), precision, texts, limits or Limits(), progress)
        write_package(
            directory, graph, source, model.config, name=name, version=version, precision=precision, scores=scores
        )
    return read_model_directory(model_dir)


def _make_graph(
    source: Source,
    model: BertModel,
    stages: Path,
    precision: Precision,
    texts: Sequence[str],
    limits: Limits,
    progress: Progress,
) -> tuple[Path, dict[str, Any]]:
    """The checked graph, and its scores."""
    task, reference = source.task, torch_run(model)
    exported, fused, quantised = (stages / f"{stage}.onnx" for stage in ("exported", "fused", "quantised"))
    export_graph(model, task.name, exported)
    fuse(exported, fused)
    differences = check_parity(task, reference, _run(fused), atol=limits.atol)
    progress(f"fp32 graph: largest difference from PyTorch {max(differences.values()):.1e} (atol {limits.atol:.0e})")
    if precision == "int8":
        quantise(fused, quantised)
    graph = quantised if precision == "int8" else fused
    cosines = check_cosine(task, reference, _run(graph), min_cosine=limits.min_cosine, texts=texts)
    progress(
        f"{precision} graph: mean cosine to PyTorch {cosines['mean_cosine']:.4f}, lowest {cosines['min_cosine']:.4f}, "
        f"over {cosines['num_sequences']} sequences of {cosines['compared_on']}"
    )
    return graph, {"fp32_difference": differences, **cosines}


def _run(graph: Path) -> Run:
    return ort_run(graph, disabled_optimizers=EXECUTION.disabled_optimizers, num_threads=torch.get_num_threads())


def _describe(source: Source, model: BertModel) -> str:
    config, size = model.config, sum(parameter.numel() for parameter in model.parameters())
    return (
        f"checkpoint: {source.task.name}, L{config.num_hidden_layers} H{config.hidden_size}, "
        f"{size / 1e6:.1f}M parameters, max_seq_length {source.task.settings.max_seq_length}"
    )
