"""Options of execution providers, and errors for missing providers."""

from __future__ import annotations

import json

import pytest

from tasks.manifest import Execution
from tasks.providers import CPU, CUDA, OPENVINO, TENSORRT, check_installed, check_started, load_libraries


def config(**execution):
    [(provider, options)] = Execution(provider=OPENVINO, **execution).providers
    assert provider == OPENVINO
    return json.loads(options["load_config"])


@pytest.fixture
def _four_cores(monkeypatch):
    monkeypatch.setattr("tasks.manifest.available_cpus", lambda: 4)


@pytest.mark.usefixtures("_four_cores")
@pytest.mark.parametrize(("num_threads", "num_streams"), [(1, "4"), (2, "2"), (4, "1"), (9, "1")])
def test_openvino_runs_as_many_batches_as_there_are_cores_for(num_threads, num_streams):
    """OpenVINO gets all cores of the serving machine, and a stream for each batch that fits on them."""
    assert config(num_threads=num_threads) == {"CPU": {"NUM_STREAMS": num_streams, "INFERENCE_NUM_THREADS": "4"}}


@pytest.mark.usefixtures("_four_cores")
def test_openvino_options_of_a_manifest_are_kept():
    """OpenVINO options of the manifest are kept, and only missing ones are added."""
    options = {"GPU": {"X": "1"}, "CPU": {"NUM_STREAMS": "7", "INFERENCE_PRECISION_HINT": "f32"}}

    found = config(provider_options={"load_config": json.dumps(options)})

    assert found["GPU"] == {"X": "1"}
    assert found["CPU"] == {"INFERENCE_NUM_THREADS": "4", **options["CPU"]}


@pytest.mark.parametrize("text", ["ov.json", "[1]", '{"CPU": 1}'])
def test_malformed_openvino_options(text):
    """Malformed OpenVINO options are a one-line error."""
    with pytest.raises(ValueError, match="provider option `load_config` must be JSON, settings by device"):
        config(provider_options={"load_config": text})


def test_other_providers_get_the_options_of_the_manifest():
    """Other providers get the options of the manifest, and TensorRT falls back to CUDA."""
    assert Execution().providers == [(CPU, {})]
    assert Execution(provider=CUDA, provider_options={"use_tf32": "0"}).providers == [(CUDA, {"use_tf32": "0"})]
    assert [name for name, _ in Execution(provider=TENSORRT).providers] == [TENSORRT, CUDA]


def test_missing_providers_are_named_with_their_package():
    """Errors for missing providers name the package to install and the available providers."""
    check_installed(CPU, [CPU])
    with pytest.raises(
        ValueError, match=rf"`{TENSORRT}` \(available: {CPU}\); pip uninstall .*, then pip install onnxruntime-gpu$"
    ):
        check_installed(TENSORRT, [CPU])
    with pytest.raises(ValueError, match="pip install a build of ONNX Runtime that has it"):
        check_installed("XExecutionProvider", [CPU])


def test_providers_that_do_not_start_are_named():
    """A provider that does not start is an error, although ONNX Runtime would use another one."""
    check_started(CUDA, [CUDA, CPU])
    with pytest.raises(ValueError, match=rf"does not start: `{CUDA}` \(started: {CPU}\)"):
        check_started(CUDA, [CPU])


@pytest.mark.parametrize(("provider", "loads"), [(CUDA, True), (TENSORRT, True), (CPU, False), (OPENVINO, False)])
def test_libraries_of_a_gpu_are_loaded_without_noise(provider, loads, capsys):
    """ONNX Runtime loads CUDA and cuDNN where they are installed; what it prints about missing ones is not shown."""
    calls = []
    load_libraries(provider, lambda: (print("Failed to load libcudart.so"), calls.append(provider)))

    assert bool(calls) == loads
    assert capsys.readouterr().out == ""
