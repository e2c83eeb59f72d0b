"""Choices for the graph of a network: precision, operators, execution settings, and the targets that support them.

Quality decides on the precision (`export.quality_gate`), speed on the rest (`export.autotune`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np

from tasks.bundle.machine import BF16, available_cpus, cpu_flags, int8_sums_overflow
from tasks.bundle.manifest import Execution, Floats, Precision
from tasks.bundle.providers import CPU, CUDA, TENSORRT, Engine, engine_of

MatMulPrecision = Literal["fp32", "fp16", "dynamic int8", "static int8", "SmoothQuant int8"]
"""Precision of the matrix products with weights.

- fp16: also everything between these products.
- dynamic int8: activations are quantised with their range in the current batch.
- static int8: activations are quantised with a calibrated range, so outputs do not depend on the rest of the batch.
- SmoothQuant int8: static int8 after smoothing the channels of activations, see `export.smoothquant`.
"""
Attention = Literal["MatMul", "fused-QKV MatMul", "MultiHeadAttention", "fused-QKV MultiHeadAttention", "Attention"]
"""Operators of the attention: plain MatMul and Softmax, or a fused operator of ONNX Runtime.

fused-QKV: one matrix product computes query, key and value. `Attention` contains that product as well.
"""
WORD_EMBEDDINGS, DECODER = "bert.embeddings.word", "mlm.decoder"

PROVIDER_OPTIONS: Mapping[str, Mapping[str, str]] = {
    CPU: {},
    # Keep fp32 at full precision, and accumulate the norms of fp16 in fp32.
    CUDA: {"use_tf32": "0", "enable_skip_layer_norm_strict_mode": "1"},
    TENSORRT: {"trt_fp16_enable": "1", "trt_layer_norm_fp32_fallback": "1", "trt_timing_cache_enable": "1"},
}
"""Options passed to execution providers; others get none."""


@dataclass(frozen=True, kw_only=True)
class GraphPrecision:
    """Precision of a graph's matrix products and embeddings."""

    matmul: MatMulPrecision = "fp32"
    fp32_layers: tuple[str, ...] = ()
    """Layers kept in fp32, by their names in `training.model`; `bert.embeddings.word` stands for the word embeddings,
    which int8 graphs otherwise store as int8 to save memory."""

    @property
    def is_int8(self) -> bool:
        """True if matrix products with weights run in int8."""
        return self.matmul.endswith("int8")

    @property
    def is_static(self) -> bool:
        """True if activations are quantised with calibrated ranges."""
        return self.matmul in ("static int8", "SmoothQuant int8")

    @property
    def dtype(self) -> Any:
        """Type of the floats between embeddings and head."""
        return np.float16 if self.matmul == "fp16" else np.float32

    @property
    def name(self) -> str:
        """Short description, for example `static int8, 2 layers in fp32`."""
        if not self.fp32_layers:
            return self.matmul
        return f"{self.matmul}, {len(self.fp32_layers)} layer{'s' * (len(self.fp32_layers) > 1)} in fp32"

    @property
    def int8_embeddings(self) -> bool:
        """True if the word embeddings are stored as int8. The decoder of masked-lm shares their table."""
        return self.is_int8 and not {WORD_EMBEDDINGS, DECODER} & set(self.fp32_layers)


@dataclass(frozen=True, kw_only=True)
class GraphVariant:
    """Operators of a graph. All variants compute the same function, except for the order of sums."""

    attention: Attention = "fused-QKV MatMul"
    skip_layer_norm: bool = False
    """Fuse the residual connection and LayerNorm."""
    embed_layer_norm: bool = False
    """Fuse the sum of the embeddings and LayerNorm; has no effect on int8 word embeddings."""
    bias_gelu: bool = False
    """Add the bias in the Gelu operator instead of the matrix product."""
    standard: bool = False
    """Use standard ONNX operators only, for execution providers without ONNX Runtime's own operators."""

    def __post_init__(self) -> None:
        fused = self.skip_layer_norm or self.embed_layer_norm or self.bias_gelu
        assert not (self.standard and (fused or self.attention.endswith("Attention"))), self

    def with_value(self, name: str, value: Any) -> GraphVariant:
        """Return a copy with another value of a field; a fused operator makes the copy non-standard."""
        if name == "standard" and value:
            return self.as_standard()
        is_fused = name != "standard" and (value is True or str(value).endswith("Attention"))
        return replace(self, **{name: value} | ({"standard": False} if is_fused else {}))

    def as_standard(self) -> GraphVariant:
        """Return the closest variant that uses standard ONNX operators only."""
        attention: Attention = "fused-QKV MatMul" if self.attention.endswith("Attention") else self.attention
        return replace(
            self, attention=attention, skip_layer_norm=False, embed_layer_norm=False, bias_gelu=False, standard=True
        )


