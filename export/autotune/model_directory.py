"""Choose anew, on the machine that will serve, the form of a graph and how it is run; its numbers stay."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from export.autotune.search import Trial, tune
from export.autotune.workload import Workload
from export.choice import Choice, choice_of
from export.graph import build_graph
from export.network import Network, Range, Weights
from export.package import digests, graph_record, pages, runtime_version, write_manifest
from export.parity import random_batches
from export.reporter import SILENT, Stages
from export.session import check_provider, on_all_cores, ort_run
from export.storage import save_graph
from export.targets import PROVIDER_OPTIONS, target_of
from export.variant import Numbers
from tasks import AnyTask
from tasks.batching import RunModel
from tasks.files import atomic_directory
from tasks.machine import available_cpus, describe_machine
from tasks.manifest import Execution, Manifest, Precision
from tasks.model_directory import DATA_FILE, MODEL_FILE, ModelDirectory, read_model_directory
from training.ablations.model import make_config
from training.reports.model_card import read_notes

MAX_CHANGE: Mapping[Precision, float] = {"fp32": 1e-8, "fp16": 1e-4, "int8": 2e-2}
"""Mean squared difference of an output from the old graph's in a batch, to its mean square in all: sums in another
order may round to another integer, which of a released model of 6 layers made 7e-3; of unit vectors 2e-2 is a cosine
of 0.99."""
_MAX_COMPARED = 1024
"""Tokens of a batch that both graphs get."""


def retune(model_dir: str | Path, workload: Workload, *, stages: Stages = SILENT) -> list[Trial]:
    """Choose form and execution of a model directory, and write them into it, all at once. The notes of its card stay.

    Raises:
        ValueError: when it is no model directory, its graph is not one of `export.graph`, its execution provider is
            missing, or has options that a choice would not keep.
    """
    directory = read_model_directory(model_dir)
    notes = read_notes(directory.path)
    target = target_of(directory.manifest.execution)
    check_tunable(directory.manifest.execution)
    with atomic_directory(directory.path, replace=True) as new:
        _copy_the_rest(directory.path, new)
        network, numbers = _rehearsed(directory)
        choice, trials = tune(network, numbers, workload, target=target, num_cores=available_cpus(), stages=stages)
        save_graph(build_graph(network, numbers, choice.form), new / MODEL_FILE)
        before = ort_run(directory.model_path, execution=on_all_cores(directory.manifest.execution))
        after = ort_run(new / MODEL_FILE, execution=on_all_cores(choice.execution))
        check_same(network.task, before, after, MAX_CHANGE[directory.manifest.precision])
        manifest = _manifest(directory, digests(new), graph_record(numbers, choice, trials), choice)
        write_manifest(new, manifest, notes)
    return trials


def check_tunable(execution: Execution) -> None:
    """Look for what keeps a model from being run, or run as it was, before anything is read.

    Raises:
        ValueError: saying what to do.
    """
    check_provider(execution)
    if dict(execution.provider_options) != dict(PROVIDER_OPTIONS[execution.provider]):
        raise ValueError(
            "`execution.provider_options` of manifest.json were edited, and would be lost: "
            f"put back {json.dumps(PROVIDER_OPTIONS[execution.provider])}, tune, and edit them again"
        )


def _copy_the_rest(old: Path, new: Path) -> None:
    """Whatever lies there but the graph, links as they are."""

    def graph(folder: str, names: list[str]) -> Sequence[str]:
        return (MODEL_FILE, DATA_FILE) if Path(folder) == old else ()

    try:
        shutil.copytree(old, new, symlinks=True, dirs_exist_ok=True, ignore=graph)
    except shutil.Error as error:
        name, _, reason = error.args[0][0]
        raise ValueError(f"cannot copy `{name}`: {reason}") from error


def _rehearsed(directory: ModelDirectory) -> tuple[Network, Numbers]:
    """What a graph was made of, after the graph was made of it once more, and the pages: nothing is to fail when all
    was timed.

    Raises:
        ValueError: when graph and manifest say different things, or not what this version does.
    """
    manifest = directory.manifest
    try:
        network, numbers = read_graph(directory)
        choice = choice_of(manifest)
        graphs = directory.model_path, build_graph(network, numbers, choice.form)
        old, rebuilt = (ort_run(graph, execution=on_all_cores(choice.execution)) for graph in graphs)
        check_same(network.task, old, rebuilt, MAX_CHANGE["fp32"])
        pages(_manifest(directory, manifest.files, graph_record(numbers, choice, []), choice), num_bytes=0)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # whatever edited values lead to; ONNX Runtime's exceptions have no common base
        raise ValueError(
            f"`{directory.model_path}` does not match its manifest: one of them was edited, or was exported by "
            "another version; export the model again"
        ) from error
    return network, numbers


def read_graph(directory: ModelDirectory) -> tuple[Network, Numbers]:
    """What a graph was made of.

    Raises:
        ValueError: when its manifest says another precision or length.
        Exception: of whatever class, when it was not made by this version of `export.graph`.
    """
    provenance, task = directory.manifest.provenance, directory.load_task()
    weights, numbers = Weights.of_graph(directory.model_path), Numbers(**_fields(provenance["graph"]["numbers"]))
    network = Network(make_config(**_fields(provenance["checkpoint"]["config"])), weights, task)
    if not numbers.products.endswith(directory.manifest.precision):
        raise ValueError(f"precision {directory.manifest.precision} with {numbers.products}")
    if task.settings.max_seq_length > (positions := len(weights["bert.embeddings.position.weight"])):
        raise ValueError(f"max_seq_length {task.settings.max_seq_length} with {positions} positions")
    return replace(network, ranges=_ranges(network), factors=_factors(network)), numbers


def _fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Of a dataclass, as JSON has them."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}


def _ranges(network: Network) -> dict[str, Range]:
    floats = network.weights.floats
    return {
        name: Range(float(floats[f"{name}.input.scale"]), int(floats[f"{name}.input.zero_point"]))
        for name in network.layers
        if f"{name}.input.scale" in floats
    }


def _factors(network: Network) -> dict[str, np.ndarray]:
    floats = network.weights.floats
    found = {name: floats.get(f"{name}.input.factors") for name in network.layers}
    return {name: values for name, values in found.items() if values is not None}


def check_same(task: AnyTask, before: RunModel, after: RunModel, max_change: float) -> None:
    """Compare the outputs of two graphs in each batch, a single number of one text, too.

    Raises:
        ValueError: naming the output that changes by more.
    """
    squares: dict[str, list[float]] = {name: [] for name in task.output_names}
    changes: dict[str, list[float]] = {name: [] for name in task.output_names}
    for arrays in random_batches(task, max_batch_tokens=_MAX_COMPARED):
        mask = arrays["attention_mask"].astype(bool) if task.token_outputs else ...
        old, new = before(arrays), after(arrays)
        for name in task.output_names:
            squares[name].append(float(np.square(old[name][mask]).mean()))
            changes[name].append(float(np.square(new[name][mask] - old[name][mask]).mean()))
    for name in task.output_names:
        change = float(np.max(changes[name])) / max(float(np.mean(squares[name])), 1e-24)
        if not change <= max_change:
            raise ValueError(f"the new graph is not the old one: `{name}` changes by {change:.1e}; nothing was written")


def _manifest(directory: ModelDirectory, files: Mapping[str, str], graph: dict[str, Any], choice: Choice) -> Manifest:
    before = directory.manifest
    versions = before.provenance.get("versions", {}) | runtime_version(choice)
    return replace(
        before,
        files=files,
        execution=choice.execution,
        provenance=dict(before.provenance) | {"graph": graph, "machine": describe_machine(), "versions": versions},
    )
