"""The whole way from a checkpoint to a model directory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx

from export.calibrate import calibrate
from export.data import Data
from export.gate import Gate, Limits
from export.graph import build_graph
from export.made import Made
from export.network import Network, Weights
from export.package import write_package
from export.parity import check_parity
from export.session import check_provider, ort_run
from export.source import SettingsChanges, Source, read_source
from export.targets import TARGETS, TargetName, target_named
from export.tune import Choice, Trial, default_choice, tune
from export.variant import Numbers
from export.workload import Workload
from tasks.batching import Run
from tasks.cpus import available_cpus
from tasks.files import atomic_directory
from tasks.manifest import (
    MODEL_FILE,
    ModelDirectory,
    Precision,
    check_precision,
    parse_model_path,
    read_model_directory,
)
from training.evaluate import torch_run
from training.model.bert import BertModel

Progress = Callable[[str], object]


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What an export is to give."""

    precision: Precision = "fp32"
    """fp16 (for `--target cuda`) and int8 (for CPUs) are smaller and faster, int8 some 2.5 times (6 layers, 2 cores,
    VNNI), at a loss that is measured and limited."""
    target: TargetName = "cpu"
    """What it is to run on, when served and here: `cuda` needs onnxruntime-gpu, `openvino` onnxruntime-openvino."""
    limits: Limits = field(default_factory=Limits)
    mixed: bool = False
    """int8: leave the layers that lose most in floats, as many as the limits ask for."""
    tune: bool = True
    """Try which form of the graph is the fastest on this machine; otherwise one that is often fast."""


def export_checkpoint(
    checkpoint: str | Path,
    model_dir: str | Path,
    wishes: Wishes | None = None,
    *,
    task: str | None = None,
    settings: SettingsChanges | None = None,
    data: Data | None = None,
    replace: bool = False,
    progress: Progress = lambda line: None,
) -> ModelDirectory:
    """Export a checkpoint into a model directory, which is whole or absent.

    Args:
        checkpoint: a BERT directory in Hugging Face's layout, ours or foreign.
        model_dir: `models/<name>/<version>`.
        task: None for the task that the checkpoint was trained for.
        settings: settings to use instead of what the checkpoint says.
        data: what the graph is judged and timed on.
        replace: overwrite an existing model directory.
        progress: called with a line about each finished stage.

    Raises:
        ParityError: when the fp32 graph does not compute what PyTorch does.
        QualityError: when integers cost too much.
        ValueError: naming the file, setting or flag that is wrong.
    """
    wishes = wishes or Wishes()
    check_precision(wishes.precision)
    target = target_named(wishes.target)
    target.check(wishes.precision)
    check_provider(target.execution)
    name, version = parse_model_path(model_dir)
    if Path(model_dir).exists() and not replace:
        raise ValueError(f"already exists: `{model_dir}`; give --replace to overwrite it, or take another version")
    source = read_source(checkpoint, task=task, settings=settings)
    model = source.load_model()
    progress(_describe(source, model))
    with atomic_directory(model_dir, replace=replace) as directory:
        made = _make_graph(source, model, directory, wishes, data or Data(), progress)
        write_package(directory, source, model.config, made, name=name, version=version, precision=wishes.precision)
    return read_model_directory(model_dir)


def _make_graph(
    source: Source, model: BertModel, directory: Path, wishes: Wishes, data: Data, progress: Progress
) -> Made:
    """Choose a graph, and write it."""
    task, reference, target = source.task, torch_run(model, source.task), TARGETS[wishes.target]
    data = data.or_those_of(source.card, task)
    evidence = data.evidence(task)
    progress(f"judged on {evidence.name}")
    network = Network(model.config, Weights.of(model), task)
    differences = _check_fp32(network, default_choice(target), reference, wishes.limits, progress)
    if wishes.precision == "int8":
        network = replace(network, ranges=calibrate(model, task, data.calibration(task, evidence), network.layers))
    gate = Gate(network, evidence, reference, wishes.limits, progress, target)
    numbers = Numbers() if wishes.precision == "fp32" else gate.choose(wishes.precision, mixed=wishes.mixed)
    choice, trials = _tuned(network, numbers, data.workload(task, evidence), wishes, progress)
    graph = directory / MODEL_FILE
    onnx.save(build_graph(network, numbers, choice.form), graph)
    exported = ort_run(graph, execution=choice.execution)
    if wishes.precision == "fp32":
        differences = check_parity(task, reference, exported, atol=wishes.limits.atol)
    gate.check(numbers, exported)
    return Made(numbers, choice, trials, evidence.name, gate.qualities, differences)


def _tuned(
    network: Network, numbers: Numbers, workload: Workload, wishes: Wishes, progress: Progress
) -> tuple[Choice, list[Trial]]:
    target = TARGETS[wishes.target]
    if not wishes.tune:
        return default_choice(target), []
    return tune(network, numbers, workload, target=target, num_cores=available_cpus(), progress=progress)


def _check_fp32(
    network: Network, choice: Choice, reference: Run, limits: Limits, progress: Progress
) -> dict[str, float]:
    """The difference of each output of the fp32 graph."""
    graph = build_graph(network, Numbers(), choice.form).SerializeToString()
    run = ort_run(graph, execution=choice.execution)
    differences = check_parity(network.task, reference, run, atol=limits.atol)
    progress(f"fp32 graph: largest difference from PyTorch {max(differences.values()):.1e} (atol {limits.atol:.0e})")
    return differences


def _describe(source: Source, model: BertModel) -> str:
    config, size = model.config, sum(parameter.numel() for parameter in model.parameters())
    return (
        f"checkpoint: {source.task.name}, L{config.num_hidden_layers} H{config.hidden_size}, "
        f"{size / 1e6:.1f}M parameters, max_seq_length {source.task.settings.max_seq_length}"
    )
