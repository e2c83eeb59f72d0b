"""Errors for missing engines and providers."""

from __future__ import annotations

import pytest

from tasks.bundle.manifest import Execution
from tasks.bundle.providers import (
    CPU,
    CUDA,
    TENSORRT,
    check_installed,
    check_openvino,
    check_started,
    load_libraries,
)


def test_providers_get_the_options_of_the_manifest():
    """Providers get the options of the manifest, and TensorRT falls back to CUDA."""
    assert Execution().providers == [(CPU, {})]
    assert Execution(provider=CUDA, provider_options={"use_tf32": "0"}).providers == [(CUDA, {"use_tf32": "0"})]
    assert [name for name, _ in Execution(provider=TENSORRT).providers] == [TENSORRT, CUDA]


def test_missing_providers_are_named_with_their_package(monkeypatch):
    """Errors for missing providers name the package to install and the available providers."""
    check_installed(CPU, [CPU])
    with pytest.raises(
        ValueError, match=rf"`{TENSORRT}` \(available: {CPU}\); pip uninstall .*, then pip install onnxruntime-gpu$"
    ):
        check_installed(TENSORRT, [CPU])
    with pytest.raises(ValueError, match="pip install a build of ONNX Runtime that has it"):
        check_installed("XExecutionProvider", [CPU])
    monkeypatch.setattr("tasks.bundle.providers.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"engine is not installed: `openvino`; pip install openvino$"):
        check_openvino()


def test_providers_that_do_not_start_are_named():
    """A provider that does not start is an error, although ONNX Runtime would use another one."""
    check_started(CUDA, [CUDA, CPU])
    with pytest.raises(ValueError, match=rf"does not start: `{CUDA}` \(started: {CPU}\)"):
        check_started(CUDA, [CPU])


@pytest.mark.parametrize(("provider", "loads"), [(CUDA, True), (TENSORRT, True), (CPU, False)])
def test_libraries_of_a_gpu_are_loaded_without_noise(provider, loads, capsys):
    """ONNX Runtime loads CUDA and cuDNN where they are installed; what it prints about missing ones is not shown."""
    calls = []
    load_libraries(provider, lambda: (print("Failed to load libcudart.so"), calls.append(provider)))

    assert bool(calls) == loads
    assert capsys.readouterr().out == ""
