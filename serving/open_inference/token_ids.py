"""Token ids -> outputs of the graph, as they are. Rows are sequences of the scheduler like any other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from serving.core.finite import check_arrays
from serving.core.models import Model
from serving.core.scheduler import JobResult
from serving.core.service import Reply
from serving.open_inference.options import read_options
from serving.open_inference.tensors import TensorSpec, read_inputs, requested, response, wrong
from serving.open_inference.v2 import service_pb2 as pb
from tasks.base import Outputs
from tasks.features import INPUT_NAMES, Features

MAX_OUTPUT_BYTES = 128 * 2**20
"""Logits over a vocabulary are a hundred thousand bytes a token: a request of a few MB could ask for all memory."""


def input_specs(model: Model) -> list[TensorSpec]:
    """Token ids and what goes with them, [batch, length]."""
    names = [name for name in INPUT_NAMES if name in model.manifest.inputs]
    return [TensorSpec(name, "INT64", (-1, -1), optional=name != "input_ids") for name in names]


def output_specs(model: Model) -> list[TensorSpec]:
    """The outputs of the graph."""
    axes = (-1, -1) if model.task.token_outputs else (-1,)
    return [TensorSpec(name, "FP32", (*axes, *model.last_axis)) for name in model.task.output_names]


@dataclass(frozen=True, slots=True)
class TokenIdWork:
    """A request with token ids, ready to be computed."""

    request: pb.ModelInferRequest
    model: Model
    outputs: Sequence[TensorSpec]
    length: int
    """Of the rows, padding included."""
    windows: Sequence[Sequence[Features]]

    @classmethod
    def of(cls, request: pb.ModelInferRequest, model: Model) -> TokenIdWork:
        """Check a request.

        Raises:
            InvalidRequestError: naming what is wrong with it.
        """
        read_options(request.parameters, ())
        arrays, outputs = read_inputs(request, input_specs(model)), requested(request, output_specs(model))
        ids = arrays["input_ids"]
        for name, array in arrays.items():
            if array.shape != ids.shape:
                raise wrong(name, f"shape {list(array.shape)} where input_ids has {list(ids.shape)}")
        if not ids.size:
            raise wrong("input_ids", f"empty: shape {list(ids.shape)}; it needs at least one token in each row")
        _check_size(model, ids.shape, len(outputs))
        lengths = _lengths(arrays.get("attention_mask", np.ones_like(ids)), model.task.settings.max_seq_length)
        types = arrays.get("token_type_ids", np.zeros_like(ids))
        _check_range("input_ids", ids, lengths, model.manifest.vocab_size)
        _check_range("token_type_ids", types, lengths, 2)
        windows = [
            [Features(input_ids=row[:length], token_type_ids=row_types[:length])]
            for row, row_types, length in zip(ids, types, lengths, strict=True)
        ]
        return cls(request, model, outputs, ids.shape[1], windows)

    def finish(self, index: int, outputs: list[Outputs]) -> dict[str, np.ndarray]:
        """The requested outputs of one row, copied so that those of its batch need not be kept."""
        arrays = {spec.name: np.array(outputs[0][spec.name], dtype=np.float32) for spec in self.outputs}
        check_arrays(self.model, arrays.values(), f"input_ids[{index}]")
        return arrays

    def reply(self, done: JobResult) -> Reply:
        """The response; where outputs are per token, zeros stand for padding."""
        stacked = {spec.name: self._stack([result[spec.name] for result in done.results]) for spec in self.outputs}
        return response(self.request, self.model, self.outputs, stacked)

    def _stack(self, rows: Sequence[np.ndarray]) -> np.ndarray:
        if not self.model.task.token_outputs:
            return np.stack(rows)
        stacked = np.zeros((len(rows), self.length, *rows[0].shape[1:]), dtype=np.float32)
        for number, row in enumerate(rows):
            stacked[number, : len(row)] = row
        return stacked


def _check_size(model: Model, shape: tuple[int, ...], num_outputs: int) -> None:
    elements = math.prod(shape) if model.task.token_outputs else shape[0]
    size = 4 * num_outputs * elements * math.prod(model.last_axis)
    if size > MAX_OUTPUT_BYTES:
        reason = f"the outputs would take {size / 2**20:.0f} MiB, a response takes {MAX_OUTPUT_BYTES / 2**20:.0f}"
        raise wrong("input_ids", f"{reason}; send fewer or shorter rows, or text")


def _lengths(mask: np.ndarray, max_length: int) -> np.ndarray:
    """How many tokens of each row are attended to: they must be its first."""
    lengths = (mask != 0).sum(axis=1)
    prefix = np.arange(mask.shape[1]) < lengths[:, None]
    for row in np.flatnonzero((mask != prefix).any(axis=1) | (lengths == 0)):
        raise wrong(f"attention_mask[{row}]", "must be ones and then zeros, with at least one 1")
    for row in np.flatnonzero(lengths > max_length):
        raise wrong(f"input_ids[{row}]", f"{lengths[row]} tokens came, {max_length} fit")
    return lengths


def _check_range(name: str, values: np.ndarray, lengths: np.ndarray, stop: int) -> None:
    attended = np.arange(values.shape[1]) < lengths[:, None]
    for row, place in np.argwhere(attended & ((values < 0) | (values >= stop))):
        raise wrong(f"{name}[{row}][{place}]", f"{values[row, place]} is not within 0 to {stop - 1}")
