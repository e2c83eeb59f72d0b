"""Classify, Regress, Choose: texts, pairs and choices -> probabilities and numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bertline.v1 import encoder_pb2 as pb
from serving.core.errors import InvalidRequestError, Violation
from serving.endpoints.base import MAX_SCORES, SCORE_BYTES, TextEndpoint, text_pair
from tasks.classification import Classification, ClassificationExample, ClassificationPrediction
from tasks.features import Features
from tasks.multiple_choice import MultipleChoice, MultipleChoiceExample, MultipleChoicePrediction
from tasks.regression import Regression, RegressionExample


class Classify(TextEndpoint):
    """Texts or pairs -> labels with probabilities."""

    name = "Classify"
    task = Classification.name
    reply_type = pb.ClassifyReply

    def examples(self, request: pb.ClassifyRequest, task: Classification) -> list[ClassificationExample]:
        return [ClassificationExample(item.text, text_pair(item)) for item in request.inputs]

    def reply_bytes(
        self, windows: Sequence[Sequence[Features]], request: pb.ClassifyRequest, task: Classification
    ) -> int:
        return labels_bytes(len(windows), task, request.top_k or None)

    def result(
        self, prediction: ClassificationPrediction, example: Any, task: Classification, request: pb.ClassifyRequest
    ) -> bytes:
        return serialize_classification(prediction, request.top_k)

    def start_reply(self, results: Sequence[bytes], task: Classification) -> pb.ClassifyReply:
        several = task.settings.is_multi_label
        return pb.ClassifyReply(problem_type=pb.PROBLEM_TYPE_MULTI_LABEL if several else pb.PROBLEM_TYPE_SINGLE_LABEL)


def serialize_classification(prediction: ClassificationPrediction, top_k: int) -> bytes:
    """Return a prediction as a serialised Classification, with `top_k` labels (0 for all) and the selected ones."""
    result, selected = pb.Classification(), frozenset(prediction.selected)
    for name, score in prediction.top(top_k or None):
        result.labels.add(label=name, score=score, selected=name in selected)
    return result.SerializeToString()


def labels_bytes(num_inputs: int, task: Classification, top_k: int | None) -> int:
    """Return the bytes of a reply. Raise InvalidRequestError if it could hold more than MAX_SCORES labels in all."""
    num_labels = len(task.settings.labels)
    limit = None if task.settings.is_multi_label else top_k  # each label may be selected
    count = num_inputs * min(limit or num_labels, num_labels)
    if count > MAX_SCORES:
        remedy = "send fewer inputs per call" + (", or a smaller top_k" if not task.settings.is_multi_label else "")
        reason = f"too many labels requested: `{count}` (maximum `{MAX_SCORES}` per reply); {remedy}"
        raise InvalidRequestError(reason, [Violation("inputs", reason)])
    return SCORE_BYTES * count


class Regress(TextEndpoint):
    """Texts or pairs -> numbers."""

    name = "Regress"
    task = Regression.name
    reply_type = pb.RegressReply

    def examples(self, request: pb.RegressRequest, task: Regression) -> list[RegressionExample]:
        return [RegressionExample(item.text, text_pair(item)) for item in request.inputs]

    def result(self, prediction: float, example: Any, task: Regression, request: pb.RegressRequest) -> float:
        return prediction

    def start_reply(self, results: Sequence[float], task: Regression) -> pb.RegressReply:
        return pb.RegressReply(values=results)

    def serialized_results(self, results: Sequence[float]) -> Iterable[bytes]:
        return ()


class Choose(TextEndpoint):
    """Choices, with a context and a question -> probabilities over the choices."""

    name = "Choose"
    task = MultipleChoice.name
    reply_type = pb.ChooseReply

    def part_counts(self, request: pb.ChooseRequest) -> Mapping[str, int]:
        return {"choices": self.num_sequences(request)}

    def num_sequences(self, request: pb.ChooseRequest) -> int:
        return sum(len(item.choices) for item in request.inputs)

    def encode_cost_bytes(self, request: pb.ChooseRequest, num_bytes: int) -> int:
        # Context and question are tokenized again with each choice.
        repeated = sum(len(item.choices) * (len(item.context) + len(item.question)) for item in request.inputs)
        return super().encode_cost_bytes(request, num_bytes) + repeated

    def examples(self, request: pb.ChooseRequest, task: MultipleChoice) -> list[MultipleChoiceExample]:
        return [MultipleChoiceExample(tuple(item.choices), item.context, item.question) for item in request.inputs]

    def result(
        self, prediction: MultipleChoicePrediction, example: Any, task: MultipleChoice, request: pb.ChooseRequest
    ) -> bytes:
        return pb.ChooseResult(choice=prediction.choice, scores=prediction.scores).SerializeToString()
