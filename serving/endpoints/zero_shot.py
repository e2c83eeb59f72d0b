"""ZeroShot: texts and labels -> labels with probabilities, by a model for natural language inference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from bertline.v1 import encoder_pb2 as pb
from serving.core.errors import InvalidRequestError, Violation
from serving.core.limits import RequestLimits
from serving.core.models import Model
from serving.endpoints.base import TextEndpoint, TextInference, raise_violations
from serving.endpoints.classify import serialize_classification
from tasks import zero_shot
from tasks.base import InvalidExample
from tasks.classification import ClassificationPrediction
from tasks.zero_shot import DEFAULT_TEMPLATE, MAX_TEMPLATE_CHARS, create_zero_shot, entailment_label


class ZeroShot(TextEndpoint):
    """Texts and labels -> labels with probabilities."""

    name = "ZeroShot"
    task = zero_shot.ZeroShot.name
    reply_type = pb.ZeroShotReply
    inputs = "texts"

    any_task = True

    def fits(self, model: Model) -> bool:
        return entailment_label(model.task) is not None

    def prepare(self, request: pb.ZeroShotRequest, model: Model, limits: RequestLimits) -> TextInference:
        limits.check_count(len(request.labels), "labels", field="labels")
        if (size := _hypothesis_chars(request)) > limits.max_chars:
            reason = f"too long with the template: `{size}` characters in all (maximum `{limits.max_chars}`)"
            raise InvalidRequestError(violations=[Violation("labels", f"{reason}; shorten them")])
        return super().prepare(request, model, limits)

    def task_for(self, request: pb.ZeroShotRequest, model: Model) -> zero_shot.ZeroShot:
        raise_violations(_violations(request))
        try:
            return create_zero_shot(
                model.task, request.labels, template=request.template, multi_label=request.multi_label
            )
        except ValueError as error:
            reason = f"{model} cannot classify by labels of the request: {error}"
            raise InvalidRequestError(reason, [Violation("model", reason)]) from None

    def part_counts(self, request: pb.ZeroShotRequest) -> Mapping[str, int]:
        return {"pairs of text and label": self.num_sequences(request)}

    def num_sequences(self, request: pb.ZeroShotRequest) -> int:
        return len(request.texts) * len(request.labels)

    def encode_cost_bytes(self, request: pb.ZeroShotRequest, num_bytes: int) -> int:
        return super().encode_cost_bytes(request, num_bytes) + _hypothesis_chars(request)

    def read_bytes(self, request: pb.ZeroShotRequest, num_bytes: int) -> int:
        texts = sum(map(len, request.texts))
        return num_bytes + len(request.labels) * texts + len(request.texts) * _hypothesis_chars(request)

    def field_path(self, invalid: InvalidExample, request: pb.ZeroShotRequest) -> str:
        return f"texts[{invalid.index}]" if invalid.field == "text" else invalid.field

    def result(
        self, prediction: ClassificationPrediction, example: Any, task: zero_shot.ZeroShot, request: pb.ZeroShotRequest
    ) -> bytes:
        return serialize_classification(prediction, request.top_k)


def _hypothesis_chars(request: pb.ZeroShotRequest) -> int:
    """Return the characters of the sentences of all labels."""
    return sum(map(len, request.labels)) + len(request.labels) * len(request.template or DEFAULT_TEMPLATE)


def _violations(request: pb.ZeroShotRequest) -> Iterator[Violation]:
    least = (1 if request.multi_label else 2) if request.texts else 0
    if len(request.labels) < least:
        yield Violation("labels", f"too few: `{len(request.labels)}`; give at least {least}")
    for index, label in enumerate(request.labels):
        if not label.strip():
            yield Violation(f"labels[{index}]", "blank")
    if repeated := [label for label, count in Counter(request.labels).items() if count > 1]:
        yield Violation("labels", f"given twice: `{repeated[0][:80]}`")
    if request.template and request.template.count("{}") != 1:
        yield Violation("template", "needs one `{}`, which stands for the label: `This text is about {}.`")
    if len(request.template) > MAX_TEMPLATE_CHARS:
        yield Violation("template", f"longer than {MAX_TEMPLATE_CHARS} characters; shorten it")
