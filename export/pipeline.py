"""Export a checkpoint to a model directory, stage by stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from export.agreement import MIN_EXAMPLES, compares
from export.autotune.search import (
    PRECISION,
    Trial,
    able_targets,
    autotune,
    compare_precisions,
    left_out_if_it_fails,
)
from export.autotune.workload import Workload
from export.calibrate import calibrate
from export.engines import EngineName
from export.evaluation_set import EvaluationSet, ExportData
from export.graph import build_graph
from export.network import Network
from export.package import ExportResult, check_destination, write_package
from export.parity import ParityError, batch_shapes, check_parity, known_outputs, require_finite
from export.quality import Evaluator
from export.quality_gate import Decision, QualityError, QualityLimits, check_final_graph, choose, judged_floats
from export.reporter import SILENT, Reporter
from export.session import check_provider, graph_run, on_all_cores
from export.small_vectors import NEEDED, describe, has_texts, measure_small_vectors
from export.smoothquant import smooth
from export.source import ExportableModel, SettingsChanges, Source, create_network, read_source
from export.storage import Graph, save_graph
from export.targets import default_configuration, targets_for
from export.thresholds import choose_thresholds
from export.variant import Configuration, GraphPrecision, Target, TargetName
from tasks.base import first_line
from tasks.bundle.files import atomic_directory
from tasks.bundle.known_outputs import KnownOutputs
from tasks.bundle.machine import available_cpus
from tasks.bundle.manifest import Precision
from tasks.bundle.model_directory import GRAPH_FILES, ModelDirectory, file_for, parse_model_path, read_model_directory
from tasks.embedding import Embedding
from tasks.features import Features
from tasks.schema import check_bounds
from tasks.small_vectors import SmallVectors
from training.checkpoint.evaluation import torch_run
from training.checkpoint.hub import resolve_checkpoint
from training.command_line.bounds import check_numbers
from training.data.input_warnings import length_limit
from training.data.sources import is_hub
from training.model.heads import BertModel
from training.reports.model_card import read_notes

EARLY_TOKENS = 1024
"""Largest batch, in tokens, of the comparison before tuning; all batches follow after it."""
LONG_TEXTS = 2048
"""Tokens; longer texts are costly, as attention takes memory and time in proportion to their square."""


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """Precision, target and limits of an export."""

    precision: Precision = "fp32"
    """int8 (for CPUs) is about 2.5 times as fast as fp32 and a quarter of its size (6 layers, 2 cores, VNNI); fp16 is
    for `--target cuda`. Both lose some quality, which is measured and limited."""
    target: TargetName = "cpu"
    """Kind of machine to export for and serve on. `cuda` needs onnxruntime-gpu."""
    engine: EngineName = "auto"
    """Engine to serve with on CPUs. `auto` takes the fastest of those that are installed."""
    limits: Annotated[QualityLimits, tyro.conf.arg(name="limits")] = field(default_factory=QualityLimits)
    mixed: bool = False
    """int8: keep the most sensitive layers in fp32, as many as the limits require."""
    truncate: Literal["auto", "yes", "no"] = "auto"
    """Truncate long texts in the server if a request does not say. `auto`: yes if any text of the evaluation was
    truncated, so that the served model gives the evaluated scores."""
    space: str = ""
    """Space of the vectors, if it is another model's: 16 hexadecimal digits, or a model directory that has it. For
    students that give the vectors of their teacher, so that clients may compare both. Default: that of a teacher whose
    vectors `training.distill embedding` taught unchanged, else the model's own."""
    tune: bool = True
    """Measure which graph variant is fastest on this machine; --no-tune uses a default that is often fast."""

    @property
    def targets(self) -> tuple[Target, ...]:
        """Targets among which the fastest is chosen. Without tuning there is only one.

        Raises:
            ValueError: as `targets_for`.
        """
        return targets_for(self.target, self.engine)[: None if self.tune else 1]

    def check(self) -> None:
        """Raise if flags are invalid or contradict each other.

        Raises:
            ValueError: naming the flags.
        """
        check_bounds(self)
        check_numbers(self.limits)
        self.targets[0].check(self.precision)
        if self.mixed and self.precision != "int8":
            raise ValueError("--mixed needs --precision int8")
        if self.limits.quality == "high" and self.precision == "fp32":
            raise ValueError("--quality high needs --precision int8 or fp16; fp32 is within --atol of PyTorch")


