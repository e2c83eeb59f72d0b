"""Export targets: precisions, variants and execution providers."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest

from export import ExportConfig, QualityLimits, export_checkpoint, graph_run
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
from tests.export.conftest import int8

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


def test_engines_that_do_not_compete(monkeypatch):
    """OpenVINO is optional, and an engine that does not run on a target is an error that names the flag."""
    monkeypatch.setattr("export.targets.find_spec", lambda name: None)
    assert [target.provider for target in targets_for("cpu")] == [CPU]
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
def test_unsupported_precisions_are_refused(flag, value):
    """An unsupported precision is an error."""
    with pytest.raises(ValueError, match=f"--{flag} {value} does not support --precision fp16: .*use fp32 or int8"):
        ExportConfig(**{flag: value}, precision="fp16").check()


def test_missing_provider_is_named_first(tmp_path, export, monkeypatch):
    """A missing provider is an error that lists the available ones and the needed package."""
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CPU])

    with pytest.raises(ValueError, match=rf"not installed: `{CUDA}` \(available: {CPU}\); pip uninstall") as refused:
        export(tmp_path / "none", ExportConfig(target="cuda"))

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


@pytest.mark.usefixtures("untimed")
def test_export_for_a_gpu(export, stand_in, random_batch):
    """fp16 passes the quality gate, and its model directory can be tuned."""
    exported = export("classification", ExportConfig(target="cuda", precision="fp16", tune=False))

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


def test_fp16_below_the_limit_is_refused(export, tmp_path, stand_in):
    """The quality gate also applies to fp16."""
    config = ExportConfig(target="cuda", precision="fp16", tune=False, limits=QualityLimits(min_cosine=1.0))

    with pytest.raises(
        ValueError,
        match=r"graph rejected: with fp16 the mean cosine .* \(--min-cosine 0\.\d+ accepts it, or use fp32\)",
    ):
        export("plain", config)
    assert not (tmp_path / "m").exists()


@pytest.fixture(scope="module")
def for_openvino():
    if int8_sums_overflow():
        pytest.skip("OpenVINO's int8 sums overflow on this CPU")
    return replace(int8(min_cosine=0.9), engine="openvino")


@pytest.fixture(scope="module")
def in_openvino(for_openvino, checkpoints, texts, tmp_path_factory):
    """Export a model in int8 for OpenVINO. SmoothQuant, which is closer to PyTorch, is 10% slower."""
    folder = tmp_path_factory.mktemp("openvino")
    (folder / "texts.txt").write_text("\n".join(texts * 4))
    data = ExportData(texts=folder / "texts.txt")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("export.pipeline.compare_precisions", lambda *_, **__: {"SmoothQuant int8": 1.1})
        return export_checkpoint(checkpoints["plain"], folder / "plain/1", for_openvino, data=data)


def outputs_of(directory, execution, arrays):
    return graph_run(directory.graph_path(execution), execution=execution)(arrays)


def test_export_for_openvino(in_openvino, random_batch):
    """The directory has a graph for each engine, both judged, with standard operators only in OpenVINO's."""
    exported, manifest = in_openvino, in_openvino.manifest

    assert (manifest.execution.provider, manifest.fallback) == (OPENVINO, default_configuration().execution)
    assert {"openvino", "onnxruntime"} <= manifest.provenance["versions"].keys()
    assert {"model.onnx", "model.openvino.onnx"} <= manifest.files.keys()
    assert {node.domain for node in onnx.load(exported.model_path).graph.node} == {""}
    assert {"static int8", "static int8, ONNX Runtime"} <= manifest.scores["quality"].keys()
    assert "OpenVINO runs batches" in (exported.path / "README.md").read_text("utf-8")
    name, arrays = manifest.outputs[0], random_batch(3, 8)
    fallback, found = (outputs_of(exported, item, arrays)[name] for item in (manifest.fallback, manifest.execution))
    np.testing.assert_allclose(found, fallback, atol=0.05)


def test_any_number_of_positions(save_checkpoint, export, tmp_path):
    """A network of 50 positions, to which OpenVINO's batches are not rounded, is exported and served in it."""
    checkpoint = save_checkpoint(tmp_path / "checkpoint", max_position_embeddings=50)
    longest = [Features(input_ids=np.full(50, 7), token_type_ids=np.zeros(50, int))]

    def vector(engine):
        path = export(
            checkpoint,
            ExportConfig(engine=engine, tune=False),
            to=f"{engine}/1",
            settings={"max_seq_length": 50},
        ).path
        model = load_model(path)
        assert model.execution.engine == engine
        return model.compute(longest)[0]["sentence_embedding"]

    np.testing.assert_allclose(vector("openvino"), vector("onnxruntime"), atol=0.05)


