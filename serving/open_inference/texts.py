"""Inference on tensors of texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from serving.core.calls import Call
from serving.core.encoding import TextEncoder
from serving.core.endpoint import Inference, Reply, check_usable
from serving.core.errors import InvalidRequestError, Violation
from serving.core.job import JobResult
from serving.core.models import Model
from serving.open_inference.task_tensors import Row, TaskTensors
from serving.open_inference.tensors import (
    Options,
    TensorSpec,
    invalid_field,
    read_inputs,
    read_options,
    requested_outputs,
    response,
)
from serving.open_inference.v2 import service_pb2 as pb
from tasks.base import AnyTask, InvalidExample, Outputs
from tasks.features import Features


@dataclass(slots=True)
class TextTensorInference(Inference):
    """Request with texts."""

    request: pb.ModelInferRequest
    model: Model
    tensors: TaskTensors
    options: Options = field(default_factory=Options)
    outputs: Sequence[TensorSpec] = ()
    task: AnyTask = field(init=False)
    examples: Sequence[Any] = ()
    windows: Sequence[Sequence[Features]] = ()
    reply_bytes: int = 0

    def __post_init__(self) -> None:
        self.task = self.model.task

    def encode(self, encoder: TextEncoder, call: Call, num_bytes: int) -> None:
        """Read options and tensors, and encode the texts."""
        tensors, message = self.tensors, self.request
        self.options = read_options(message.parameters, tensors.options)
        arrays = read_inputs(message, tensors.inputs)
        self.outputs = requested_outputs(message, tensors.outputs(self.model))
        self.task = tensors.task_for(self.model.task, self.options)
        self.examples, self.windows = encoder.encode(
            call,
            self.model,
            self.task,
            [tensors.example(row, self.task) for row in _rows(arrays, tensors)],
            num_bytes=num_bytes,
            truncate=self.options.truncate,
            windowed=tensors.windowed_fields,
            field_path=partial(_field_path, list(arrays)),
        )
        self.reply_bytes = tensors.reply_bytes(self.windows, self.options, self.task)
        if tensors.returns_vectors:
            self.reply_bytes = 4 * self.model.num_outputs(self.lengths)

    def decode(self, index: int, outputs: list[Outputs]) -> Sequence[Any]:
        """Return the values of the output tensors for one example."""
        path = f"{self.tensors.inputs[0].name}[{index}]"
        check_usable(self.model, self.model.task.outputs_problem(outputs), path)
        prediction = self.task.decode(self.examples[index], self.windows[index], outputs)
        check_usable(self.model, self.task.prediction_problem(prediction), path)
        return self.tensors.result(prediction, self.examples[index], self.options, self.task)

    def reply(self, done: JobResult) -> Reply:
        """Serialise the response."""
        arrays = self.tensors.arrays(done.results, self.tensors.outputs(self.model))
        num_truncated = sum(window.num_truncated for windows in self.windows for window in windows)
        return response(self.request, self.model, self.outputs, arrays, num_truncated)


def _rows(arrays: Mapping[str, np.ndarray], tensors: TaskTensors) -> list[Row]:
    """Return the texts of each example; an input with two axes has tuples of strings.

    Raises:
        InvalidRequestError: when the inputs differ in length; naming every element that is not UTF-8.
    """
    sizes = {name: len(array) for name, array in arrays.items()}
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{size} of `{name}`" for name, size in sizes.items())
        raise invalid_field("inputs", f"different numbers of elements: {listed}")
    violations: list[Violation] = []
    columns: dict[str, list[Any]] = {}
    for spec in tensors.inputs:
        if spec.name not in arrays:
            columns[spec.name] = [None] * max(sizes.values())
            continue
        array = arrays[spec.name] if len(spec.shape) == 2 else arrays[spec.name].reshape(-1)
        texts = np.empty(array.shape, object)
        for place, data in np.ndenumerate(array):
            try:
                texts[place] = data.decode()
            except UnicodeDecodeError:
                violations.append(Violation(f"{spec.name}{''.join(f'[{index}]' for index in place)}", "not UTF-8"))
        columns[spec.name] = list(map(tuple, texts)) if len(spec.shape) == 2 else list(texts)
    if violations:
        raise InvalidRequestError(violations=violations)
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _field_path(sent: Sequence[str], invalid: InvalidExample) -> str:
    """Return the path of an invalid example: the name of its input, and the index of the element.

    Args:
        sent: names of the inputs that were sent.
        invalid: field of an example.
    """
    name, bracket, place = invalid.field.partition("[")
    if name not in sent:  # the task joins context and question of a choice
        name = next((item for item in ("context", "question") if item in sent), sent[0])
    return f"{name}[{invalid.index}]{bracket}{place}"