def export_checkpoint(
    checkpoint: str | Path,
    model_dir: str | Path,
    config: ExportConfig | None = None,
    *,
    task: str | None = None,
    settings: SettingsChanges | None = None,
    data: ExportData | None = None,
    replace: bool = False,
    reporter: Reporter = SILENT,
) -> ModelDirectory:
    """Export a checkpoint to a model directory. The directory is complete or absent.

    Args:
        checkpoint: directory in Hugging Face's layout, or a repository of its hub: `org/name` or `org/name@revision`.
        model_dir: `models/<name>/<version>`.
        task: task to export for; None for the checkpoint's own task.
        settings: settings that override the checkpoint's.
        data: files to evaluate, calibrate and time the graph on.
        replace: overwrite an existing model directory, except the notes in its card.
        reporter: receives the progress.

    Returns:
        The model directory that was written.

    Raises:
        ParityError: if the outputs of the fp32 graph differ from PyTorch's.
        QualityError: if int8 or fp16 loses too much quality.
        ValueError: naming the file, setting or flag that is invalid.
    """
    config = config or ExportConfig()
    model_dir, data = Path(model_dir), data or ExportData()
    name, version = parse_model_path(model_dir)
    check_destination(model_dir, Path(checkpoint), data.files, replace=replace)
    config.check()
    check_provider(config.targets[0].execution)
    data.check()
    source = read_source(resolve_checkpoint(checkpoint), task=task, settings=settings)
    source.family.check(config.precision, config.targets[0].flag, mixed=config.mixed)
    space = source.space(config.space)
    model = source.load_model()
    if notes := read_notes(model_dir):
        reporter.say(f"keeping the notes in the model card of `{model_dir}`; check that they fit the new graph")
    reporter.say(_describe(source, model))
    for remark in filter(None, (source.family.remark, source.remark, _long_texts(source, model))):
        reporter.say(remark)
    source, data, evaluation_set, calibration = read_data(source, model, config, data, reporter)
    absolute = model_dir.absolute()  # if the current directory is replaced, relative paths into it break
    with atomic_directory(model_dir, replace=replace) as directory:
        export = _Export(source, model, config, evaluation_set, data.workload(source.task, evaluation_set), reporter)
        result = export.write(directory, calibration, data.record(evaluation_set, calibration))
        write_package(
            directory,
            source,
            model.config,
            result,
            name=name,
            version=version,
            precision=config.precision,
            space=space,
            notes=notes,
        )
    return read_model_directory(absolute)


def read_data(
    source: Source, model: ExportableModel, config: ExportConfig, data: ExportData, reporter: Reporter
) -> tuple[Source, ExportData, EvaluationSet, list[Features]]:
    """Return the source, with thresholds if it needs some, the data with defaults, and what they hold.

    The latter is the evaluation set, and the sequences to calibrate on.
    """
    if missing := data.missing_defaults(source.card, source.task):
        what = "on the hub" if all(map(is_hub, map(Path, missing))) else "not found"
        reporter.say(f"training data {what}: {', '.join(missing)}; give --dev and --train")
    data = data.with_defaults(source.card, source.task)
    calibration: list[Features] = []
    if config.precision == "int8" and source.family.calibrates:
        evaluation_set, calibration, remark = data.with_calibration(source.task)
        if remark:
            reporter.say(remark)
    else:
        evaluation_set = data.evaluation_set(source.task)
        if config.precision == "int8":
            reporter.say("dynamic int8 is not calibrated (--train is not read), and outputs depend on the batch")
    source, evaluation_set = choose_thresholds(source, model, data, evaluation_set, reporter)
    few = config.precision != "fp32" and len(evaluation_set.examples) < MIN_EXAMPLES
    remark = f"; too few to compare neighbours or predictions with PyTorch's, which takes {MIN_EXAMPLES}"
    is_compared = compares(evaluation_set.task, scored=evaluation_set.score is not None)
    reporter.say(f"evaluated on {evaluation_set.name}{remark * (few and is_compared)}")
    return source, data, evaluation_set, calibration


