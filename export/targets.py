"""What an export may be made for: which numbers and forms of a graph each target takes, and how it runs them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

from export.variant import Attention, Form, Numbers, Products
from tasks.machine import available_cpus
from tasks.manifest import Execution, Precision
from tasks.providers import CPU, CUDA, OPENVINO, TENSORRT

TargetName = Literal["cpu", "cuda", "openvino"]

PROVIDER_OPTIONS: Mapping[str, Mapping[str, str]] = {
    CPU: {},
    # fp32 is fp32, and norms of fp16 add up in fp32.
    CUDA: {"use_tf32": "0", "enable_skip_layer_norm_strict_mode": "1"},
    TENSORRT: {"trt_fp16_enable": "1", "trt_layer_norm_fp32_fallback": "1", "trt_timing_cache_enable": "1"},
    # Left alone, it takes bf16 for fp32 where the CPU has it.
    OPENVINO: {"device_type": "CPU", "load_config": '{"CPU": {"INFERENCE_PRECISION_HINT": "f32"}}'},
}


@dataclass(frozen=True, kw_only=True)
class Target:
    """A kind of machine, and the ONNX Runtime that is installed there."""

    name: TargetName
    provider: str
    batch_tokens: Sequence[int]
    """Caps of batches to try."""
    usual_batch_tokens: int
    products: Mapping[Precision, Sequence[Products]]
    """Of each precision that there is, the numbers that may be taken, best first."""
    refusals: Mapping[Precision, str]
    """Of each other, the reason."""
    form: Form = field(default_factory=Form)
    """Often fast."""
    disabled_optimizers: tuple[str, ...] = ()
    one_batch: bool = False
    """One batch at a time, rather than one on each core."""

    def check(self, precision: Precision) -> None:
        """Refuse numbers that the target does not take.

        Raises:
            ValueError: saying why, and what to take.
        """
        if reason := self.refusals.get(precision):
            raise ValueError(f"--precision {precision} is not for --target {self.name}: {reason}")

    @property
    def execution(self) -> Execution:
        """Often fast."""
        return Execution(
            provider=self.provider,
            provider_options=PROVIDER_OPTIONS[self.provider],
            max_batch_tokens=self.usual_batch_tokens,
            num_threads=available_cpus() if self.one_batch else 1,
            disabled_optimizers=self.disabled_optimizers,
        )

    def alternatives(self, numbers: Numbers, num_cores: int) -> Iterator[tuple[str, Sequence[Any]]]:
        """What can be chosen of form and execution, by name, most weighty first."""
        if self.form.standard:
            yield "attention", ("products", "joint products")
        else:
            yield from _fused(numbers)
        if self.disabled_optimizers:
            yield "disabled_optimizers", (self.disabled_optimizers, ())
        if self.provider == CUDA and numbers.products == "fp16":  # TensorRT's fp32 is TF32
            yield "provider", (CUDA, TENSORRT)
        yield "max_batch_tokens", self.batch_tokens
        if num_cores > 1 and not self.one_batch:
            yield "num_threads", (1, num_cores)


def _fused(numbers: Numbers) -> Iterator[tuple[str, Sequence[Any]]]:
    """Operators that ONNX Runtime has for several of ONNX's."""
    yield "attention", get_args(Attention)
    yield "skip_layer_norm", (False, True)
    if not numbers.int8_embeddings:
        yield "embed_layer_norm", (False, True)
    yield "bias_gelu", (False, True)
    if numbers.products in ("static int8", "balanced int8"):
        yield "standard", (False, True)  # what the runtime makes of QDQ


_NO_FP16 = "CPUs compute it by way of fp32, slower than fp32 itself; take fp32, or int8"

TARGETS: Mapping[TargetName, Target] = {
    "cpu": Target(
        name="cpu",
        provider=CPU,
        batch_tokens=(1, 128, 256, 512, 1024),
        usual_batch_tokens=256,
        products={"fp32": ("fp32",), "int8": ("static int8", "dynamic int8")},
        refusals={"fp16": _NO_FP16},
        disabled_optimizers=("SkipLayerNormFusion",),
    ),
    "cuda": Target(
        name="cuda",
        provider=CUDA,
        batch_tokens=(2048, 4096, 8192, 16384),
        usual_batch_tokens=8192,
        products={"fp32": ("fp32",), "fp16": ("fp16",)},
        refusals={"int8": "ONNX Runtime's CUDA provider has no products of int8 with scales and bias; take fp16"},
        form=Form(attention="Attention", skip_layer_norm=True, embed_layer_norm=True, bias_gelu=True),
        one_batch=True,
    ),
    "openvino": Target(
        name="openvino",
        provider=OPENVINO,
        batch_tokens=(128, 256, 512, 1024),
        usual_batch_tokens=512,
        products={"fp32": ("fp32",), "int8": ("static int8",)},
        refusals={"fp16": _NO_FP16},
        form=Form(standard=True),
    ),
}


def target_named(name: str) -> Target:
    """Look a target up.

    Raises:
        ValueError: naming those that there are.
    """
    if name not in TARGETS:
        raise ValueError(f"unknown target: `{name}` (one of: {', '.join(TARGETS)})")
    return TARGETS[cast(TargetName, name)]


def target_of(execution: Execution) -> Target:
    """That of a model directory.

    Raises:
        ValueError: when no target runs on its execution provider.
    """
    provider = CUDA if execution.provider == TENSORRT else execution.provider
    found = [target for target in TARGETS.values() if target.provider == provider]
    if not found:
        raise ValueError(f"no export target runs on `{provider}` (targets: {', '.join(TARGETS)})")
    return found[0]
