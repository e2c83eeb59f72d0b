"""Export targets: precisions, variants and execution providers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest

from export import ExportConfig, export_checkpoint, graph_run
from export.autotune.model_directory import read_graph, tune_model_directory
from export.autotune.search import able_targets, autotune
from export.autotune.workload import Workload
from export.evaluation_set import ExportData
from export.reporter import Reporter
from export.targets import TARGETS, default_configuration, targets_for
from export.variant import PROVIDER_OPTIONS, Configuration, GraphPrecision, GraphVariant
from serving.core.models import load_model
from tasks.bundle.machine import int8_sums_overflow
from tasks.bundle.manifest import Execution
from tasks.bundle.model_directory import read_model_directory
from tasks.bundle.providers import CPU, CUDA, OPENVINO, PACKAGES, TENSORRT
from tasks.features import Features

STATIC = GraphPrecision(matmul="static int8")


@pytest.fixture
def stand_in(monkeypatch):
    """Replace ONNX Runtime's sessions: all providers exist, and run on the CPU."""
    real = onnxruntime.InferenceSession
    asked = []

    class Session:
        def __init__(self, model, options, *, providers, **kwargs):
            asked.append(providers)
            self.session = real(model, options, providers=[CPU], **kwargs)
            self.run, self.get_outputs = self.session.run, self.session.get_outputs

        def get_providers(self):
            return [asked[-1][0][0], CPU]

    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [*PACKAGES])
    monkeypatch.setattr(Execution, "session_config", {})
    return asked


@pytest.mark.parametrize(
    ("arguments", "providers"),
    [
        (("cpu",), [CPU, OPENVINO]),
        (("cpu", "onnxruntime"), [CPU]),
        (("cpu", "openvino"), [OPENVINO]),
        (("cuda",), [CUDA]),
    ],
)
def test_engines_that_compete(arguments, providers):
    """On CPUs all engines compete, unless one is chosen."""
    assert [target.provider for target in targets_for(*arguments)] == providers


def test_engines_that_are_not_installed_do_not_compete(monkeypatch):
    """OpenVINO is optional."""
    monkeypatch.setattr("export.targets.find_spec", lambda name: None)
    assert [target.provider for target in targets_for("cpu")] == [CPU]


def test_engines_run_on_some_targets_only():
    """The error names the flag that works."""
    with pytest.raises(ValueError, match="--engine openvino does not run on --target cuda; use --engine onnxruntime"):
        targets_for("cuda", "openvino")


def test_overflowing_int8_is_left_out(exported, monkeypatch):
    """Where OpenVINO's int8 sums overflow, it does not race, and is refused if it is the only engine."""
    monkeypatch.setattr("export.variant.int8_sums_overflow", lambda: True)
    network, targets, lines = read_graph(exported["embedding"])[0], targets_for("cpu"), []
    reporter = Reporter(say=lines.append)

    assert able_targets(targets, network, GraphPrecision(matmul="static int8"), reporter) == [TARGETS["cpu"]]
    assert lines == ["OpenVINO is left out: --engine openvino does not support int8 here: sums overflow without VNNI"]
    assert len(able_targets(targets, network, GraphPrecision())) == 2
    with pytest.raises(ValueError, match="sums overflow without VNNI"):
        ExportConfig(engine="openvino", precision="int8").check()


@pytest.mark.parametrize(("flag", "value"), [("target", "cpu"), ("engine", "openvino")])
def test_unsupported_precisions_are_refused(flag, value, tmp_path):
    """An unsupported precision is an error before anything is read."""
    message = f"--{flag} {value} does not support --precision fp16: .*use fp32 or int8"

    with pytest.raises(ValueError, match=message):
        export_checkpoint(tmp_path / "none", tmp_path / "x/1", ExportConfig(**{flag: value}, precision="fp16"))


def test_missing_provider_is_named_first(tmp_path, monkeypatch):
    """A missing provider is an error that lists the available ones and the needed package."""
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CPU])

    with pytest.raises(ValueError, match=rf"not installed: `{CUDA}` \(available: {CPU}\); pip uninstall") as refused:
        export_checkpoint(tmp_path / "none", tmp_path / "x/1", ExportConfig(target="cuda"))

    assert PACKAGES[CUDA] in str(refused.value)
    assert "\n" not in str(refused.value)


