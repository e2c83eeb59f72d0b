"""What every RPC that runs a model is: how a request becomes examples, and predictions a reply."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from google.protobuf.message import Message

from serving.core.codec_pool import SEQUENCE_BYTES
from serving.core.errors import InvalidRequestError, Violation
from serving.endpoints.wire import elements
from tasks.base import AnyTask, InvalidExample
from tasks.features import Features

if TYPE_CHECKING:
    from serving.core.models import Model


MAX_SCORES = 2**20
"""Labels or tokens with scores in a reply. Each takes some 200 bytes and 2 us of a core, which no forecast knows."""


class Rpc:
    """One RPC. To add another: subclass, implement, and add it to RPCS."""

    name: ClassVar[str]
    task: ClassVar[str]
    """What its model must do."""
    request_type: ClassVar[type[Message]]
    reply_type: ClassVar[type[Message]]
    inputs: ClassVar[str] = "inputs"
    """Field of the request that holds them."""

    def parts(self, request: Any) -> Mapping[str, int]:
        """What an input may hold any number of, each of which is work of its own: how many came, in all inputs."""
        return {}

    def specialise(self, model: Model, request: Any) -> AnyTask:
        """The model's task with what this request asks for.

        Raises:
            InvalidRequestError: when it asks for what the model does not have.
        """
        return model.task

    def examples(self, request: Any, task: Any) -> list[Any]:
        """The inputs of a request, as examples of the task.

        Raises:
            InvalidRequestError: when there are inputs that no example can be made of.
        """
        raise NotImplementedError

    def windowed(self, request: Any) -> frozenset[str]:
        """Fields of its examples that may be of any length, since they are read in windows."""
        return frozenset()

    def num_sequences(self, request: Any) -> int:
        """How many its inputs become, where none needs several windows."""
        return len(getattr(request, self.inputs))

    def size(self, request: Any) -> int:
        """Bytes of a request that is as much work, if it is more than its own."""
        return SEQUENCE_BYTES * self.num_sequences(request)

    def most_tokens(self, request: Any, task: AnyTask) -> float:
        """That the model may get to read of a request; infinite where it reads all there is, in windows."""
        return math.inf if self.windowed(request) else self.num_sequences(request) * task.settings.max_seq_length

    def check_windows(self, windows: Sequence[Sequence[Features]], request: Any, task: Any) -> None:
        """Raise InvalidRequestError when the reply to these features would be too large."""

    def field(self, invalid: InvalidExample, request: Any) -> str:
        """Path of an invalid example in the request."""
        return f"{self.inputs}[{invalid.index}].{invalid.field}"

    def result(self, prediction: Any, example: Any, task: Any, request: Any) -> Any:
        """Return what the reply holds for one prediction, with messages serialised and no references to the batch's
        arrays."""
        raise NotImplementedError

    def reply(self, results: Sequence[Any]) -> Any:
        """The reply with its results, unless `elements` has them; what all replies have is filled in elsewhere."""
        return self.reply_type()

    def elements(self, results: Sequence[Any]) -> Iterable[bytes]:
        """Yield the results that are messages, serialised in parts, as their field of the reply."""
        return elements(self.reply_type.DESCRIPTOR.fields_by_name["results"].number, results)


def refuse_any(violations: Iterable[Violation]) -> None:
    """Raise InvalidRequestError if there are any."""
    if found := list(violations):
        raise InvalidRequestError(violations=found)


def pair_of(item: Any) -> str | None:
    """The second text of a TextInput; an empty one is not an absent one."""
    return item.text_pair if item.HasField("text_pair") else None
