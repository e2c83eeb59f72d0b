"""Autotune a model directory on the machine that serves it. Its precision and weights stay the same."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from export.autotune.search import Trial, able_targets, autotune
from export.autotune.workload import Workload
from export.graph import AnyNetwork, build_graph
from export.network import Network, Range, Weights
from export.optimum_export.exporter import ExportedConfig, ExportedNetwork
from export.optimum_export.exporter import read_graph as read_exported_graph
from export.package import digests, pages, runtime_version, write_manifest
from export.parity import random_batches
from export.records import (
    configuration_of,
    graph_record,
    is_exported,
    precision_of,
    with_tuples,
)
from export.reporter import SILENT, Reporter
from export.session import check_provider, graph_run, on_all_cores
from export.storage import save_graph
from export.targets import target_of, targets_for
from export.variant import PROVIDER_OPTIONS, Configuration, GraphPrecision, Target
from tasks import AnyTask
from tasks.base import first_line
from tasks.batching import RunModel
from tasks.bundle.files import atomic_directory
from tasks.bundle.machine import available_cpus, describe_machine
from tasks.bundle.manifest import Manifest, Precision
from tasks.bundle.model_directory import (
    GRAPH_FILES,
    ModelDirectory,
    file_for,
    read_model_directory,
)
from training.model.architectures import create_config
from training.reports.model_card import read_notes

MAX_CHANGE: Mapping[Precision, float] = {"fp32": 1e-8, "fp16": 1e-4, "int8": 2e-2}
"""Maximum change of an output: its mean squared difference in any batch, relative to its mean square in all batches.

