"""The whole way from a checkpoint to a model directory."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import tyro

from export.autotune.search import Trial, tune
from export.autotune.workload import Workload
from export.calibrate import calibrate
from export.choice import Choice, default_choice
from export.data import Data
from export.evaluation_set import Evidence
from export.graph import build_graph
from export.network import Network, Weights
from export.package import Made, check_destination, check_record, write_package
from export.parity import check_parity, of_numbers, shapes
from export.quality_gate import Gate, Limits
from export.reporter import SILENT, Stages
from export.session import check_provider, on_all_cores, ort_run
from export.smoothquant import balanced
from export.source import SettingsChanges, Source, read_source
from export.storage import save_graph
from export.targets import TARGETS, TargetName, target_named
from export.variant import Numbers
from tasks import AnyTask
from tasks.batching import RunModel
from tasks.features import Features
from tasks.files import atomic_directory
from tasks.machine import available_cpus
from tasks.manifest import Precision, check_precision
from tasks.model_directory import MODEL_FILE, ModelDirectory, parse_model_path, read_model_directory
from training.bounds import check_numbers
from training.data.input_warnings import limit_of
from training.evaluate import torch_run
from training.model.heads import BertModel
from training.reports.model_card import read_notes


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What an export is to give."""

    precision: Precision = "fp32"
    """fp16 (for `--target cuda`) and int8 (for CPUs) are smaller and faster, int8 some 2.5 times as fast as fp32 and a
    quarter of its size (6 layers, 2 cores, VNNI), at a loss that is measured and limited."""
    target: TargetName = "cpu"
    """What it is to run on, when served and here: `cuda` needs onnxruntime-gpu, `openvino` onnxruntime-openvino."""
    limits: Annotated[Limits, tyro.conf.arg(name="quality")] = field(default_factory=Limits)
    mixed: bool = False
    """int8: leave the parts that lose most in floats, as many as the limits ask for."""
    truncate: Literal["auto", "yes", "no"] = "auto"
    """Whether the server cuts texts that are too long where a call does not say. `auto`: if the data that the model is
    judged on, or was evaluated on, have such texts, be it one, as its scores are of texts that were cut."""
    tune: bool = True
    """Try which form of the graph is the fastest on this machine; otherwise one that is often fast."""

    def check(self) -> None:
        """Look for what contradicts itself.

        Raises:
            ValueError: naming the flags.
        """
        check_precision(self.precision)
        target_named(self.target).check(self.precision)
        check_numbers(self.limits)
        if self.mixed and self.precision != "int8":
            raise ValueError("--mixed leaves parts of int8 in floats: give --precision int8, too")


def export_checkpoint(
    checkpoint: str | Path,
    model_dir: str | Path,
    wishes: Wishes | None = None,
    *,
    task: str | None = None,
    settings: SettingsChanges | None = None,
    data: Data | None = None,
    replace: bool = False,
    stages: Stages = SILENT,
) -> ModelDirectory:
    """Export a checkpoint into a model directory, which is whole or absent.

    Args:
        checkpoint: a BERT directory in Hugging Face's layout, ours or foreign.
        model_dir: `models/<name>/<version>`.
        task: None for the task that the checkpoint was trained for.
        settings: settings to use instead of what the checkpoint says.
        data: what the graph is judged and timed on.
        replace: overwrite an existing model directory, but for the notes in its card.
        stages: is told what is done.

    Raises:
        ParityError: when the fp32 graph does not compute what PyTorch does.
        QualityError: when integers cost too much.
        ValueError: naming the file, setting or flag that is wrong.
    """
    wishes = wishes or Wishes()
    model_dir, data = Path(model_dir), data or Data()
    name, version = parse_model_path(model_dir)
    check_destination(model_dir, Path(checkpoint), data.files, replace=replace)
    wishes.check()
    check_provider(TARGETS[wishes.target].execution)
    data.check()
    source = read_source(checkpoint, task=task, settings=settings)
    model = source.load_model()
    check_record(source, model.config, data.files)
    if notes := read_notes(model_dir):
        stages.say(f"the notes in the model card of `{model_dir}` are kept; see that they are true of the new graph")
    stages.say(_describe(source, model))
    there = model_dir.absolute()  # when the current directory is replaced, what is relative to it is gone
    with atomic_directory(model_dir, replace=replace) as directory:
        made = _make_graph(source, model, directory, wishes, data, stages)
        write_package(
            directory,
            source,
            model.config,
            made,
            name=name,
            version=version,
            precision=wishes.precision,
            notes=notes,
        )
    return read_model_directory(there)