@dataclass(frozen=True)
class Configuration:
    """A graph variant and the settings to execute it with: what the autotuner chooses."""

    variant: GraphVariant
    execution: Execution
    fallback: Configuration | None = None
    """Configuration of a second graph, for servers without the engine; None for ONNX Runtime, which needs none."""

    def values(self) -> dict[str, Any]:
        """Return all fields of both parts, by name."""
        return {**vars(self.variant), **vars(self.execution)}

    def differences(self, other: Configuration) -> dict[str, Any]:
        """Return the fields whose values differ from another configuration's."""
        others = other.values()
        return {name: value for name, value in self.values().items() if value != others[name]}

    def describe(self, default: Configuration) -> str:
        """List the differences from the default configuration, for example `attention: Attention, bias gelu: yes`."""
        differences = self.differences(default).items()
        return ", ".join(f"{name.replace('_', ' ')}: {format_value(value)}" for name, value in differences) or "default"

    def with_value(self, name: str, value: Any) -> Configuration:
        """Return a copy with another value of one field. TensorRT only takes standard graphs."""
        if name == "provider":
            execution = replace(self.execution, provider=value, provider_options=PROVIDER_OPTIONS.get(value, {}))
            variant = self.variant.as_standard() if value == TENSORRT else self.variant
            return replace(self, variant=variant, execution=execution)
        if hasattr(self.variant, name):
            variant = self.variant.with_value(name, value)
            return replace(self, variant=variant.as_standard() if self.execution.provider == TENSORRT else variant)
        return replace(self, execution=replace(self.execution, **{name: value}))

    def session_key(self) -> Configuration:
        """Return the configuration without what needs no separate session: the batch size cap and the fallback."""
        return replace(self.with_value("max_batch_tokens", 1), fallback=None)


def format_value(value: Any) -> str:
    """Format the value of a field for people."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value)


TargetName = Literal["cpu", "cuda"]
CPU_FLOATS_ONLY = "CPUs convert fp16 to fp32, which is slower than fp32; use fp32 or int8"


@dataclass(frozen=True, kw_only=True)
class Target:
    """Kind of machine to export for, with an engine for it."""

    name: TargetName
    provider: str
    """Execution provider of ONNX Runtime, or name of another engine."""
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
    needs_vnni: bool = False
    """True if the engine adds products of int8 in 16 bits on x86 CPUs without VNNI, where the sums overflow."""
    has_bf16: bool = False
    """True if the engine computes in bf16 between matrix products, on CPUs that have it."""
    floats: Sequence[Floats] = ("fp32",)
    """Types to try for what the graph has in fp32; more than fp32 only where `quality_gate.judged_floats` allows it."""

    def check(self, precision: Precision) -> None:
        """Raise if the target does not support a precision.

        Raises:
            ValueError: with the reason and an alternative.
        """
        if reason := self.unsupported.get(precision):
            raise ValueError(f"{self.flag} does not support --precision {precision}: {reason}")
        if precision == "int8" and self.needs_vnni and int8_sums_overflow():
            raise ValueError(f"{self.flag} does not support int8 here: sums overflow without VNNI")

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
        return f"--target {self.name}" if self.engine == "onnxruntime" else f"--engine {self.engine}"

    @property
    def pads(self) -> bool:
        """True if batches have several texts, and so padding."""
        return max(self.batch_tokens) > 1

    def without_padding(self) -> Target:
        """Return the target for a network whose outputs depend on padding: each text is a separate batch."""
        return replace(self, batch_tokens=(1,), default_batch_tokens=1)

    def with_bf16(self) -> Target:
        """Return the target with bf16 in the race, where engine and CPU compute it."""
        return replace(self, floats=get_args(Floats)) if self.has_bf16 and BF16 & cpu_flags() else self

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
            yield "attention", get_args(Attention)
            yield "skip_layer_norm", (False, True)
            if not precision.int8_embeddings:
                yield "embed_layer_norm", (False, True)
            yield "bias_gelu", (False, True)
            if precision.is_static:
                yield "standard", (False, True)  # ONNX Runtime fuses QDQ itself
        if self.disabled_optimizers:
            yield "disabled_optimizers", (self.disabled_optimizers, ())
        if self.provider == CUDA and precision.matmul == "fp16":  # TensorRT computes fp32 as TF32
            yield "provider", (CUDA, TENSORRT)
        if len(self.floats) > 1:
            yield "floats", self.floats
        yield "max_batch_tokens", self.batch_tokens
        if num_cores > 1 and not self.single_batch:
            yield "num_threads", (1, num_cores)