class _Export:
    """Chooses precision and configuration of a graph, writes it, and checks it."""

    def __init__(
        self,
        source: Source,
        model: ExportableModel,
        config: ExportConfig,
        evaluation_set: EvaluationSet,
        workload: Workload,
        reporter: Reporter,
    ) -> None:
        self.model, self.config, self.workload, self.reporter = model, config, workload, reporter
        self.task, self.limits = source.task, config.limits
        self.truncate = _truncates(source, evaluation_set, config, reporter)
        reference = require_finite(torch_run(model, self.task), self.task.output_names)
        self.network = create_network(model, self.task)
        self.targets = config.targets
        if not self.network.pads:
            self.targets = tuple(target.without_padding() for target in self.targets)
            reporter.say("padding changes the outputs, as in transformers: evaluated and served one text at a time")
        self.target = self.targets[0]
        self.evaluator = Evaluator(evaluation_set, reference, self.target, reporter)

    def write(self, directory: Path, calibration: Sequence[Features], record: Mapping[str, Any]) -> ExportResult:
        """Write the graph to a directory."""
        decision = Decision(self.network)
        if self.config.precision != "fp32":
            decision = self.choose_precision(calibration)
        configuration, trials = default_configuration(self.target), list[Trial]()
        if self.config.tune:
            self.check_before_tuning()
            configuration, trials = self.autotune(decision)
        attempts = [configuration, default_configuration(self.target)]
        if configuration.fallback and self.target.engine == "onnxruntime":
            attempts.insert(1, configuration.fallback)
        *others, last = dict.fromkeys(attempts)
        for configuration in others:
            try:
                decision, differences = self.write_and_check(directory, decision, configuration)
                break
            except (ValueError, RuntimeError) as error:
                what = "misses the limits" if isinstance(error, (ParityError, QualityError)) else "fails"
                self.reporter.say(f"the tuned variant {what}, so another one is written: {first_line(error)}")
                trials = [trial for trial in trials if trial.name != PRECISION]
        else:
            configuration = last
            decision, differences = self.write_and_check(directory, decision, configuration)
        small = self.small_vectors(directory, configuration) if isinstance(self.task, Embedding) else None
        name = self.evaluator.evaluation_set.name
        known = self.known_outputs(directory, configuration)
        return ExportResult(decision, configuration, trials, name, record, differences, self.truncate, small, known)

    def choose_precision(self, calibration: Sequence[Features]) -> Decision:
        """Choose the precision of the graph; SmoothQuant and static int8 need sequences to calibrate on."""
        network, smoothquant = self.network, None
        if calibration:
            assert isinstance(network, Network)
            assert isinstance(self.model, BertModel)
            with self.reporter.bar("calibrating", unit="sequence", total=len(calibration)) as bar:
                ranges = calibrate(self.model, self.task, calibration, network.layers, progress=bar.update)
            network = replace(network, ranges=ranges)
            smoothquant = partial(smooth, network, self.model, calibration)
        decision = choose(
            network,
            self.config.precision,
            evaluator=self.evaluator,
            limits=self.limits,
            smoothquant=smoothquant,
            mixed=self.config.mixed,
            timer=lambda decisions: compare_precisions(
                [(item.network, item.precision) for item in decisions],
                self.workload,
                target=self.target,
                num_cores=available_cpus(),
                reporter=self.reporter,
            ),
        )
        remarks = f"chosen precision: {decision.precision.name}", decision.closer_but_slower()
        self.reporter.say("; ".join(filter(None, remarks)))
        return decision

    def check_before_tuning(self) -> None:
        """Raise errors, such as an unknown --metric, before the minutes that tuning takes."""
        if self.config.precision == "fp32" and self.evaluator.evaluation_set.score:
            self.evaluator.measure_runs("evaluating PyTorch", {}, max_batch_tokens=EARLY_TOKENS)
        default = default_configuration(self.target)
        graph = build_graph(self.network, GraphPrecision(), default.variant)
        self.check_parity(graph, default, SILENT, max_batch_tokens=EARLY_TOKENS)

    def autotune(self, decision: Decision) -> tuple[Configuration, list[Trial]]:
        """Return the fastest configuration, and all trials."""
        judged = partial(judged_floats, decision, evaluator=self.evaluator, limits=self.limits)
        first, *others = able_targets(self.targets, decision.network, decision.precision, self.reporter)
        target, rivals = judged(first), list[Target]()
        for rival in others:
            with left_out_if_it_fails(rival, self.reporter):
                rivals.append(judged(rival))
        self.reporter.say(
            "speed of variants and settings on this machine (100%: the fastest of its line; --no-tune skips this)"
        )
        return autotune(
            decision.network,
            decision.precision,
            self.workload,
            target=target,
            rivals=rivals,
            num_cores=available_cpus(),
            compare_with=[] if self.config.precision == "fp32" else [GraphPrecision()],
            reporter=self.reporter,
        )

    def write_and_check(
        self, directory: Path, decision: Decision, configuration: Configuration
    ) -> tuple[Decision, dict[str, float]]:
        """Write the graph in a configuration and in its fallback, and check each, and the fp32 graph of the network.

        Returns:
            The decision with the qualities of the written graphs, and the largest difference of each output in fp32.
        """
        for name in GRAPH_FILES:
            (directory / name).unlink(missing_ok=True)
        written, fp32 = list[tuple[Decision, dict[str, float]]](), GraphPrecision()
        for part in filter(None, (configuration, configuration.fallback)):
            if written:
                self.reporter.say(f"the same model for servers without {configuration.execution.provider}:")
            path = directory / file_for(part.execution)
            save_graph(build_graph(decision.network, decision.precision, part.variant), path)
            is_fp32 = decision.precision == fp32
            differences = self.check_parity(path if is_fp32 else build_graph(self.network, fp32, part.variant), part)
            run = graph_run(path, execution=part.execution)
            checked = check_final_graph(decision, run, part, evaluator=self.evaluator, limits=self.limits)
            written.append((checked, differences))
        (first, differences), *others = written
        for other, _ in others:
            name = f"{decision.precision.name}, ONNX Runtime"
            first = replace(first, qualities={**first.qualities, name: other.quality})
        return first, differences

    def check_parity(
        self,
        graph: Path | Graph,
        configuration: Configuration,
        reporter: Reporter | None = None,
        *,
        max_batch_tokens: int | None = None,
    ) -> dict[str, float]:
        """Check the fp32 graph in a session of this call; return the largest difference of each output."""
        reporter = reporter or self.reporter
        run = graph_run(graph, execution=replace(on_all_cores(configuration.execution), floats="fp32"))
        atol, reference = self.limits.atol, self.evaluator.run
        with reporter.bar("parity", unit="batch", total=len(batch_shapes(self.task))) as bar:
            differences = check_parity(
                self.task, reference, run, atol=atol, max_batch_tokens=max_batch_tokens, progress=bar.update
            )
        largest = max(differences.values())
        reporter.say(f"fp32 graph: differs from PyTorch by at most {largest:.1e} (atol {atol:.0e})")
        return differences

    def known_outputs(self, directory: Path, configuration: Configuration) -> KnownOutputs:
        """Return PyTorch's outputs for the known input, and how far from them the written graphs may be."""
        executions = [part.execution for part in (configuration, configuration.fallback) if part]
        runs = [graph_run(directory / file_for(item), execution=item) for item in executions]
        return known_outputs(self.task, self.evaluator.run, runs, atol=self.limits.atol)

    def small_vectors(self, directory: Path, configuration: Configuration) -> SmallVectors | None:
        """Return the calibration of int8 vectors of the written graph, if there are enough texts."""
        execution, evaluation_set = configuration.execution, self.evaluator.evaluation_set
        run = graph_run(directory / file_for(execution), execution=on_all_cores(execution))
        small = measure_small_vectors(evaluation_set, run, max_batch_tokens=execution.max_batch_tokens)
        if small:
            self.reporter.say(describe(small))
        elif has_texts(evaluation_set):
            self.reporter.say(f"vectors as int8: not calibrated, which takes {NEEDED} different texts")
        return small


