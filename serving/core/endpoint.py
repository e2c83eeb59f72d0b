"""Interface between the inference service and the operations of its fronts (protocols), such as Embed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from serving.core.calls import Call
from serving.core.encoding import TextEncoder
from serving.core.errors import UnusableOutputError, Violation
from serving.core.job import JobResult
from serving.core.limits import ParseLimits, RequestLimits
from serving.core.models import Model, Models
from tasks.features import Features


class Request(Protocol):
    """Request as a front has received it: parsed when it has been found acceptable."""

    @property
    def num_bytes(self) -> int:
        """Size of the serialised request."""

    def digest(self) -> bytes:
        """Return a digest that only equal requests have."""

    def parse(self, limits: ParseLimits) -> Any:
        """Return the message of the request.

        Raises:
            InvalidRequestError: when the bytes are not a valid request, or exceed the limits.
        """


@dataclass(frozen=True, slots=True)
class Reply:
    """Serialised reply."""

    data: bytes
    num_timing_bytes: int = 0
    """Bytes at the end of `data` that hold the timings."""

    @property
    def without_timings(self) -> bytes:
        """Reply that may be sent again for the same request."""
        return self.data[: len(self.data) - self.num_timing_bytes]


class Inference(ABC):
    """One request of an endpoint. The service calls `encode`, then `decode` for each input, then `reply`."""

    model: Model
    windows: Sequence[Sequence[Features]]
    """Features of each input: one sequence or several windows. Set by `encode`."""
    reply_bytes: int
    """Bytes of the reply, as far as it is large; reserved before the inputs are computed. Set by `encode`."""
    best_effort: bool = False
    """True if the deadline ends the computation instead of the call. `decode` then takes None for missing outputs."""

    @property
    def lengths(self) -> list[int]:
        """Number of tokens of each sequence."""
        return [len(window) for items in self.windows for window in items]

    @abstractmethod
    def encode(self, encoder: TextEncoder, call: Call, num_bytes: int) -> None:
        """Tokenize the inputs and set `windows`.

        Args:
            encoder: encodes examples within the limits of a request.
            call: record of the call.
            num_bytes: size of the serialised request.

        Raises:
            InvalidRequestError: naming the inputs that cannot be encoded.
        """

    @abstractmethod
    def decode(self, index: int, outputs: list[Any]) -> Any:
        """Return the result for one input.

        Args:
            index: index of the input in the request.
            outputs: model outputs for each of its sequences. The result must not refer to them.

        Raises:
            UnusableOutputError: when the outputs hold NaN or infinity.
        """

    @abstractmethod
    def reply(self, done: JobResult) -> Reply:
        """Serialise the reply.

        Args:
            done: results of `decode` in the order of the inputs, and times in seconds.
        """


class Endpoint(ABC):
    """One operation, such as Embed. Stateless: the same object serves all calls."""

    @abstractmethod
    def find_model(self, models: Models, request: Any) -> Model:
        """Return the model that a request asks for.

        Raises:
            ModelNotFoundError, UnavailableError, InvalidRequestError: as `Models.find`.
        """

    @abstractmethod
    def num_inputs(self, request: Any) -> int:
        """Return the number of inputs."""

    @abstractmethod
    def encode_cost_bytes(self, request: Any, num_bytes: int) -> int:
        """Return the cost of encoding this request: the bytes of plain text that take as long to encode.

        Args:
            request: the parsed request.
            num_bytes: size of the serialised request.
        """

    def read_bytes(self, request: Any, num_bytes: int) -> int:
        """Return the bytes of text that the model reads: more than those of the request if it repeats texts.

        Args:
            request: the parsed request.
            num_bytes: size of the serialised request.
        """
        return num_bytes

    def is_best_effort(self, request: Any) -> bool:
        """Return whether a request wants what can be computed until its deadline."""
        return False

    @abstractmethod
    def max_tokens(self, request: Any, model: Model) -> float:
        """Return the maximum number of tokens that the model reads of a request; infinity if it splits texts."""

    @abstractmethod
    def prepare(self, request: Any, model: Model, limits: RequestLimits) -> Inference:
        """Check the options of an admitted request, without reading its texts.

        Raises:
            InvalidRequestError: when it has too many parts, or an option that the model does not support.
        """


def check_usable(model: Model, problem: str, path: str) -> None:
    """Check what a model returned for an input: damaged weights, or weights too large for fp16, give NaN and infinity.

    Args:
        model: model that answers.
        problem: what is wrong, by a hook of the task; empty if nothing is.
        path: path of the input in the request.

    Raises:
        UnusableOutputError: when there is a problem.
    """
    if problem:
        remedy = "its weights are damaged, or its precision is too low for this input"
        raise UnusableOutputError(Violation(path, f"{model} returned {problem}: {remedy}"))
