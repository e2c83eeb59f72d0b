"""Export targets: the precisions and graph variants each one supports, and its default configuration.

A target is a kind of machine and an engine. CPUs have two, of which the export takes the faster one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from export.variant import (
    PROVIDER_OPTIONS,
    Attention,
    Configuration,
    GraphPrecision,
    GraphVariant,
    MatMulPrecision,
)
from tasks.bundle.machine import BF16, available_cpus, cpu_flags
from tasks.bundle.manifest import Execution, Floats, Precision
from tasks.bundle.providers import CPU, CUDA, OPENVINO, TENSORRT, Engine, engine_of, has_openvino

TargetName = Literal["cpu", "cuda"]
EngineName = Literal["auto", "onnxruntime", "openvino"]


@dataclass(frozen=True, kw_only=True)
class Target:
    """Kind of machine to export for, with an engine for it."""

    name: TargetName
    provider: str
    """Execution provider of ONNX Runtime, or OpenVINO."""
    batch_tokens: Sequence[int]
    """Values of `max_batch_tokens` to try."""
    default_batch_tokens: int
    matmul_precisions: Mapping[Precision, Sequence[MatMulPrecision]]
    """Supported precision -> precisions of matrix products to try, best first."""
    unsupported: Mapping[Precision, str]
    """Unsupported precision -> reason and alternative."""
    variant: GraphVariant = field(default_factory=GraphVariant)
    """Default graph variant, often the fastest."""
    disabled_optimizers: tuple[str, ...] = ()
    single_batch: bool = False
    """True if one batch runs at a time on all cores, rather than one batch per core."""
    floats: Sequence[Floats] = ("fp32",)
    """Types to try for what the graph has in fp32; more than fp32 only where `quality_gate.judged_floats` allows it."""

    def check(self, precision: Precision) -> None:
        """Raise if the target does not support a precision.

        Raises:
            ValueError: with the reason and an alternative.
        """
        if reason := self.unsupported.get(precision):
            raise ValueError(f"{self.flag} does not support --precision {precision}: {reason}")

    def runs(self, precision: GraphPrecision) -> bool:
        """Return whether the target runs graphs of a precision."""
        kind = "static int8" if precision.is_static else precision.matmul
        return any(kind in kinds for kinds in self.matmul_precisions.values())

    @property
    def engine(self) -> Engine:
        """Library that runs the graph."""
        return engine_of(self.provider)

    @property
    def flag(self) -> str:
        """Flag that chooses this target."""
        return "--engine openvino" if self.engine == "openvino" else f"--target {self.name}"

    @property
    def pads(self) -> bool:
        """True if batches have several texts, and so padding."""
        return max(self.batch_tokens) > 1

    def without_padding(self) -> Target:
        """Return the target for a network whose outputs depend on padding: each text is a separate batch."""
        return replace(self, batch_tokens=(1,), default_batch_tokens=1)

    def with_bf16(self) -> Target:
        """Return the target with bf16 in the race, where engine and CPU compute it."""
        if self.engine == "openvino" and BF16 & cpu_flags():
            return replace(self, floats=get_args(Floats))
        return self

    @property
    def execution(self) -> Execution:
        """Default execution settings, often the fastest."""
        return Execution(
            provider=self.provider,
            provider_options=PROVIDER_OPTIONS.get(self.provider, {}),
            max_batch_tokens=self.default_batch_tokens,
            num_threads=available_cpus() if self.single_batch else 1,
            disabled_optimizers=self.disabled_optimizers,
        )

    def alternatives(self, precision: GraphPrecision, num_cores: int) -> Iterator[tuple[str, Sequence[Any]]]:
        """Yield the fields of a configuration with the values to try, most influential first."""
        if self.variant.standard:
            yield "attention", ("MatMul", "fused-QKV MatMul")
        else:
            yield from _fused_operators(precision)
        if self.disabled_optimizers:
            yield "disabled_optimizers", (self.disabled_optimizers, ())
        if self.provider == CUDA and precision.matmul == "fp16":  # TensorRT computes fp32 as TF32
            yield "provider", (CUDA, TENSORRT)
        if len(self.floats) > 1:
            yield "floats", self.floats
        yield "max_batch_tokens", self.batch_tokens
        if num_cores > 1 and not self.single_batch:
            yield "num_threads", (1, num_cores)


def _fused_operators(precision: GraphPrecision) -> Iterator[tuple[str, Sequence[Any]]]:
    yield "attention", get_args(Attention)
    yield "skip_layer_norm", (False, True)
    if not precision.int8_embeddings:
        yield "embed_layer_norm", (False, True)
    yield "bias_gelu", (False, True)
    if precision.is_static:
        yield "standard", (False, True)  # ONNX Runtime fuses QDQ itself


_NO_FP16 = "CPUs convert fp16 to fp32, which is slower than fp32; use fp32 or int8"

TARGETS: Mapping[TargetName | Literal["openvino"], Target] = {
    "cpu": Target(
        name="cpu",
        provider=CPU,
        batch_tokens=(1, 128, 256, 512, 1024),
        default_batch_tokens=256,
        matmul_precisions={"fp32": ("fp32",), "int8": ("static int8", "dynamic int8")},
        unsupported={"fp16": _NO_FP16},
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
    "openvino": Target(
        name="cpu",
        provider=OPENVINO,
        batch_tokens=(128, 256, 512, 1024),
        default_batch_tokens=512,
        matmul_precisions={"fp32": ("fp32",), "int8": ("static int8",)},
        unsupported={"fp16": _NO_FP16},
        variant=GraphVariant(standard=True),
    ),
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
        ValueError: when a name is unknown, or the engine does not run on such machines.
    """
    for what, value, known in (("target", name, get_args(TargetName)), ("engine", engine, get_args(EngineName))):
        if value not in known:
            hint = "; use --engine openvino" if (what, value) == ("target", "openvino") else ""
            raise ValueError(f"unknown {what}: `{value}` (one of: {', '.join(known)}){hint}")
    found = [target for target in TARGETS.values() if target.name == name and engine in ("auto", target.engine)]
    if not found:
        raise ValueError(f"--engine {engine} does not run on --target {name}; use --engine onnxruntime")
    if engine == "auto" and not has_openvino():
        found = [target for target in found if target.engine != "openvino"]
    return tuple(found)


def competed(target: Target, trials: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether trials, as a manifest records them, compared several engines for a target's machine."""
    rivals = tuple(other.provider for other in TARGETS.values() if other.name == target.name and other.provider != CPU)
    return any(trial["name"].startswith(rivals) for trial in trials)


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
