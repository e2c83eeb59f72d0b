"""transformers' network of a task with the inputs and outputs of `training.model.heads`, and its graphs by Optimum."""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import torch
from onnx import ModelProto, TensorProto, ValueInfoProto, helper, numpy_helper
from torch import Tensor, nn

from export.storage import MAX_FILE_BYTES, MIN_WEIGHT_BYTES, Graph, external_initializers, save_graph
from export.variant import MatMulPrecision
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


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress Python warnings, and log records below ERROR, in the whole process, while libraries load and trace."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


@dataclass(frozen=True, kw_only=True)
class ExportedConfig:
    """Description of a network for manifests."""

    model_type: str
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int


class TransformersModel(nn.Module):
    """Network of a task, called like a `BertModel`."""

    def __init__(self, network: nn.Module, config: ExportedConfig, task: str, *, reads_token_types: bool) -> None:
        """Wrap an instance of the family's class in transformers, which may not read `token_type_ids`."""
        super().__init__()
        self.network, self.config, self.task = network, config, task
        self.reads_token_types = reads_token_types
        self.dense = nn.ModuleDict()
        """Linear layers over the pooled vector, as of `BertModel`."""

    def bert(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """Return the last hidden states, [B, L, D]."""
        states: Tensor = self._call(input_ids, attention_mask, token_type_ids).last_hidden_state
        return states

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> dict[str, Tensor]:
        """Return the task's outputs by name."""
        if self.task == "embedding":
            return {"last_hidden_state": self.bert(input_ids, attention_mask, token_type_ids)}
        if self.task == "multiple-choice":  # each sequence is the only choice of an example
            outputs = self._call(input_ids[:, None], attention_mask[:, None], token_type_ids[:, None])
            return {"logits": outputs.logits[:, 0]}
        outputs = self._call(input_ids, attention_mask, token_type_ids)
        if self.task == "spans":
            return {"start_logits": outputs.start_logits, "end_logits": outputs.end_logits}
        return {"logits": outputs.logits}

    def _call(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Any:
        inputs = {"input_ids": input_ids.long(), "attention_mask": attention_mask.long()}
        if self.reads_token_types:
            inputs["token_type_ids"] = token_type_ids.long()
        return self.network(**inputs)


@dataclass(frozen=True)
class ExportedNetwork:
    """Network with its graph, used in place of a `Network`: it has no variants and no layers to choose from."""

    config: ExportedConfig
    task: AnyTask
    graphs: dict[MatMulPrecision, Graph]
    """Graphs that exist already, by the precision of their matrix products."""
    pads: bool = True
    """False if padding changes the outputs, so that each text must be a separate batch."""

    ranges: ClassVar[Mapping[str, object]] = {}
    quantizable_layers: ClassVar[list[str]] = []

    def graph(self, matmul: MatMulPrecision) -> Graph:
        """Return the graph in fp32 or dynamic int8.

        Raises:
            ValueError: if nothing in it can be computed in int8.
        """
        if matmul not in self.graphs:
            assert matmul == "dynamic int8", matmul
            self.graphs[matmul] = self._quantised()
        return self.graphs[matmul]

    def _quantised(self) -> Graph:
        from onnxruntime.quantization import QuantType, quantize_dynamic  # slow to import

        graph = self.graphs["fp32"]
        with tempfile.TemporaryDirectory() as folder, quiet():
            fp32, int8 = Path(folder, "fp32.onnx"), Path(folder, "int8.onnx")
            save_graph(graph, fp32)
            quantize_dynamic(
                fp32,
                int8,
                op_types_to_quantize=["MatMul"],
                per_channel=True,
                weight_type=QuantType.QInt8,
                use_external_data_format=graph.num_bytes > MAX_FILE_BYTES,
                # Shape inference does not know every value of a traced graph; those it misses are float.
                extra_options={"DefaultTensorType": TensorProto.FLOAT},
            )
            quantised = read_graph(int8)
        if not any(node.op_type == "MatMulInteger" for node in quantised.proto.graph.node):
            raise ValueError(f"no matrix product of a `{self.config.model_type}` can be quantised; export it in fp32")
        return quantised


def read_graph(path: Path) -> Graph:
    """Read a graph with its weights, and give it the inputs of all our graphs, int32 [batch, length]."""
    proto = onnx.load(path)
    arrays = {item.name: numpy_helper.to_array(item) for item in proto.graph.initializer}
    large = {name: values for name, values in arrays.items() if values.nbytes >= MIN_WEIGHT_BYTES}
    small = [item for item in proto.graph.initializer if item.name not in large]
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT32, ["batch", "length"]) for name in INPUT_NAMES]
    for items, new in (
        (proto.graph.initializer, [*small, *external_initializers(large)]),
        (proto.graph.input, inputs),  # tracing drops an input that the network does not read
    ):
        del items[:]
        items.extend(new)
    without_weights = ModelProto()  # the message that was read keeps the memory of its weights
    without_weights.CopyFrom(proto)
    return Graph(without_weights, large)


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
