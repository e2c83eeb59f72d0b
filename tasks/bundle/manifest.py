"""Manifest of a model directory: `manifest.json`, everything that the server must know about a model."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

from pydantic_core import from_json

from tasks.base import AnyTask, TaskSettings
from tasks.bundle.known_outputs import KnownOutputs
from tasks.bundle.machine import int8_sums_overflow
from tasks.bundle.providers import CPU, CUDA, TENSORRT, Engine, engine_of
from tasks.prompts import PromptSettings
from tasks.registry import settings_from_dict, settings_to_dict
from tasks.schema import Bounds, FieldError, check_bounds, read_fields
from tasks.small_vectors import SmallVectors

MANIFEST_FILE = "manifest.json"
FORMAT = 1
MAX_MANIFEST_BYTES = 16 * 2**20
"""Largest manifest, far above any real one."""
MAX_BATCH_TOKENS = 2**20
MAX_THREADS = 1024
FATAL = 4
"""Log severity of ONNX Runtime: fatal errors only, as others arrive as exceptions."""
SPACE = re.compile(r"[0-9a-f]{16}")
"""Space of vectors: see `space_of`."""
_NOT_OF_SPACE = {"max_seq_length", "query_length", "document_length", "top_k", "similarity_fn_name"}
"""Settings that cut texts or vectors, or say how to compare vectors."""
Precision = Literal["fp32", "fp16", "int8"]
Floats = Literal["fp32", "bf16"]


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Execution settings of the graph: measured at export, used by the server."""

    provider: str = CPU
    provider_options: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Options of the provider, by its own names."""
    max_batch_tokens: Annotated[int, Bounds(least=1, most=MAX_BATCH_TOKENS)] = 512
    """Largest batch in padded tokens."""
    num_threads: Annotated[int, Bounds(least=1, most=MAX_THREADS)] = 1
    """Cores for one batch. As many batches run at the same time as there are cores for."""
    disabled_optimizers: tuple[str, ...] = ()
    """Graph optimizers of ONNX Runtime to switch off at loading."""
    floats: Floats = "fp32"
    """Type in which the engine computes what the graph has in fp32; ONNX Runtime has fp32 only."""

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.floats != "fp32" and self.engine == "onnxruntime":
            raise FieldError(
                lambda named: (
                    f"{named('floats')} must be fp32, or bf16 in another engine than ONNX Runtime: `{self.floats}`"
                )
            )

    @property
    def engine(self) -> Engine:
        """Library that runs the graph."""
        return engine_of(self.provider)

    @property
    def providers(self) -> list[tuple[str, dict[str, str]]]:
        """Providers and options for ONNX Runtime's InferenceSession. TensorRT leaves what it lacks to CUDA."""
        return [(self.provider, dict(self.provider_options)), *([(CUDA, {})] if self.provider == TENSORRT else [])]

    def configure(self, options: Any) -> None:
        """Set these settings in ONNX Runtime's `SessionOptions`, the same at export and in the server.

        It logs fatal errors only, as others arrive as exceptions. With a memory pattern, a run has its arrays in one
        block, planned for its shape. Without one they scatter over the arena as shapes change, which makes batches of
        changing shapes 5 to 20% slower. The plans of all shapes up to 256 tokens take some 35 MB. On GPUs, whose
        batches have many more shapes, there are no plans.
        """
        options.log_severity_level = FATAL
        options.intra_op_num_threads, options.inter_op_num_threads = self.num_threads, 1
        options.enable_mem_pattern = self.provider == CPU
        for name, value in self.session_config.items():
            options.add_session_config_entry(name, value)

    @property
    def session_config(self) -> dict[str, str]:
        """Entries of ONNX Runtime's session configuration.

        Idle threads do not spin. Without VNNI, int8 products use a mode that cannot overflow (with VNNI it would only
        be slower).
        """
        entries = {"session.intra_op.allow_spinning": "0", "session.inter_op.allow_spinning": "0"}
        return entries | ({"session.x64quantprecision": "1"} if int8_sums_overflow() else {})

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], name: str = "execution") -> Execution:
        """Check JSON and return the settings.

        Args:
            name: key of the settings in the manifest, for messages.

        Raises:
            ValueError: naming the key that is missing, unknown or wrong.
        """
        arguments = read_fields(cls, values, prefix=f"{name}.")
        try:
            return cls(**arguments)
        except FieldError as error:
            raise ValueError(error.message(f"{name}.{{}}".format)) from None


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Content of `manifest.json`."""

    name: str
    version: str
    task: str
    settings: TaskSettings
    precision: Precision
    opset: Annotated[int, Bounds(least=1, most=1000)]
    hidden_size: Annotated[int, Bounds(least=1, most=65_536)]
    """Size of the network's hidden states; of the vectors, for embeddings of texts and tokens."""
    vocab_size: Annotated[int, Bounds(least=1, most=2**24)]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    files: Mapping[str, str]
    """SHA-256 of each file, hexadecimal."""
    execution: Execution = field(default_factory=Execution)
    fallback: Execution | None = None
    """ONNX Runtime settings of the fallback graph, for servers without the engine; None if there is no such graph."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Digests of checkpoint and data, configuration, versions."""
    scores: Mapping[str, Any] = field(default_factory=dict)
    """Scores on the dev set, and differences between the graph and PyTorch."""
    truncate: bool = False
    """True if texts that are too long are truncated unless a request overrides it, as in the evaluation."""
    space: str = ""
    """Space of the vectors, see `space_of`; a student's may be its teacher's. Empty if it is not known, and for tasks
    without vectors."""
    small_vectors: SmallVectors | None = None
    """Calibration of int8 vectors; None for other tasks than embedding, and without enough texts at export."""
    known_outputs: KnownOutputs | None = None
    """PyTorch's outputs for the known input, and how far from them the graph may be; None if the export was older."""

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.space and not SPACE.fullmatch(self.space):
            raise ValueError(f"space must be 16 hexadecimal digits: `{self.space}`")
        if self.small_vectors and len(self.small_vectors.scales) != self.hidden_size:
            raise ValueError(f"small_vectors needs `{self.hidden_size}` scales, not `{len(self.small_vectors.scales)}`")

    @property
    def in_onnx_runtime(self) -> Execution:
        """Execution settings for ONNX Runtime: the default ones if only another engine was measured."""
        if self.execution.engine == "onnxruntime":
            return self.execution
        return self.fallback or Execution()

    def to_json(self) -> str:
        """Return the text of `manifest.json`.

        Raises:
            ValueError: for NaN and infinity, which other readers refuse.
        """
        values = {"format": FORMAT} | asdict(self) | {"settings": settings_to_dict(self.settings)}
        return json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Parse the text of `manifest.json`.

        Raises:
            ValueError: naming the key that is missing, unknown or wrong.
        """
        values = from_json(text, allow_inf_nan=False)
        json.dumps(values, allow_nan=False)  # `1e999` is infinity, too
        if not isinstance(values, dict) or values.get("format") != FORMAT:
            raise ValueError(f"not a manifest of format {FORMAT}")
        del values["format"]
        arguments = read_fields(cls, values)
        if arguments.get("small_vectors") is not None:
            found = read_fields(SmallVectors, arguments["small_vectors"], prefix="small_vectors.")
            arguments["small_vectors"] = SmallVectors(**found)
        if arguments.get("known_outputs") is not None:
            found = read_fields(KnownOutputs, arguments["known_outputs"], prefix="known_outputs.")
            arguments["known_outputs"] = KnownOutputs(**found)
        if arguments.get("fallback") is not None:
            arguments["fallback"] = Execution.from_dict(arguments["fallback"], "fallback")
        arguments["execution"] = Execution.from_dict(values["execution"])
        arguments["settings"] = settings_from_dict(values["task"], values["settings"])
        return cls(**arguments)


def space_of(task: AnyTask, weights: str) -> str:
    """Return the space of a model's vectors: equal for models whose vectors can be compared.

    It depends on the weights, the tokenizer, and the settings that decide where a text lands: pooling, layers, prompts,
    normalisation. Not on graph, precision or maximum length. Settings with their default value do not count, so that
    settings of later versions change no space.

    Args:
        task: task of the model, with its tokenizer and settings.
        weights: SHA-256 of the weights in the checkpoint, hexadecimal.

    Returns:
        16 hexadecimal digits; empty for a task without vectors.
    """
    if not isinstance(task.settings, PromptSettings):
        return ""
    default = settings_to_dict(type(task.settings)())
    settings = {
        name: value
        for name, value in settings_to_dict(task.settings).items()
        if name not in _NOT_OF_SPACE and value != default[name]
    }
    parts = json.dumps([task.name, weights, task.tokenizer.digest, settings], sort_keys=True)
    return hashlib.sha256(parts.encode()).hexdigest()[:16]