def test_tuning_needs_the_provider_of_the_model_directory(exported, tmp_path, monkeypatch):
    """Tuning does not replace a missing provider by another one."""
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CPU])
    directory = exported["embedding"]
    manifest = replace(directory.manifest, execution=Execution(provider=CUDA))
    monkeypatch.setattr(
        "export.autotune.model_directory.read_model_directory", lambda path: replace(directory, manifest=manifest)
    )

    with pytest.raises(ValueError, match=f"not installed: `{CUDA}`"):
        tune_model_directory(directory.path, Workload((5,), 65))


def test_standard_variants_stay_standard():
    """A variant without fused operators stays standard when fields change; fused operators end it."""
    variant = GraphVariant(attention="Attention", bias_gelu=True).with_value("standard", True)

    assert variant == GraphVariant(attention="fused-QKV MatMul", standard=True)
    assert variant.with_value("attention", "MatMul").standard
    assert variant.with_value("bias_gelu", False).standard
    assert not variant.with_value("attention", "Attention").standard
    assert not variant.with_value("bias_gelu", True).standard


def test_tensorrt_gets_a_standard_graph():
    """TensorRT gets standard operators, also when other fields change, and its own provider options."""
    configuration = default_configuration(TARGETS["cuda"]).with_value("provider", TENSORRT)

    assert configuration == Configuration(GraphVariant(standard=True), configuration.execution)
    assert configuration.execution.provider_options == PROVIDER_OPTIONS[TENSORRT]
    assert [name for name, _ in configuration.execution.providers] == [TENSORRT, CUDA]
    assert configuration.with_value("attention", "MultiHeadAttention").variant.standard
    assert configuration.with_value("bias_gelu", True).variant.standard


def test_export_for_a_gpu(checkpoints, tmp_path, stand_in, random_batch):
    """fp16 passes the quality gate, and its model directory can be tuned."""
    config = ExportConfig(target="cuda", precision="fp16", tune=False)
    exported = export_checkpoint(checkpoints["classification"], tmp_path / "topic/1", config)

    assert exported.manifest.precision == "fp16"
    assert exported.manifest.execution == TARGETS["cuda"].execution
    assert exported.manifest.scores["quality"]["fp16"]["mean_cosine"] > 0.999
    types = {node.op_type for node in onnx.load(exported.model_path).graph.node}
    assert types >= {"Attention", "SkipLayerNormalization", "EmbedLayerNormalization", "BiasGelu"}
    assert [(CUDA, dict(PROVIDER_OPTIONS[CUDA]))] in stand_in

    before = graph_run(exported.model_path)(random_batch(3, 8))["logits"]
    tune_model_directory(exported.path, Workload((5, 9, 7), 65))
    after = graph_run(exported.model_path)(random_batch(3, 8))["logits"]
    np.testing.assert_allclose(after, before, atol=0.01)


def test_fp16_below_the_limit_is_refused(checkpoints, tmp_path, stand_in):
    """The quality gate also applies to fp16."""
    config = ExportConfig(target="cuda", precision="fp16", tune=False)
    config = replace(config, limits=replace(config.limits, min_cosine=1.0))

    with pytest.raises(
        ValueError,
        match=r"graph rejected: with fp16 the mean cosine .* \(--min-cosine 0\.\d+ accepts it, or use fp32\)",
    ):
        export_checkpoint(checkpoints["plain"], tmp_path / "plain/1", config)
    assert not (tmp_path / "plain").exists() or not list((tmp_path / "plain").iterdir())


@pytest.fixture
def for_openvino():
    if int8_sums_overflow():
        pytest.skip("OpenVINO's int8 sums overflow on this CPU")
    config = ExportConfig(engine="openvino", precision="int8", tune=False)
    return replace(config, limits=replace(config.limits, min_cosine=0.9))


def outputs_of(directory, execution, arrays):
    return graph_run(directory.graph_path(execution), execution=execution)(arrays)


