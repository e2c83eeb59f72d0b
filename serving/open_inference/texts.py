"""Texts -> predictions, by the way that the RPCs of `bertline.v1` go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from serving.core.errors import InvalidRequestError, Violation
from serving.core.finite import check_outputs, check_prediction
from serving.core.models import Model
from serving.core.scheduler import JobResult
from serving.core.service import Reply
from serving.open_inference.forms import FORMS, Form, Row
from serving.open_inference.options import Options, read_options
from serving.open_inference.tensors import TensorSpec, read_inputs, requested, response, wrong
from serving.open_inference.v2 import service_pb2 as pb
from tasks.base import AnyTask, InvalidExample, Outputs
from tasks.features import Features


class Encode(Protocol):
    """The way from examples to features."""

    def __call__(
        self,
        model: Model,
        task: AnyTask,
        examples: Sequence[Any],
        *,
        truncate: bool | None,
        windowed: frozenset[str],
        field: Any,
    ) -> Any:
        """As `Intake.encode`."""


@dataclass(frozen=True, slots=True)
class TextWork:
    """A request with texts, ready to be computed."""

    request: pb.ModelInferRequest
    model: Model
    outputs: Sequence[TensorSpec]
    form: Form
    options: Options
    task: AnyTask
    examples: Sequence[Any]
    windows: Sequence[Sequence[Features]]

    @classmethod
    def of(cls, request: pb.ModelInferRequest, model: Model, encode: Encode) -> TextWork:
        """Check and encode a request.

        Raises:
            InvalidRequestError: naming what is wrong with it.
        """
        form = FORMS[model.task.name]
        options = read_options(request.parameters, form.options)
        arrays, outputs = read_inputs(request, form.inputs), requested(request, form.outputs(model))
        task = form.specialise(model.task, options)
        examples, windows = encode(
            model,
            task,
            [form.example(row, task) for row in _rows(arrays, form)],
            truncate=options.truncate,
            windowed=form.windowed,
            field=partial(_field, list(arrays)),
        )
        form.check_windows(windows, options, task)
        return cls(request, model, outputs, form, options, task, examples, windows)

    def finish(self, index: int, outputs: list[Outputs]) -> Sequence[Any]:
        """What the outputs hold of one example."""
        place = f"{self.form.inputs[0].name}[{index}]"
        check_outputs(self.model, outputs, place)
        prediction = self.task.decode(self.examples[index], self.windows[index], outputs)
        check_prediction(self.model, self.task, prediction, place)
        return self.form.result(prediction, self.examples[index], self.options, self.task)

    def reply(self, done: JobResult) -> Reply:
        """The response, serialised."""
        arrays = self.form.arrays(done.results, self.form.outputs(self.model))
        num_truncated = sum(window.num_truncated for windows in self.windows for window in windows)
        return response(self.request, self.model, self.outputs, arrays, num_truncated)


def _rows(arrays: Mapping[str, np.ndarray], form: Form) -> Iterator[Row]:
    sizes = {name: len(array) for name, array in arrays.items()}
    if len(set(sizes.values())) > 1:
        raise wrong("inputs", f"differ in number: {', '.join(f'{size} of `{name}`' for name, size in sizes.items())}")
    columns = dict.fromkeys([spec.name for spec in form.inputs], [None] * max(sizes.values())) | _decoded(arrays, form)
    return (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))


def _decoded(arrays: Mapping[str, np.ndarray], form: Form) -> dict[str, list[Any]]:
    """Strings instead of bytes, and tuples of them where an input has two axes.

    Raises:
        InvalidRequestError: naming every element that is not UTF-8.
    """
    violations: list[Violation] = []
    decoded: dict[str, list[Any]] = {}
    for spec in form.inputs:
        if spec.name not in arrays:
            continue
        array = arrays[spec.name] if len(spec.shape) == 2 else arrays[spec.name].reshape(-1)
        texts = np.empty(array.shape, object)
        for place, data in np.ndenumerate(array):
            try:
                texts[place] = data.decode()
            except UnicodeDecodeError:
                violations.append(Violation(f"{spec.name}{''.join(f'[{index}]' for index in place)}", "not UTF-8"))
        decoded[spec.name] = list(map(tuple, texts)) if len(spec.shape) == 2 else list(texts)
    if violations:
        raise InvalidRequestError(violations=violations)
    return decoded


def _field(sent: Sequence[str], invalid: InvalidExample) -> str:
    """Path of an invalid example: the element of the input that it came in."""
    name, bracket, place = invalid.field.partition("[")
    if name not in sent:  # what the choices follow is one text to the task
        name = next((item for item in ("context", "question") if item in sent), sent[0])
    return f"{name}[{invalid.index}]{bracket}{place}"
