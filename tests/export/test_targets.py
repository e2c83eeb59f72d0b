"""Export targets: precisions, variants and execution providers."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import onnx
import onnxruntime
import pytest

from export import ExportConfig, export_checkpoint, ort_run
from export.autotune.model_directory import read_graph, tune_model_directory
from export.autotune.search import autotune
from export.autotune.workload import Workload
from export.evaluation_set import ExportData
from export.session import check_provider
from export.targets import TARGETS, TargetName, default_configuration, target_named, target_of
from export.variant import PROVIDER_OPTIONS, Configuration, GraphPrecision, GraphVariant
from tasks.manifest import Execution, Precision
from tasks.model_directory import read_model_directory
from tasks.providers import CPU, CUDA, OPENVINO, PACKAGES, TENSORRT

FUSED = "attention skip_layer_norm embed_layer_norm bias_gelu"
EXECUTION = "disabled_optimizers max_batch_tokens num_threads"
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


def test_targets_list_precisions():
    """Every target supports a precision or gives a reason why not."""
    assert set(TARGETS) == set(get_args(TargetName))
    for target in TARGETS.values():
        assert {*target.matmul_precisions, *target.unsupported} == set(get_args(Precision))
        assert target_of(target.execution) is target
        assert target.provider in PROVIDER_OPTIONS
    assert target_of(Execution(provider=TENSORRT)).name == "cuda"
    with pytest.raises(ValueError, match="no export target uses `X`"):
        target_of(Execution(provider="X"))
    with pytest.raises(ValueError, match=r"unknown target: `tpu` \(one of: cpu, cuda, openvino\)"):
        target_named("tpu")


@pytest.mark.parametrize(
    ("target", "precision", "reason"),
    [("cpu", "fp16", "use fp32 or int8"), ("openvino", "fp16", "use fp32 or int8"), ("cuda", "int8", "use fp16")],
)
def test_unsupported_precisions_are_refused(target, precision, reason, checkpoints, tmp_path):
    """An unsupported precision is an error before anything is read."""
    with pytest.raises(
        ValueError, match=f"--target {target} does not support --precision {precision}: .*{reason}"
    ) as refused:
        export_checkpoint(tmp_path / "none", tmp_path / "x/1", ExportConfig(target=target, precision=precision))

    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("target", ["cuda", "openvino"])
def test_missing_provider_is_named_first(target, tmp_path, monkeypatch):
    """A missing provider is an error that lists the available ones and the needed package."""
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CPU])
    provider = TARGETS[target].provider

    with pytest.raises(
        ValueError, match=rf"not installed: `{provider}` \(available: {CPU}\); pip uninstall"
    ) as refused:
        export_checkpoint(tmp_path / "none", tmp_path / "x/1", ExportConfig(target=target))

    assert PACKAGES[provider] in str(refused.value)
    assert "\n" not in str(refused.value)


def test_tuning_needs_the_provider_of_the_model_directory(exported, tmp_path, monkeypatch):
    """Tuning does not replace a missing provider by another one."""
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CPU])
    directory = exported["embedding"]
    manifest = replace(directory.manifest, execution=Execution(provider=OPENVINO))
    monkeypatch.setattr(
        "export.autotune.model_directory.read_model_directory", lambda path: replace(directory, manifest=manifest)
    )

    with pytest.raises(ValueError, match=f"not installed: `{OPENVINO}`"):
        tune_model_directory(directory.path, Workload((5,), 65))


def test_provider_that_does_not_start_is_an_error(monkeypatch):
    """A provider that does not start is an error; ONNX Runtime would use the CPU instead."""

    class Session:
        def __init__(self, *args, **kwargs):
            pass

        def get_providers(self):
            return [CPU]

    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])

    with pytest.raises(ValueError, match=rf"does not start: `{CUDA}` \(started: {CPU}\).*onnxruntime-gpu"):
        check_provider(Execution(provider=CUDA))


@pytest.mark.parametrize(
    ("target", "precision", "expected"),
    [
        ("cpu", GraphPrecision(), f"{FUSED} {EXECUTION}"),
        ("cpu", STATIC, f"attention skip_layer_norm bias_gelu standard {EXECUTION}"),
        ("openvino", STATIC, "attention max_batch_tokens num_threads"),
        ("cuda", GraphPrecision(), f"{FUSED} max_batch_tokens"),
        ("cuda", GraphPrecision(matmul="fp16"), f"{FUSED} provider max_batch_tokens"),
    ],
)
def test_alternatives(target, precision, expected):
    """Each target has its own fields to tune, and their values include the default."""
    found = dict(TARGETS[target].alternatives(precision, num_cores=4))

    assert list(found) == expected.split()
    default = default_configuration(TARGETS[target])
    for name, values in found.items():
        assert fields_of(default)[name] in values
        for value in values:
            assert fields_of(default.with_value(name, value))[name] == value


def fields_of(configuration):
    return vars(configuration.variant) | vars(configuration.execution)


def test_standard_variants_stay_standard():
    """A variant without fused operators stays standard when fields change; fused operators end it."""
    variant = GraphVariant(attention="Attention", bias_gelu=True).with_value("standard", True)

    assert variant == GraphVariant(attention="fused-QKV MatMul", standard=True)
    assert variant.with_value("attention", "MatMul").standard
    assert variant.with_value("bias_gelu", False).standard
    assert not variant.with_value("attention", "Attention").standard
    assert not variant.with_value("bias_gelu", True).standard


def test_tensorrt_gets_a_standard_graph():
    """TensorRT gets standard operators and its own provider options."""
    configuration = default_configuration(TARGETS["cuda"]).with_value("provider", TENSORRT)

    assert configuration == Configuration(GraphVariant(standard=True), configuration.execution)
    assert configuration.execution.provider_options == PROVIDER_OPTIONS[TENSORRT]
    assert [name for name, _ in configuration.execution.providers] == [TENSORRT, CUDA]


def test_missing_providers_are_not_tried(checkpoints, stand_in, monkeypatch, exported):
    """Autotuning for CUDA skips TensorRT if it is not installed."""
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    network, _ = read_graph(exported["embedding"])
    monkeypatch.setattr("export.autotune.timing.Timer.seconds", lambda self, configuration: 1.0)

    _, trials = autotune(
        network, GraphPrecision(matmul="fp16"), Workload((5,), 65), target=TARGETS["cuda"], num_cores=2
    )

    assert [trial.value for trial in trials if trial.name == "provider"] == [CUDA]


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

    before = ort_run(exported.model_path)(random_batch(3, 8))["logits"]
    tune_model_directory(exported.path, Workload((5, 9, 7), 65))
    after = ort_run(exported.model_path)(random_batch(3, 8))["logits"]
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
def texts_file(tmp_path, texts):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(texts * 4) + "\n")
    return path


def test_export_for_openvino(checkpoints, tmp_path, stand_in, texts_file):
    """The graph has standard operators only, and can be tuned."""
    config = ExportConfig(target="openvino", precision="int8", tune=False)
    config = replace(config, limits=replace(config.limits, min_cosine=0.9))
    exported = export_checkpoint(checkpoints["plain"], tmp_path / "plain/1", config, data=ExportData(texts=texts_file))

    assert exported.manifest.execution.provider == OPENVINO
    assert exported.manifest.provenance["versions"]["onnxruntime-openvino"] == onnxruntime.__version__
    model = onnx.load(exported.model_path)
    assert {node.domain for node in model.graph.node} == {""}
    tune_model_directory(exported.path, Workload((5, 9, 7), 65))
    again = read_model_directory(exported.path)
    assert again.manifest.execution.provider == OPENVINO
    assert read_graph(again)[1] == STATIC


def test_openvino_needs_texts_for_int8(checkpoints, tmp_path, stand_in):
    """Without texts, int8 for OpenVINO is an error, as it cannot be calibrated."""
    with pytest.raises(ValueError, match="--target openvino supports static int8 only; give --train or --texts"):
        export_checkpoint(checkpoints["plain"], tmp_path / "plain/1", ExportConfig(target="openvino", precision="int8"))


@pytest.mark.skipif(OPENVINO not in onnxruntime.get_available_providers(), reason="needs onnxruntime-openvino")
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_openvino_itself(precision, checkpoints, tmp_path, texts_file):
    """With OpenVINO installed, a graph is exported and tuned."""
    config = ExportConfig(target="openvino", precision=precision)
    config = replace(config, limits=replace(config.limits, min_cosine=0.9))
    data = ExportData(texts=texts_file)
    exported = export_checkpoint(checkpoints["plain"], tmp_path / "plain/1", config, data=data)

    assert {trial["name"] for trial in exported.manifest.provenance["graph"]["trials"]} >= {
        "attention",
        "max_batch_tokens",
    }