def test_export_for_openvino(checkpoints, tmp_path, for_openvino, texts_file, random_batch):
    """The directory has a graph for each engine, both judged, with standard operators only in OpenVINO's."""
    exported = export_checkpoint(
        checkpoints["plain"], tmp_path / "plain/1", for_openvino, data=ExportData(texts=texts_file)
    )

    manifest = exported.manifest
    assert (manifest.execution.provider, manifest.fallback) == (OPENVINO, default_configuration().execution)
    assert {"openvino", "onnxruntime"} <= manifest.provenance["versions"].keys()
    assert {"model.onnx", "model.openvino.onnx"} <= manifest.files.keys()
    assert {node.domain for node in onnx.load(exported.model_path).graph.node} == {""}
    assert {"static int8", "static int8, ONNX Runtime"} <= manifest.scores["quality"].keys()
    assert "OpenVINO runs batches" in (exported.path / "README.md").read_text("utf-8")
    name, fallback = task_output(exported), outputs_of(exported, manifest.fallback, random_batch(3, 8))
    found = outputs_of(exported, manifest.execution, random_batch(3, 8))
    np.testing.assert_allclose(found[name], fallback[name], atol=0.05)


def test_any_number_of_positions(save_checkpoint, tmp_path):
    """A network of 50 positions, to which OpenVINO's batches are not rounded, is exported and served in it."""
    checkpoint = save_checkpoint(tmp_path / "checkpoint", max_position_embeddings=50)
    config, settings = ExportConfig(engine="onnxruntime", tune=False), {"max_seq_length": 50}
    path = export_checkpoint(checkpoint, tmp_path / "plain/1", config, settings=settings).path
    longest = [Features(input_ids=np.full(50, 7), token_type_ids=np.zeros(50, int))]
    expected = load_model(path).compute(longest)[0]["sentence_embedding"]

    config = ExportConfig(engine="openvino", tune=False)
    model = load_model(export_checkpoint(checkpoint, tmp_path / "plain/2", config, settings=settings).path)

    assert model.execution.engine == "openvino"
    np.testing.assert_allclose(model.compute(longest)[0]["sentence_embedding"], expected, atol=0.05)


def task_output(directory):
    return directory.manifest.outputs[0]


@pytest.mark.parametrize(("engine", "has_both"), [("openvino", True), ("onnxruntime", False)])
def test_tuning_changes_the_engine(engine, has_both, checkpoints, tmp_path, for_openvino, texts_file):
    """Tuning takes the engine that it is given, and leaves no graph that the manifest does not name."""
    data = ExportData(texts=texts_file)
    exported = export_checkpoint(checkpoints["plain"], tmp_path / "plain/1", for_openvino, data=data)
    tune_model_directory(exported.path, Workload((5, 9, 7), 65), engine=engine)
    again = read_model_directory(exported.path)

    assert again.manifest.execution.engine == engine
    assert (again.manifest.fallback is not None) == has_both
    assert (exported.path / "model.openvino.onnx").exists() == has_both
    assert read_graph(again)[1] == STATIC


@pytest.mark.parametrize("agrees", [True, False])
def test_bf16_races_only_if_it_agrees(agrees, checkpoints, tmp_path, texts_file, for_openvino, with_bf16, monkeypatch):
    """Even if it is faster, bf16 is taken only if it agrees with PyTorch nearly as often as fp32; tuning follows."""
    monkeypatch.setattr("export.quality.Quality.is_less_close", lambda self, other: not agrees)
    monkeypatch.setattr(
        "export.autotune.timing.Timer.seconds",
        lambda self, configuration, number=0, precision=None: {"bf16": 1.0, "fp32": 1.5}[
            configuration.execution.floats
        ],
    )
    lines = []
    exported = export_checkpoint(
        checkpoints["plain"],
        tmp_path / "plain/1",
        replace(for_openvino, tune=True),
        data=ExportData(texts=texts_file),
        reporter=Reporter(lines.append),
    )
    tuned = tune_model_directory(exported.path, Workload((5, 9, 7), 65))

    expected = "bf16" if agrees else "fp32"
    assert exported.manifest.execution.floats == expected
    assert any(("timed, too" if agrees else "less close to PyTorch than in fp32") in line for line in lines)
    assert ("OpenVINO floats" in {trial.name for trial in tuned}) == agrees
    if agrees:
        assert read_model_directory(exported.path).manifest.execution.floats == "bf16"


