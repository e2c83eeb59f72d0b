"""Engines that fail: a rival is left for ONNX Runtime, and the wanted engine is an error."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from export import ExportConfig, QualityLimits, graph_run
from export.autotune import search
from export.autotune.model_directory import tune_model_directory
from export.autotune.workload import Workload
from export.evaluation_set import ExportData
from export.parity import ParityError
from export.quality_gate import QualityError
from export.reporter import Reporter
from tasks.bundle.manifest import MANIFEST_FILE
from tasks.bundle.model_directory import read_model_directory
from tasks.bundle.providers import OPENVINO

OPENVINO_FILE = "model.openvino.onnx"
LEFT_OUT = "OpenVINO is left out: "


@pytest.fixture(autouse=True)
def _any_cpu(monkeypatch):
    """Race OpenVINO's int8 on this CPU, whatever it is."""
    monkeypatch.setattr("export.variant.int8_sums_overflow", lambda: False)


@pytest.fixture
def export(export, texts_file):
    """Export the plain checkpoint, and return the model directory and the lines of the output."""

    def run(**flags):
        lines, config = [], ExportConfig(limits=QualityLimits(min_cosine=0.9), **flags)
        return export("plain", config, data=ExportData(texts=texts_file), lines=lines), lines

    return run


def set_seconds(monkeypatch, seconds_of):
    """Replace measured times by those that a function returns, or raises, for execution settings."""
    monkeypatch.setattr(
        "export.autotune.timing.Timer.seconds",
        lambda self, configuration, number=0, precision=None: seconds_of(configuration.execution),
    )


def openvino_first(execution):
    return 1.0 if execution.provider == OPENVINO else 1.5


def raise_in(error):
    """Return a function like `openvino_first` that raises for OpenVINO."""

    def seconds(execution):
        if execution.provider == OPENVINO:
            raise error
        return 1.5

    return seconds


def cannot_be_imported(monkeypatch):
    def fail(name):
        raise ImportError("libopenvino.so: cannot open shared object file\nand more")

    monkeypatch.setattr("tasks.bundle.providers.import_module", fail)
    set_seconds(monkeypatch, openvino_first)


def cannot_compile(monkeypatch):
    set_seconds(monkeypatch, raise_in(ValueError("cannot load graph: no such operator")))


def cannot_run(monkeypatch):
    set_seconds(monkeypatch, raise_in(RuntimeError("shapes differ\nand more")))


def cannot_be_judged(monkeypatch):
    def fail(graph, *, execution):
        raise ValueError("cannot load graph: no such type")

    monkeypatch.setattr("export.quality_gate.graph_run", fail)
    set_seconds(monkeypatch, openvino_first)


FAILURES = {
    cannot_be_imported: "engine does not start: `openvino`: libopenvino.so: cannot open shared object file; ",
    cannot_compile: "cannot load graph: no such operator",
    cannot_run: "shapes differ",
    cannot_be_judged: "cannot load graph: no such type",
}


@pytest.mark.usefixtures("with_bf16")
@pytest.mark.parametrize("fail", FAILURES)
def test_a_rival_that_fails_is_left_out(fail, export, monkeypatch):
    """An engine that competes does not end the export, wherever it fails: it prints why, and the other is taken."""
    fail(monkeypatch)

    directory, lines = export(precision="int8")

    said = [line for line in lines if LEFT_OUT in line]
    trials = {trial["name"] for trial in directory.manifest.provenance["graph"]["trials"]}
    assert directory.manifest.execution.engine == "onnxruntime"
    assert len(said) == 1
    assert said[0].startswith(LEFT_OUT + FAILURES[fail])
    assert "\n" not in said[0]
    assert not any(name.startswith(OPENVINO) for name in trials)


@pytest.mark.usefixtures("with_bf16")
@pytest.mark.parametrize("fail", [cannot_be_imported, cannot_be_judged])
def test_the_wanted_engine_that_fails_is_an_error(fail, export, monkeypatch):
    """With --engine openvino, its failure ends the export."""
    fail(monkeypatch)

    with pytest.raises((ValueError, RuntimeError), match=FAILURES[fail]):
        export(precision="int8", engine="openvino")


