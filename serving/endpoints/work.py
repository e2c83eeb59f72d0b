"""A request on its way through the scheduler, and the reply that becomes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bertline.v1 import encoder_pb2 as pb
from serving.core.finite import check_outputs, check_prediction
from serving.core.models import Model
from serving.core.scheduler import JobResult
from serving.core.service import Reply
from serving.endpoints import Rpc
from serving.endpoints.catalog import reference
from tasks.base import AnyTask
from tasks.features import Features


@dataclass(frozen=True, slots=True)
class Work:
    """A request, ready to be computed."""

    rpc: Rpc
    request: Any
    model: Model
    task: AnyTask
    examples: Sequence[Any]
    windows: Sequence[Sequence[Features]]
    tokenize_s: float

    def finish(self, index: int, outputs: list[Any]) -> Any:
        """What the reply holds of one example."""
        example = self.examples[index]
        place = f"{self.rpc.inputs}[{index}]"
        check_outputs(self.model, outputs, place)
        prediction = self.task.decode(example, self.windows[index], outputs)
        check_prediction(self.model, self.task, prediction, place)
        return self.rpc.result(prediction, example, self.task, self.request)

    def reply(self, done: JobResult) -> Reply:
        """The reply, serialised."""
        reply = self.rpc.reply(done.results)
        reply.model.CopyFrom(reference(self.model))
        reply.num_tokens.extend(sum(map(len, windows)) for windows in self.windows)
        reply.num_truncated.extend(sum(window.num_truncated for window in windows) for windows in self.windows)
        if hasattr(reply, "num_windows"):
            reply.num_windows.extend(map(len, self.windows))
        timings = pb.Timings(tokenize_s=self.tokenize_s, queue_s=done.queue_s, inference_s=done.inference_s)
        timing = type(reply)(timings=timings).SerializeToString()
        # To protobuf, all of these are one message.
        whole = b"".join([reply.SerializeToString(), *self.rpc.elements(done.results), timing])
        return Reply(whole, len(timing))
