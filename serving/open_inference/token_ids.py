"""Inference on tensors of token ids: returns the outputs of the graph. Each row is one sequence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from serving.core.calls import Call
from serving.core.encoding import TextEncoder
from serving.core.endpoint import Inference, Reply, check_usable
from serving.core.job import JobResult
from serving.core.models import Model
from serving.open_inference.tensors import (
    TensorSpec,
    invalid_field,
    read_inputs,
    read_options,
    requested_outputs,
    response,
)
from serving.open_inference.v2 import service_pb2 as pb
from tasks.base import NOT_FINITE, Outputs
from tasks.features import INPUT_NAMES, Features

MAX_OUTPUT_BYTES = 128 * 2**20
"""Maximum size of the outputs. Logits over a vocabulary take a hundred thousand bytes a token, so a request of a few MB
could use all memory."""


def input_specs(model: Model) -> list[TensorSpec]:
    """Return the input tensors [batch, length] of a model's graph."""
    names = [name for name in INPUT_NAMES if name in model.manifest.inputs]
    return [TensorSpec(name, "INT64", (-1, -1), optional=name != "input_ids") for name in names]


def output_specs(model: Model) -> list[TensorSpec]:
    """Return the output tensors of a model's graph."""
    axes = (-1, -1) if model.task.token_outputs else (-1,)
    return [TensorSpec(name, "FP32", (*axes, *model.last_axis)) for name in model.task.output_names]


@dataclass(slots=True)
class TokenIdInference(Inference):
    """Request with token ids."""

    request: pb.ModelInferRequest
    model: Model
    outputs: Sequence[TensorSpec] = ()
    length: int = 0
    """Length of the rows, including padding."""
    windows: Sequence[Sequence[Features]] = ()
    reply_bytes: int = 0

    def encode(self, encoder: TextEncoder, call: Call, num_bytes: int) -> None:
        """Read and check the arrays."""
        model, message = self.model, self.request
        read_options(message.parameters, ())
        arrays = read_inputs(message, input_specs(model))
        self.outputs = requested_outputs(message, output_specs(model))
        ids = arrays["input_ids"]
        for name, array in arrays.items():
            if array.shape != ids.shape:
                raise invalid_field(
                    name, f"shape `{list(array.shape)}` differs from that of input_ids, `{list(ids.shape)}`"
                )
        if not ids.size:
            raise invalid_field("input_ids", f"empty: shape {list(ids.shape)}; it needs at least one token in each row")
        num_rows = ids.size if model.task.token_outputs else len(ids)
        self.reply_bytes = 4 * len(self.outputs) * num_rows * math.prod(model.last_axis)
        if self.reply_bytes > MAX_OUTPUT_BYTES:
            size, maximum = (f"{number / 2**20:.0f} MiB" for number in (self.reply_bytes, MAX_OUTPUT_BYTES))
            raise invalid_field(
                "input_ids", f"the outputs would have {size} (maximum {maximum}); send fewer or shorter rows, or text"
            )
        lengths = _lengths(arrays.get("attention_mask", np.ones_like(ids)), model.task.settings.max_seq_length)
        types = arrays.get("token_type_ids", np.zeros_like(ids))
        _check_range("input_ids", ids, lengths, model.manifest.vocab_size)
        _check_range("token_type_ids", types, lengths, 2)
        self.length = ids.shape[1]
        self.windows = [
            [Features(input_ids=row[:length], token_type_ids=row_types[:length])]
            for row, row_types, length in zip(ids, types, lengths, strict=True)
        ]

    def decode(self, index: int, outputs: list[Outputs]) -> dict[str, np.ndarray]:
        """Copy the requested outputs of one row, so that those of its batch can be freed."""
        arrays = {spec.name: np.array(outputs[0][spec.name], dtype=np.float32) for spec in self.outputs}
        problem = "" if all(map(self.model.task.is_usable, arrays.values())) else NOT_FINITE
        check_usable(self.model, problem, f"input_ids[{index}]")
        return arrays

    def reply(self, done: JobResult) -> Reply:
        """Serialise the response. Outputs of each token are zero at padding."""
        arrays: dict[str, np.ndarray] = {}
        for spec in self.outputs:
            rows = [result[spec.name] for result in done.results]
            if self.model.task.token_outputs:
                arrays[spec.name] = padded = np.zeros((len(rows), self.length, *rows[0].shape[1:]), np.float32)
                for place, row in zip(padded, rows, strict=True):
                    place[: len(row)] = row
            else:
                arrays[spec.name] = np.stack(rows)
        return response(self.request, self.model, self.outputs, arrays)


def _lengths(mask: np.ndarray, max_length: int) -> np.ndarray:
    """Return the number of attended tokens of each row, which must be its first tokens."""
    lengths = (mask != 0).sum(axis=1)
    prefix = np.arange(mask.shape[1]) < lengths[:, None]
    for row in np.flatnonzero((mask != prefix).any(axis=1) | (lengths == 0)):
        raise invalid_field(f"attention_mask[{row}]", "must be ones and then zeros, with at least one 1")
    for row in np.flatnonzero(lengths > max_length):
        raise invalid_field(f"input_ids[{row}]", f"too long: `{lengths[row]}` tokens (maximum `{max_length}`)")
    return lengths


def _check_range(name: str, values: np.ndarray, lengths: np.ndarray, stop: int) -> None:
    attended = np.arange(values.shape[1]) < lengths[:, None]
    for row, place in np.argwhere(attended & ((values < 0) | (values >= stop))):
        raise invalid_field(f"{name}[{row}][{place}]", f"must be from 0 to {stop - 1}: `{values[row, place]}`")