def _truncates(source: Source, evaluation_set: EvaluationSet, config: ExportConfig, reporter: Reporter) -> bool:
    """Return whether the server truncates long texts by default."""
    truncated = []
    if evaluation_set.num_truncated:
        truncated.append(f"{evaluation_set.num_truncated:,} of {evaluation_set.name}")
    card = source.card
    if card and card.task == source.task.name and card.settings == source.task.settings:
        for what, cut in card.provenance.get("cuts", {}).items():
            if what.startswith("dev") and cut["num_cut"]:
                truncated.append(f"{cut['num_cut']:,} of {cut['num_examples']:,} {what} of the training")
    truncate = bool(truncated) if config.truncate == "auto" else config.truncate == "yes"
    if truncated:
        verb = "truncates" if truncate else "rejects"
        texts, limit = ", ".join(truncated), length_limit(evaluation_set.task)
        reporter.say(f"truncated to {limit}: {texts}; the server {verb} such texts (--truncate)")
    return truncate


def _long_texts(source: Source, model: ExportableModel) -> str:
    """Return a remark on what long texts cost."""
    length = source.task.settings.max_seq_length
    if length <= LONG_TEXTS:
        return ""
    heads = getattr(model.config, "num_attention_heads", 0)
    memory = f", and up to {heads * length**2 * 4 / 2**30:.1f} GiB each for attention, also in the server" * bool(heads)
    return (
        f"texts of up to {length:,} tokens take minutes to compare with PyTorch{memory}; give --max-seq-length if "
        "yours are shorter"
    )


def _describe(source: Source, model: ExportableModel) -> str:
    config, size = model.config, sum(parameter.numel() for parameter in model.parameters())
    activation = getattr(source.task.settings, "activation", "")
    return (
        f"checkpoint: {source.task.name}, L{config.num_hidden_layers} H{config.hidden_size}, "
        f"{size / 1e6:.1f}M parameters, max_seq_length {source.task.settings.max_seq_length}"
        f"{f', activation {activation} (--activation)' * bool(activation)}"
    )
