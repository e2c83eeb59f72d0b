"""Export a network of transformers with Optimum."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from onnx import TensorProto, ValueInfoProto, helper
from torch import Tensor, nn

from export.optimum_export.model import TransformersModel, quiet
from export.optimum_export.network import ExportedNetwork, read_graph
from export.storage import Graph
from tasks import AnyTask
from tasks.base import first_line
from tasks.batching import RunModel
from tasks.embedding import Embedding
from tasks.features import INPUT_NAMES, Features, collate
from training.checkpoint.evaluation import torch_run
from training.model.vectors import with_task_outputs

_MAX_CHANGE = 1e-4
"""Largest change of an output by padding that counts as rounding."""
_PADDED_LENGTH = 32


def export_network(model: TransformersModel, task: AnyTask) -> ExportedNetwork:
    """Export a network to a graph with our inputs and the task's outputs.

    Raises:
        ValueError: if Optimum cannot export it; the message is one line.
    """
    try:
        pads = not depends_on_padding(task, torch_run(model, task))
    except Exception as error:  # of many kinds, such as shapes that do not fit
        raise ValueError(
            f"a `{model.config.model_type}` fails with some lengths, even in PyTorch: {reason_of(error)}"
        ) from error
    return ExportedNetwork(model.config, task, {"fp32": _export(model, task)}, pads)


def depends_on_padding(task: AnyTask, run: RunModel) -> bool:
    """Return whether a sequence gets other outputs when it is padded."""
    length = min(_PADDED_LENGTH, task.settings.max_seq_length)
    ids = np.random.default_rng(0).integers(0, task.tokenizer.vocab_size, length // 2)
    features = [Features(input_ids=ids, token_type_ids=np.zeros_like(ids))]
    alone, padded = (run(collate(features, pad_id=task.tokenizer.pad_id, length=size)) for size in (0, length))
    kept = (slice(None), slice(len(ids))) if task.token_outputs else ...
    return any(
        not np.allclose(padded[name][kept], alone[name], rtol=_MAX_CHANGE, atol=_MAX_CHANGE)
        for name in task.output_names
    )


class _Traced(nn.Module):
    """Network with all outputs of its graph, in their order, and with transformers' config, which Optimum reads."""

    def __init__(self, model: TransformersModel, task: AnyTask) -> None:
        super().__init__()
        self.model = with_task_outputs(model, task.settings)
        self.config = model.network.config
        self.is_embedding = isinstance(task, Embedding)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> dict[str, Tensor]:
        outputs: dict[str, Tensor] = self.model(input_ids, attention_mask, token_type_ids)
        if self.is_embedding:  # see export.interop
            outputs["last_hidden_state"] = outputs["sentence_embedding"][:, None]
        return outputs


def _export(model: TransformersModel, task: AnyTask) -> Graph:
    traced = _Traced(model, task).eval()
    with tempfile.TemporaryDirectory() as folder, quiet():
        path = Path(folder, "model.onnx")
        from optimum.exporters.onnx import export  # slow to import, and warns

        try:
            export(traced, _create_config(model, task), path, disable_dynamic_axes_fix=True)
        except (OSError, MemoryError):
            raise
        except Exception as error:  # tracing raises errors of every kind
            raise ValueError(f"Optimum cannot export a `{model.config.model_type}`: {reason_of(error)}") from error
        graph = read_graph(path)
    del graph.proto.graph.output[:]
    graph.proto.graph.output.extend(_describe_outputs(traced, task))
    return graph


def _describe_outputs(traced: nn.Module, task: AnyTask) -> Iterator[ValueInfoProto]:
    """Yield names and shapes of the outputs; tracing does not know all sizes."""
    axes = ["batch", "length"] if task.token_outputs else ["batch"]
    inputs = torch.ones(len(INPUT_NAMES), 1, 1, dtype=torch.long)
    with torch.inference_mode():
        for name, output in traced(*inputs).items():
            shape = [*axes, *output.shape[len(axes) :]]
            yield helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def find_config_class(model_type: str) -> Any:
    """Return Optimum's configuration of a family.

    Raises:
        ValueError: if Optimum has none.
    """
    with quiet():
        import optimum.exporters.onnx.model_configs  # noqa: F401  # registers them
        from optimum.exporters.tasks import TasksManager

    try:
        constructor = TasksManager.get_exporter_config_constructor(
            "onnx", model_type=model_type, task="feature-extraction", library_name="transformers"
        )
    except (KeyError, ValueError) as error:
        raise ValueError(f"Optimum cannot export a `{model_type}`: its exporter does not know this family") from error
    return constructor.func


def reason_of(error: Exception) -> str:
    """Return the first line of an error of a library."""
    return first_line(error)[:200]


def _create_config(model: TransformersModel, task: AnyTask) -> Any:
    """Return the family's configuration of Optimum, with our inputs and outputs."""
    batch, tokens = {0: "batch"}, {0: "batch", 1: "length"}
    names = (*task.output_names, "last_hidden_state") if isinstance(task, Embedding) else task.output_names

    class Config(find_config_class(model.config.model_type)):  # type: ignore[misc]
        inputs = dict.fromkeys(INPUT_NAMES, tokens)
        outputs = dict.fromkeys(names, tokens if task.token_outputs else batch)

    return Config(model.network.config, task="feature-extraction", int_dtype="int32")
