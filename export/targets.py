"""Export targets: the precisions and graph variants each one supports, and its default configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast, get_args

from export.variant import (
    PROVIDER_OPTIONS,
    Attention,
    Configuration,
    GraphPrecision,
    GraphVariant,
    MatMulPrecision,
)
from tasks.machine import available_cpus
from tasks.manifest import Execution, Precision
from tasks.providers import CPU, CUDA, OPENVINO, TENSORRT

TargetName = Literal["cpu", "cuda", "openvino"]


@dataclass(frozen=True, kw_only=True)
class Target:
    """Kind of machine to export for, with its ONNX Runtime execution provider."""

    name: TargetName
    provider: str
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

    def check(self, precision: Precision) -> None:
        """Raise if the target does not support a precision.

        Raises:
            ValueError: with the reason and an alternative.
        """
        if reason := self.unsupported.get(precision):
            raise ValueError(f"--target {self.name} does not support --precision {precision}: {reason}")

    @property
    def pads(self) -> bool:
        """True if batches have several texts, and so padding."""
        return max(self.batch_tokens) > 1

    def without_padding(self) -> Target:
        """Return the target for a network whose outputs depend on padding: each text is a batch of its own."""
        return replace(self, batch_tokens=(1,), default_batch_tokens=1)

    @property
    def execution(self) -> Execution:
        """Default execution settings, often the fastest."""
        return Execution(
            provider=self.provider,
            provider_options=PROVIDER_OPTIONS[self.provider],
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

TARGETS: Mapping[TargetName, Target] = {
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
        name="openvino",
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
    return Configuration(target.variant, target.execution)


def target_named(name: str) -> Target:
    """Return the target of a name.

    Raises:
        ValueError: listing the known names.
    """
    if name not in TARGETS:
        raise ValueError(f"unknown target: `{name}` (one of: {', '.join(TARGETS)})")
    return TARGETS[cast(TargetName, name)]


def target_of(execution: Execution) -> Target:
    """Return the target a model directory was exported for.

    Raises:
        ValueError: if no target uses its execution provider.
    """
    provider = CUDA if execution.provider == TENSORRT else execution.provider
    found = [target for target in TARGETS.values() if target.provider == provider]
    if not found:
        raise ValueError(f"no export target uses `{provider}` (targets: {', '.join(TARGETS)})")
    return found[0]