def _make_graph(source: Source, model: BertModel, directory: Path, wishes: Wishes, data: Data, stages: Stages) -> Made:
    """Choose a graph, and write it."""
    task = source.task
    reference = of_numbers(torch_run(model, task), task.output_names)
    if lost := data.not_there(source.card, task):
        stages.say(f"data of the training that are not found from here: {', '.join(lost)}; --dev and --train say where")
    data = data.or_those_of(source.card, task)
    if wishes.precision == "int8":
        evidence, sequences, remark = data.with_ranges(task)
        if remark:
            stages.say(remark)
    else:
        evidence, sequences = data.evidence(task), []
    stages.say(f"judged on {evidence.name}")
    truncate = _truncates(source, evidence, wishes, stages)
    network = Network(model.config, Weights.of(model), task)
    gate = Gate(network, evidence, reference, wishes.limits, stages, TARGETS[wishes.target])
    numbers = Numbers()
    if wishes.precision == "int8":
        _measure(gate, model, sequences, stages)
    if wishes.precision != "fp32":
        numbers = gate.choose(wishes.precision, mixed=wishes.mixed)
        stages.say(f"taken: {numbers.name}")
    choice, trials = _tuned(gate.network, numbers, data.workload(task, evidence), wishes, stages)
    graph = directory / MODEL_FILE
    save_graph(build_graph(gate.network, numbers, choice.form), graph)
    in_fp32 = graph if wishes.precision == "fp32" else build_graph(network, Numbers(), choice.form)
    run = ort_run(in_fp32, execution=on_all_cores(choice.execution))
    differences = _check_fp32(task, reference, run, wishes.limits, stages)
    gate.check(numbers, choice, ort_run(graph, execution=choice.execution))
    record = data.record(evidence, sequences)
    return Made(numbers, choice, trials, evidence.name, record, gate.qualities, differences, truncate)


def _truncates(source: Source, evidence: Evidence, wishes: Wishes, stages: Stages) -> bool:
    """Whether the server cuts texts that are too long where a call does not say."""
    cuts = []
    if evidence.num_cut:
        cuts.append(f"{evidence.num_cut:,} of {evidence.name}")
    card = source.card
    if card and card.task == source.task.name and card.settings == source.task.settings:
        for what, cut in card.provenance.get("cuts", {}).items():
            if what.startswith("dev") and cut["num_cut"]:
                cuts.append(f"{cut['num_cut']:,} of {cut['num_examples']:,} {what} of the training")
    truncate = bool(cuts) if wishes.truncate == "auto" else wishes.truncate == "yes"
    if cuts:
        verb = "cuts" if truncate else "refuses"
        stages.say(f"cut to fit {limit_of(source.task)}: {', '.join(cuts)}; the server {verb} such texts (--truncate)")
    return truncate


def _measure(gate: Gate, model: BertModel, sequences: list[Features], stages: Stages) -> None:
    """Let a gate know the ranges of activations, and how to balance them."""
    network = gate.network
    with stages.bar("ranges", unit="sequence", total=len(sequences)) as bar:
        ranges = calibrate(model, network.task, sequences, network.layers, progress=bar.update)
    gate.network = replace(network, ranges=ranges)
    if sequences:
        gate.balance = partial(balanced, gate.network, model, sequences)


def _tuned(
    network: Network, numbers: Numbers, workload: Workload, wishes: Wishes, stages: Stages
) -> tuple[Choice, list[Trial]]:
    target = TARGETS[wishes.target]
    if not wishes.tune:
        return default_choice(target), []
    beside = [] if wishes.precision == "fp32" else [Numbers()]
    return tune(network, numbers, workload, target=target, num_cores=available_cpus(), beside=beside, stages=stages)


def _check_fp32(task: AnyTask, reference: RunModel, run: RunModel, limits: Limits, stages: Stages) -> dict[str, float]:
    """The difference of each output of an fp32 graph."""
    with stages.bar("parity", unit="batch", total=len(shapes(task))) as bar:
        differences = check_parity(task, reference, run, atol=limits.atol, progress=bar.update)
    stages.say(f"fp32 graph: largest difference from PyTorch {max(differences.values()):.1e} (atol {limits.atol:.0e})")
    return differences


def _describe(source: Source, model: BertModel) -> str:
    config, size = model.config, sum(parameter.numel() for parameter in model.parameters())
    return (
        f"checkpoint: {source.task.name}, L{config.num_hidden_layers} H{config.hidden_size}, "
        f"{size / 1e6:.1f}M parameters, max_seq_length {source.task.settings.max_seq_length}"
    )
