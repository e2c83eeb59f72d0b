"""Base class of the endpoints of `bertline.v1`: text requests -> examples, predictions -> replies."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from google.protobuf.message import Message

from bertline.v1 import encoder_pb2 as pb
from serving.core.calls import Call
from serving.core.codec_pool import SEQUENCE_BYTES
from serving.core.encoding import TextEncoder
from serving.core.endpoint import Endpoint, Inference, Reply, check_usable
from serving.core.errors import InvalidRequestError, OtherSpaceError, Violation
from serving.core.job import JobResult
from serving.core.limits import RequestLimits
from serving.core.models import Model, Models
from serving.endpoints.wire import serialize_elements
from tasks.base import AnyTask, InvalidExample
from tasks.features import Features

MAX_SCORES, SCORE_BYTES = 2**18, 100
"""Maximum number of scored labels or tokens in a reply, and bytes of each. It costs 2 us of a core, too, which the
latency model does not include."""


class TextEndpoint(Endpoint):
    """Endpoint for one task. To add another: subclass it, implement it, and add it to ENDPOINTS."""

    name: ClassVar[str]
    """Method of the service."""
    task: ClassVar[str]
    """Task of its models; another name for Rerank and ZeroShot, whose models have several."""
    reply_type: ClassVar[type[Message]]
    inputs: ClassVar[str] = "inputs"
    """Field of the request that holds the inputs."""
    returns_vectors: ClassVar[bool] = False
    """True if a reply holds what the graph returns."""
    any_task: ClassVar[bool] = False
    """True if `task_for` decides which models can do it, whatever their task."""
    exception: ClassVar[str] = ""
    """Words of the error without a model that fits, about those that do not."""

    def find_model(self, models: Models, request: Any) -> Model:
        name = request.model.name or models.default_name(self.task, self.fits, self.exception)
        model = models.find(name, request.model.version, None if self.any_task else self.task)
        wanted, space = request.model.space, model.manifest.space
        if wanted not in ("", space):
            raise OtherSpaceError(f"{model} gives vectors of space `{space or 'unknown'}`, not of `{wanted}`")
        return model

    def fits(self, model: Model) -> bool:
        """Return whether a model may answer requests that name none."""
        return model.task.name == self.task

    def num_inputs(self, request: Any) -> int:
        return len(getattr(request, self.inputs))

    def encode_cost_bytes(self, request: Any, num_bytes: int) -> int:
        return SEQUENCE_BYTES * self.num_sequences(request)

    def max_tokens(self, request: Any, model: Model) -> float:
        if self.windowed_fields(request):
            return math.inf
        return self.num_sequences(request) * model.task.settings.max_seq_length

    def prepare(self, request: Any, model: Model, limits: RequestLimits) -> TextInference:
        for what, count in self.part_counts(request).items():
            field = what if what in request.DESCRIPTOR.fields_by_name else self.inputs
            limits.check_count(count, what, field=field)
        return TextInference(self, request, model, self.task_for(request, model))

    def part_counts(self, request: Any) -> Mapping[str, int]:
        """Return the total numbers of parts that are limited like inputs, by name: choices, for example."""
        return {}

    def task_for(self, request: Any, model: Model) -> AnyTask:
        """Return the model's task with the options of the request.

        Raises:
            InvalidRequestError: when it has an option that the model does not support.
        """
        return model.task

    def examples(self, request: Any, task: Any) -> list[Any]:
        """Return the inputs of a request as examples of the task: by default the inputs themselves.

        Raises:
            InvalidRequestError: when an input cannot be an example.
        """
        return list(getattr(request, self.inputs))

    def within(self, examples: list[Any], num_bytes: float) -> tuple[list[Any], int]:
        """Return the part of the examples of a best-effort request that has `num_bytes` of text, and its bytes."""
        raise NotImplementedError

    def windowed_fields(self, request: Any) -> frozenset[str]:
        """Return the fields of the examples that are split into windows and may have any length."""
        return frozenset()

    def num_sequences(self, request: Any) -> int:
        """Return the number of sequences of a request, if no text needs several windows."""
        return self.num_inputs(request)

    def reply_bytes(self, windows: Sequence[Sequence[Features]], request: Any, task: Any) -> int:
        """Return the bytes of the reply for these features; 0 if it is small.

        Raises:
            InvalidRequestError: when it would be too large.
        """
        return 0

    def field_path(self, invalid: InvalidExample, request: Any) -> str:
        """Return the path of an invalid example in the request; inputs named `texts` have no fields."""
        path = f"{self.inputs}[{invalid.index}]"
        return path if self.inputs == "texts" else f"{path}.{invalid.field}"

    @abstractmethod
    def result(self, prediction: Any, example: Any, task: Any, request: Any) -> Any:
        """Convert a prediction to its part of the reply.

        Messages are serialised here, in a worker thread. The result must not refer to arrays of the batch.
        """

    def start_reply(self, results: Sequence[Any], task: Any) -> Any:
        """Return the reply message without the fields that `serialized_results` yields."""
        return self.reply_type()

    def serialized_results(self, results: Sequence[Any]) -> Iterable[bytes]:
        """Yield the field `results` of the reply, serialised in parts."""
        return serialize_elements(self.reply_type.DESCRIPTOR.fields_by_name["results"].number, results)


@dataclass(slots=True)
class TextInference(Inference):
    """Request of a TextEndpoint."""

    endpoint: TextEndpoint
    request: Any
    model: Model
    task: AnyTask
    examples: Sequence[Any] = ()
    windows: Sequence[Sequence[Features]] = ()
    tokenize_s: float = 0.0
    reply_bytes: int = 0
    best_effort: bool = False

    def encode(self, encoder: TextEncoder, call: Call, num_bytes: int) -> None:
        """Encode the inputs, and check the size of the reply."""
        endpoint, message = self.endpoint, self.request
        examples, read_bytes = endpoint.examples(message, self.task), endpoint.read_bytes(message, num_bytes)
        ends_s = call.deadline_for(best_effort=self.best_effort)
        if self.best_effort and ends_s is not None:
            affordable = encoder.affordable_bytes(self.model, ends_s)
            examples, read_bytes = endpoint.within(examples, affordable)
        self.examples, self.windows = encoder.encode(
            call,
            self.model,
            self.task,
            examples,
            num_bytes=read_bytes,
            truncate=message.truncate if message.HasField("truncate") else None,
            windowed=endpoint.windowed_fields(message),
            best_effort=self.best_effort,
            field_path=lambda invalid: endpoint.field_path(invalid, message),
        )
        self.reply_bytes = endpoint.reply_bytes(self.windows, message, self.task)
        if endpoint.returns_vectors:
            self.reply_bytes = 4 * self.model.num_outputs(self.lengths)
        self.tokenize_s = call.stages[-1].seconds

    def decode(self, index: int, outputs: list[Any]) -> Any:
        """Decode the outputs for one input, and convert them to its part of the reply."""
        example = self.examples[index]
        path = f"{self.endpoint.inputs}[{index}]"
        computed = [output for output in outputs if output is not None]
        check_usable(self.model, self.model.task.outputs_problem(computed), path)
        prediction = self.task.decode(example, self.windows[index], outputs)
        check_usable(self.model, self.task.prediction_problem(prediction), path)
        return self.endpoint.result(prediction, example, self.task, self.request)

    def reply(self, done: JobResult) -> Reply:
        """Serialise the reply: common fields, results, and last the timings, which the cache removes."""
        reply = self.endpoint.start_reply(done.results, self.task)
        reply.model.CopyFrom(reference(self.model))
        reply.num_tokens.extend(sum(map(len, windows)) for windows in self.windows)
        reply.num_truncated.extend(sum(window.num_truncated for window in windows) for windows in self.windows)
        if hasattr(reply, "num_windows"):
            reply.num_windows.extend(map(len, self.windows))
        timings = pb.Timings(tokenize_s=self.tokenize_s, queue_s=done.queue_s, inference_s=done.inference_s)
        serialized_timings = type(reply)(timings=timings).SerializeToString()
        # Protobuf parses concatenated parts of a message as the message.
        results = self.endpoint.serialized_results(done.results)
        data = b"".join([reply.SerializeToString(), *results, serialized_timings])
        return Reply(data, len(serialized_timings))


def reference(model: Model) -> pb.ModelRef:
    """Return name, version and space of a model."""
    manifest = model.manifest
    return pb.ModelRef(name=manifest.name, version=manifest.version, space=manifest.space)


def raise_violations(violations: Iterable[Violation]) -> None:
    """Raise InvalidRequestError if there are any violations."""
    if found := list(violations):
        raise InvalidRequestError(violations=found)


def text_pair(item: pb.TextInput) -> str | None:
    """Return the second text of a pair; None if there is none. An empty one is refused when it is encoded."""
    return item.text_pair if item.HasField("text_pair") else None