@pytest.mark.usefixtures("untimed")
@pytest.mark.parametrize(("engine", "has_both"), [("openvino", True), ("onnxruntime", False)])
def test_tuning_changes_the_engine(engine, has_both, in_openvino, tmp_path):
    """Tuning takes the engine that it is given, and leaves no graph that the manifest does not name."""
    path = shutil.copytree(in_openvino.path, tmp_path / "plain/1")
    tune_model_directory(path, Workload((5, 9, 7), 65), engine=engine)
    again = read_model_directory(path)

    assert again.manifest.execution.engine == engine
    assert (again.manifest.fallback is not None) == has_both
    assert (path / "model.openvino.onnx").exists() == has_both
    assert read_graph(again)[1] == STATIC


@pytest.mark.parametrize("agrees", [True, False])
def test_bf16_races_only_if_it_agrees(agrees, export, texts_file, for_openvino, with_bf16, monkeypatch):
    """Even if it is faster, bf16 is taken only if it agrees with PyTorch nearly as often as fp32; tuning follows."""
    monkeypatch.setattr("export.quality.Quality.is_less_close", lambda self, other: not agrees)
    monkeypatch.setattr(
        "export.autotune.timing.Timer.seconds",
        lambda self, configuration, number=0, precision=None: {"bf16": 1.0, "fp32": 1.5}[
            configuration.execution.floats
        ],
    )
    lines = []
    exported = export("plain", replace(for_openvino, tune=True), data=ExportData(texts=texts_file), lines=lines)
    tuned = tune_model_directory(exported.path, Workload((5, 9, 7), 65))

    expected = "bf16" if agrees else "fp32"
    assert exported.manifest.execution.floats == expected
    assert any(("timed, too" if agrees else "less close to PyTorch than in fp32") in line for line in lines)
    assert ("OpenVINO floats" in {trial.name for trial in tuned}) == agrees
    if agrees:
        assert read_model_directory(exported.path).manifest.execution.floats == "bf16"


@pytest.mark.parametrize(("faster", "precision"), [(CPU, "int8"), (OPENVINO, "fp32"), (OPENVINO, "int8")])
def test_the_faster_engine_is_chosen(faster, precision, export, texts_file, monkeypatch):
    """With both engines, the export takes the faster one; ONNX Runtime's graph is written in any case."""
    monkeypatch.setattr("export.variant.int8_sums_overflow", lambda: False)

    def seconds(self, configuration, number=0, precision=None):
        return 1.0 if configuration.execution.provider == faster else 1.5

    monkeypatch.setattr("export.autotune.timing.Timer.seconds", seconds)
    config = ExportConfig(precision=precision, limits=QualityLimits(min_cosine=0.9))
    manifest = export("plain", config, data=ExportData(texts=texts_file)).manifest

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


def test_openvino_needs_texts_for_int8(export, for_openvino):
    """Without texts, int8 for OpenVINO is an error, as it cannot be calibrated."""
    with pytest.raises(ValueError, match="--engine openvino supports static int8 only; give --train or --texts"):
        export("plain", for_openvino)


def test_dynamic_int8_stays_in_onnx_runtime(exported):
    """A graph that OpenVINO does not run is tuned for ONNX Runtime, and refused where only OpenVINO is wanted."""
    network, _ = read_graph(exported["embedding"])
    targets = targets_for("cpu")

    assert able_targets(targets, network, GraphPrecision(matmul="dynamic int8")) == [TARGETS["cpu"]]
    with pytest.raises(ValueError, match="--engine openvino does not run dynamic int8; use --engine onnxruntime"):
        able_targets(targets[1:], network, GraphPrecision(matmul="dynamic int8"))


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("task", ["plain", "classification", "spans", "masked-lm", "tagging"])
def test_openvino_itself(precision, task, export, texts_file, random_batch):
    """Each task's graph is tuned for OpenVINO, and its outputs are those of ONNX Runtime."""
    if precision == "int8" and int8_sums_overflow():
        pytest.skip("OpenVINO's int8 sums overflow on this CPU")
    config = ExportConfig(engine="openvino", precision=precision, limits=QualityLimits(min_cosine=0.9))
    exported = export(task, config, data=ExportData(texts=texts_file))

    manifest = exported.manifest
    arrays = random_batch(3, 8)
    fallback, found = (outputs_of(exported, item, arrays) for item in (manifest.fallback, manifest.execution))
    for name in exported.load_task().output_names:
        np.testing.assert_allclose(found[name], fallback[name], atol=0.1 if precision == "int8" else 1e-4)