def test_a_rival_that_fails_among_the_finalists_is_left_out(exported, tmp_path, monkeypatch):
    """The finalists of ONNX Runtime race again without an engine that fails only then."""
    directory = shutil.copytree(exported["embedding"].path, tmp_path / "plain/1")
    set_seconds(monkeypatch, openvino_first)
    race = search._race_configurations

    def race_or_fail(timer, name, configurations, reporter, *, min_s):
        if name == search.FINALISTS and any(item.execution.provider == OPENVINO for item in configurations.values()):
            raise RuntimeError("shapes differ")
        return race(timer, name, configurations, reporter, min_s=min_s)

    monkeypatch.setattr(search, "_race_configurations", race_or_fail)
    lines = []

    tune_model_directory(directory, Workload((5, 9), 65), reporter=Reporter(lines.append))

    assert read_model_directory(directory).manifest.execution.engine == "onnxruntime"
    assert f"{LEFT_OUT}shapes differ" in lines


@pytest.mark.usefixtures("with_bf16")
def test_a_comparison_that_fails_does_not_end_an_export(export, monkeypatch):
    """An engine that does not run the fp32 graph is taken for int8; a note states why they are not compared."""
    set_seconds(monkeypatch, openvino_first)
    race = search._race

    def race_or_fail(timer, name, passes, reporter, **options):
        if name == search.PRECISION:
            raise RuntimeError("shapes differ")
        return race(timer, name, passes, reporter, **options)

    monkeypatch.setattr(search, "_race", race_or_fail)

    directory, lines = export(precision="int8")

    assert directory.manifest.execution.engine == "openvino"
    assert "not compared with fp32: shapes differ" in lines


def write_wrong_files(monkeypatch, is_wrong, module="export.pipeline"):
    """Negate the outputs of written graphs for some execution settings: fp32 fails parity, int8 the quality gate."""

    def run_of(graph, *, execution):
        run = graph_run(graph, execution=execution)
        if not (isinstance(graph, Path) and is_wrong(execution)):
            return run
        return lambda arrays: {name: -values for name, values in run(arrays).items()}

    monkeypatch.setattr(f"{module}.graph_run", run_of)


def test_tuning_leaves_out_a_rival_that_changes_the_outputs(exported, tmp_path, monkeypatch):
    """`export tune` writes ONNX Runtime's graph alone if the faster one's outputs differ, or nothing with --engine."""
    directory = shutil.copytree(exported["embedding"].path, tmp_path / "plain/1")
    set_seconds(monkeypatch, openvino_first)
    write_wrong_files(monkeypatch, lambda execution: execution.provider == OPENVINO, "export.autotune.model_directory")
    before, lines = (directory / MANIFEST_FILE).read_text(), []

    with pytest.raises(ValueError, match="tuning changed the output"):
        tune_model_directory(directory, Workload((5, 9), 65), engine="openvino")
    assert (directory / MANIFEST_FILE).read_text() == before
    tune_model_directory(directory, Workload((5, 9), 65), reporter=Reporter(lines.append))

    manifest = read_model_directory(directory).manifest
    found = manifest.execution.engine, manifest.fallback, OPENVINO_FILE in manifest.files
    assert found == ("onnxruntime", None, False)
    assert any(line.startswith(f"{LEFT_OUT}tuning changed the output") for line in lines)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_rival_that_misses_the_limits_is_left(precision, export, monkeypatch):
    """If OpenVINO's graph is faster but fails parity or loses too much quality, ONNX Runtime's is written."""
    set_seconds(monkeypatch, openvino_first)
    write_wrong_files(monkeypatch, lambda execution: execution.provider == OPENVINO)

    directory, lines = export(precision=precision)

    assert directory.manifest.execution.engine == "onnxruntime"
    assert not (directory.path / "model.openvino.onnx").exists()
    assert any("misses the limits, so another one is written: graph rejected: " in line for line in lines)


@pytest.mark.parametrize(("precision", "tune", "error"), [("fp32", True, ParityError), ("int8", False, QualityError)])
def test_the_wanted_engine_that_misses_the_limits_is_an_error(precision, tune, error, export, tmp_path, monkeypatch):
    """With --engine openvino, no directory is written that only ONNX Runtime serves."""
    set_seconds(monkeypatch, openvino_first)
    write_wrong_files(monkeypatch, lambda execution: execution.provider == OPENVINO)

    with pytest.raises(error, match="graph rejected: "):
        export(precision=precision, engine="openvino", tune=tune)

    assert not (tmp_path / "m").exists()