Another order of sums can round to another integer; a released model of 6 layers changed by 7e-3. For unit vectors,
2e-2 is a cosine of 0.99."""
_MAX_COMPARED_TOKENS = 1024
"""Largest batch to compare, in tokens."""


def tune_model_directory(
    model_dir: str | Path, workload: Workload, *, engine: str = "auto", reporter: Reporter = SILENT
) -> list[Trial]:
    """Choose the configuration of a model directory again, and replace the directory atomically.

    The notes of its model card are preserved.

    Args:
        engine: engine to serve with on CPUs, an `EngineName`.

    Returns:
        All trials in order.

    Raises:
        ValueError: if it is not a model directory, its graph was not written by the export, its engine or execution
            provider is missing, or its provider options were edited.
    """
    directory = read_model_directory(model_dir)
    notes = read_notes(directory.path)
    targets = check_tunable(directory.manifest, engine)
    with atomic_directory(directory.path, replace=True) as new:
        _copy_other_files(directory.path, new)
        network, precision = _read_and_verify(directory)
        able = able_targets(targets, network, precision, reporter)
        has_bf16 = directory.manifest.execution.floats == "bf16"  # only an export judges its quality
        target, *rivals = (item.with_bf16() if has_bf16 else item for item in able)
        configuration, trials = autotune(
            network,
            precision,
            workload,
            target=target,
            rivals=rivals,
            num_cores=available_cpus(),
            reporter=reporter,
        )

        def write(chosen: Configuration) -> None:
            """Write a graph, and raise ValueError if its outputs differ from those of the old one."""
            path = new / file_for(chosen.execution)
            save_graph(build_graph(network, precision, chosen.variant), path)
            old = directory.model_path, directory.manifest.execution
            before, after = (
                graph_run(graph, execution=on_all_cores(execution))
                for graph, execution in (old, (path, chosen.execution))
            )
            check_same(network.task, before, after, MAX_CHANGE[directory.manifest.precision])

        if configuration.fallback:
            write(configuration.fallback)
        try:
            write(configuration)
        except (ValueError, RuntimeError) as error:
            if not configuration.fallback or target.engine != "onnxruntime":
                raise
            reporter.say(f"{configuration.execution.provider} is left out: {first_line(error)}")
            name = file_for(configuration.execution)
            for path in (new / name, new / f"{name}.data"):
                path.unlink(missing_ok=True)
            configuration = configuration.fallback
        graph = graph_record(network, precision, configuration, trials)
        write_manifest(new, _updated(directory.manifest, digests(new), graph, configuration), notes)
    return trials


def check_tunable(manifest: Manifest, engine: str = "auto") -> tuple[Target, ...]:
    """Return the targets to tune for, or raise if the model cannot run here, or would lose its provider options.

    Raises:
        ValueError: with a remedy.
    """
    execution = manifest.execution
    targets = targets_for(target_of(execution).name, engine)
    check_provider(execution)
    check_provider(targets[0].execution)
    expected = dict(PROVIDER_OPTIONS.get(execution.provider, {}))
    if dict(execution.provider_options) != expected:
        raise ValueError(
            "`execution.provider_options` in manifest.json were edited, and tuning would reset them; set them to "
            f"{json.dumps(expected)}, tune, and edit them again"
        )
    return targets


def _copy_other_files(old: Path, new: Path) -> None:
    """Copy everything except the graph; links stay links."""

    def ignore_graph(folder: str, names: list[str]) -> Sequence[str]:
        return GRAPH_FILES if Path(folder) == old else ()

    try:
        shutil.copytree(old, new, symlinks=True, dirs_exist_ok=True, ignore=ignore_graph)
    except shutil.Error as error:
        name, _, reason = error.args[0][0]
        raise ValueError(f"cannot copy `{name}`: {reason}") from error


def _read_and_verify(directory: ModelDirectory) -> tuple[AnyNetwork, GraphPrecision]:
    """Read the network from a graph and check that its graph and pages can be written again, before timing anything.

    Returns:
        The network and its precision.

    Raises:
        ValueError: if graph and manifest contradict each other, or another version wrote them.
    """
    try:
        manifest = directory.manifest
        network, precision = read_graph(directory)
        configuration = configuration_of(manifest)
        graphs = directory.model_path, build_graph(network, precision, configuration.variant)
        old, rebuilt = (graph_run(graph, execution=on_all_cores(configuration.execution)) for graph in graphs)
        check_same(network.task, old, rebuilt, MAX_CHANGE["fp32"])
        graph = graph_record(network, precision, configuration, [])
        pages(_updated(manifest, manifest.files, graph, configuration), num_bytes=0)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # edited values raise anything; ONNX Runtime's exceptions have no common base class
        raise ValueError(
            f"`{directory.model_path}` does not match its manifest: one of them was edited, or another version wrote "
            "them; export the model again"
        ) from error
    return network, precision


def read_graph(directory: ModelDirectory) -> tuple[AnyNetwork, GraphPrecision]:
    """Return the network and precision that a graph was written from.

    Raises:
        ValueError: if the manifest states another precision or length.
        Exception: of any class, if this version of `export.graph` did not write the graph.
    """
    manifest, task = directory.manifest, directory.load_task()
    precision, values = precision_of(manifest), manifest.provenance["checkpoint"]["config"]
    if not precision.matmul.endswith(manifest.precision):
        raise ValueError(f"precision {manifest.precision} with {precision.matmul}")
    if is_exported(manifest):
        graphs = {precision.matmul: read_exported_graph(directory.model_path)}
        pads = manifest.provenance["graph"]["pads"]
        return ExportedNetwork(ExportedConfig(**values), task, graphs, pads), precision
    weights = Weights.from_graph(directory.model_path)
    network = Network(create_config(with_tuples(values)), weights, task)
    if task.settings.max_seq_length > (positions := weights.num_positions):
        raise ValueError(f"max_seq_length {task.settings.max_seq_length} with {positions} positions")
    floats = weights.floats
    ranges = {
        name: Range(float(floats[f"{name}.input.scale"]), int(floats[f"{name}.input.zero_point"]))
        for name in network.layers
        if f"{name}.input.scale" in floats
    }
    factors = {name: floats[key] for name in network.layers if (key := f"{name}.input.factors") in floats}
    return replace(network, ranges=ranges, smoothing_factors=factors), precision


def check_same(task: AnyTask, before: RunModel, after: RunModel, max_change: float) -> None:
    """Compare the outputs of two graphs on batches of many sizes, down to one sequence.

    Raises:
        ValueError: naming the output that changes by more than `max_change`.
    """
    squares: dict[str, list[float]] = {name: [] for name in task.output_names}
    changes: dict[str, list[float]] = {name: [] for name in task.output_names}
    for arrays in random_batches(task, max_batch_tokens=_MAX_COMPARED_TOKENS):
        mask = arrays["attention_mask"].astype(bool) if task.token_outputs else ...
        old, new = before(arrays), after(arrays)
        for name in task.output_names:
            squares[name].append(float(np.square(old[name][mask]).mean()))
            changes[name].append(float(np.square(new[name][mask] - old[name][mask]).mean()))
    for name in task.output_names:
        change = float(np.max(changes[name])) / max(float(np.mean(squares[name])), 1e-24)
        if not change <= max_change:
            raise ValueError(f"tuning changed the output `{name}` by {change:.1e}")


def _updated(
    manifest: Manifest, files: Mapping[str, str], graph: dict[str, Any], configuration: Configuration
) -> Manifest:
    versions = manifest.provenance.get("versions", {}) | runtime_version(configuration)
    return replace(
        manifest,
        files=files,
        execution=configuration.execution,
        fallback=configuration.fallback.execution if configuration.fallback else None,
        provenance=dict(manifest.provenance) | {"graph": graph, "machine": describe_machine(), "versions": versions},
    )
