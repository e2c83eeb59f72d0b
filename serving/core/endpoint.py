"""Interface between the inference service and one operation of a front, such as Embed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from serving.core.encoding import TextEncoder
from serving.core.limits import ParseLimits, RequestLimits
from serving.core.models import Model, Models
from serving.core.request import PendingRequest
from serving.core.scheduler import JobResult
from tasks.features import Features


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
    """Request of an endpoint on its way: `encode`, then `decode` for each input, then `reply`."""

    model: Model
    windows: Sequence[Sequence[Features]]
    """Sequences of each input, which `encode` makes."""

    @abstractmethod
    def encode(self, encoder: TextEncoder, request: PendingRequest) -> None:
        """Make the sequences of each input.

        Raises:
            InvalidRequestError: naming the inputs that cannot be encoded.
        """

    @abstractmethod
    def decode(self, index: int, outputs: list[Any]) -> Any:
        """Return the result for one input.

        Args:
            index: number of the input.
            outputs: outputs of the model for its sequences. The result must not refer to them.

        Raises:
            UnusableOutputError: when the outputs hold NaN or infinity.
        """

    @abstractmethod
    def reply(self, done: JobResult) -> Reply:
        """Serialise the reply, whose results are `done.results`."""


class Endpoint(ABC):
    """Operation of a front. Stateless: the same object serves all calls."""

    @abstractmethod
    def parse(self, data: bytes, limits: ParseLimits) -> Any:
        """Parse a request.

        Raises:
            InvalidRequestError: when the bytes are no such request, or exceed the limits.
        """

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
    def work_bytes(self, request: Any, num_bytes: int) -> int:
        """Return the size of an ordinary request that is as much work to encode as this one.

        Args:
            request: the parsed request.
            num_bytes: its own size.
        """

    @abstractmethod
    def max_tokens(self, request: Any, model: Model) -> float:
        """Return the most tokens that the model may read of a request; infinity if it reads texts whole."""

    @abstractmethod
    def prepare(self, request: Any, model: Model, limits: RequestLimits) -> Inference:
        """Check an admitted request, without reading its texts.

        Raises:
            InvalidRequestError: when it has too many parts, or asks for what the model does not have.
        """
