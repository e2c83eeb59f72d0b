"""Classify, Regress, Choose: texts, pairs and choices -> probabilities and numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bertline.v1 import encoder_pb2 as pb
from serving.rpcs.base import Rpc, pair_of
from tasks.classification import Classification, ClassificationExample, ClassificationPrediction
from tasks.multiple_choice import MultipleChoice, MultipleChoiceExample, MultipleChoicePrediction
from tasks.regression import Regression, RegressionExample


class Classify(Rpc):
    """Texts or pairs -> labels with probabilities."""

    name = "Classify"
    task = Classification.name
    request_type = pb.ClassifyRequest

    def examples(self, request: pb.ClassifyRequest, task: Classification) -> list[ClassificationExample]:
        return [ClassificationExample(item.text, pair_of(item)) for item in request.inputs]

    def result(
        self, prediction: ClassificationPrediction, example: Any, task: Classification, request: pb.ClassifyRequest
    ) -> pb.Classification:
        ranked = prediction.ranked()[: request.top_k or None]
        return pb.Classification(labels=[pb.LabelScore(label=name, score=score) for name, score in ranked])

    def reply(self, results: Sequence[pb.Classification]) -> pb.ClassifyReply:
        return pb.ClassifyReply(results=results)


class Regress(Rpc):
    """Texts or pairs -> numbers."""

    name = "Regress"
    task = Regression.name
    request_type = pb.RegressRequest

    def examples(self, request: pb.RegressRequest, task: Regression) -> list[RegressionExample]:
        return [RegressionExample(item.text, pair_of(item)) for item in request.inputs]

    def result(self, prediction: float, example: Any, task: Regression, request: pb.RegressRequest) -> float:
        return prediction

    def reply(self, results: Sequence[float]) -> pb.RegressReply:
        return pb.RegressReply(values=results)


class Choose(Rpc):
    """Choices, with what they follow -> probabilities over the choices."""

    name = "Choose"
    task = MultipleChoice.name
    request_type = pb.ChooseRequest

    def parts(self, request: pb.ChooseRequest) -> Mapping[str, int]:
        return {"choices": self.num_sequences(request)}

    def num_sequences(self, request: pb.ChooseRequest) -> int:
        return sum(len(item.choices) for item in request.inputs)

    def size(self, request: pb.ChooseRequest) -> int:
        again = sum(len(item.choices) * (len(item.context) + len(item.question)) for item in request.inputs)
        return super().size(request) + again

    def examples(self, request: pb.ChooseRequest, task: MultipleChoice) -> list[MultipleChoiceExample]:
        return [MultipleChoiceExample(tuple(item.choices), item.context, item.question) for item in request.inputs]

    def result(
        self, prediction: MultipleChoicePrediction, example: Any, task: MultipleChoice, request: pb.ChooseRequest
    ) -> pb.ChooseResult:
        return pb.ChooseResult(choice=prediction.choice, scores=prediction.scores)

    def reply(self, results: Sequence[pb.ChooseResult]) -> pb.ChooseReply:
        return pb.ChooseReply(results=results)
