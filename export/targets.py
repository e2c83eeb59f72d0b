"""Export targets: kinds of machines, and engines for them. CPUs have several, of which the export takes the fastest."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

from export.engines import RIVALS
from export.variant import CPU_FLOATS_ONLY, Configuration, GraphVariant, Target
from tasks.bundle.manifest import Execution
from tasks.bundle.providers import CPU, CUDA, TENSORRT

TARGETS: Mapping[str, Target] = {
    "cpu": Target(
        name="cpu",
        provider=CPU,
        batch_tokens=(1, 128, 256, 512, 1024),
        default_batch_tokens=256,
        matmul_precisions={"fp32": ("fp32",), "int8": ("static int8", "dynamic int8")},
        unsupported={"fp16": CPU_FLOATS_ONLY},
        disabled_optimizers=("SkipLayerNormFusion",),
    ),
    "cuda": Target(
        name="cuda",
        provider=CUDA,
        batch_tokens=(2048, 4096, 8192, 16384),
        default_batch_tokens=8192,
        matmul_precisions={"fp32": ("fp32",), "fp16": ("fp16",)},
        unsupported={"int8": "ONNX Runtime's CUDA provider has no int8 matrix product with scales and bias; use fp16"},
        variant=GraphVariant(attention="Attention", skip_layer_norm=True, embed_layer_norm=True, bias_gelu=True),
        single_batch=True,
    ),
    **RIVALS,
}


def default_configuration(target: Target = TARGETS["cpu"]) -> Configuration:
    """Return the default configuration of a target, which `--no-tune` uses."""
    fallback = None
    if target.engine != "onnxruntime":
        cpu = TARGETS["cpu"]
        fallback = default_configuration(cpu if target.pads else cpu.without_padding())
    return Configuration(target.variant, target.execution, fallback)


def targets_for(name: str, engine: str = "auto") -> tuple[Target, ...]:
    """Return the targets among which the fastest is chosen; precision and quality are decided with the first.

    Args:
        name: kind of machine, a `TargetName`.
        engine: an `EngineName`; `auto` for every engine that is installed.

    Raises:
        ValueError: when the engine does not run on such machines.
    """
    found = [target for target in TARGETS.values() if target.name == name and engine in ("auto", target.engine)]
    if not found:
        raise ValueError(f"--engine {engine} does not run on --target {name}; use --engine onnxruntime")
    return tuple(
        target for target in found if engine != "auto" or target.engine == "onnxruntime" or find_spec(target.engine)
    )


def target_of(execution: Execution) -> Target:
    """Return the target that runs a model directory's graph.

    Raises:
        ValueError: if no target uses its execution provider.
    """
    provider = CUDA if execution.provider == TENSORRT else execution.provider
    found = [target for target in TARGETS.values() if target.provider == provider]
    if not found:
        known = ", ".join(target.provider for target in TARGETS.values())
        raise ValueError(f"no export target uses `{provider}` (known: {known})")
    return found[0]