@pytest.mark.parametrize(("faster", "precision"), [(CPU, "int8"), (OPENVINO, "fp32"), (OPENVINO, "int8")])
def test_the_faster_engine_is_chosen(faster, precision, checkpoints, tmp_path, texts_file, monkeypatch):
    """With both engines, the export takes the faster one; ONNX Runtime's graph is written in any case."""
    monkeypatch.setattr("export.variant.int8_sums_overflow", lambda: False)

    def seconds(self, configuration, number=0, precision=None):
        return 1.0 if configuration.execution.provider == faster else 1.5

    monkeypatch.setattr("export.autotune.timing.Timer.seconds", seconds)
    config = ExportConfig(precision=precision)
    config = replace(config, limits=replace(config.limits, min_cosine=0.9))
    data = ExportData(texts=texts_file)
    manifest = export_checkpoint(checkpoints["plain"], tmp_path / "plain/1", config, data=data).manifest

    assert manifest.execution.provider == faster
    assert (manifest.fallback is None) == (faster == CPU)
    names = {trial["name"] for trial in manifest.provenance["graph"]["trials"]}
    assert {"attention", "OpenVINO attention", "OpenVINO max_batch_tokens"} <= names


def test_a_small_gain_keeps_onnx_runtime(exported, monkeypatch):
    """An engine that is hardly faster is not worth a second graph."""
    network, _ = read_graph(exported["embedding"])
    monkeypatch.setattr(
        "export.autotune.timing.Timer.seconds",
        lambda self, configuration, number=0: 1.0 if configuration.execution.provider == OPENVINO else 1.015,
    )

    best, _ = autotune(
        network, GraphPrecision(), Workload((5,), 65), num_cores=2, target=TARGETS["cpu"], rivals=[TARGETS["openvino"]]
    )

    assert best == default_configuration()


def test_openvino_needs_texts_for_int8(checkpoints, tmp_path, for_openvino):
    """Without texts, int8 for OpenVINO is an error, as it cannot be calibrated."""
    with pytest.raises(ValueError, match="--engine openvino supports static int8 only; give --train or --texts"):
        export_checkpoint(checkpoints["plain"], tmp_path / "plain/1", for_openvino)


def test_dynamic_int8_stays_in_onnx_runtime(exported, tmp_path):
    """A graph that OpenVINO does not run is tuned for ONNX Runtime, and refused where only OpenVINO is wanted."""
    network, _ = read_graph(exported["embedding"])
    targets = targets_for("cpu")

    assert able_targets(targets, network, GraphPrecision(matmul="dynamic int8")) == [TARGETS["cpu"]]
    with pytest.raises(ValueError, match="--engine openvino does not run dynamic int8; use --engine onnxruntime"):
        able_targets(targets[1:], network, GraphPrecision(matmul="dynamic int8"))


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("task", ["plain", "classification", "spans", "masked-lm", "tagging"])
def test_openvino_itself(precision, task, checkpoints, tmp_path, texts_file, random_batch):
    """Each task's graph is tuned for OpenVINO, and its outputs are those of ONNX Runtime."""
    if precision == "int8" and int8_sums_overflow():
        pytest.skip("OpenVINO's int8 sums overflow on this CPU")
    config = ExportConfig(engine="openvino", precision=precision)
    config = replace(config, limits=replace(config.limits, min_cosine=0.9))
    exported = export_checkpoint(checkpoints[task], tmp_path / "x/1", config, data=ExportData(texts=texts_file))

    manifest = exported.manifest
    arrays = random_batch(3, 8)
    fallback, found = (outputs_of(exported, item, arrays) for item in (manifest.fallback, manifest.execution))
    for name in exported.load_task().output_names:
        np.testing.assert_allclose(found[name], fallback[name], atol=0.1 if precision == "int8" else 1e-4)
