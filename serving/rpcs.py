"""The RPCs that run a model: how a request becomes examples, and predictions a reply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from google.protobuf.message import Message

from bertline.v1 import encoder_pb2 as pb
from serving.errors import InvalidRequestError, Violation
from tasks.base import AnyTask, InvalidExample
from tasks.classification import Classification, ClassificationExample, ClassificationPrediction
from tasks.embedding import Embedding
from tasks.features import Features
from tasks.masked_lm import ClozeExample, MaskedLM, MaskPrediction
from tasks.spans import SpanExample, SpanPrediction, Spans

POOLINGS = {pb.POOLING_CLS: "cls", pb.POOLING_MEAN: "mean"}


class Rpc:
    """One RPC. To add another: subclass, implement, and add it to RPCS."""

    name: ClassVar[str]
    task: ClassVar[str]
    """What its model must do."""
    request_type: ClassVar[type[Message]]

    def examples(self, request: Any) -> list[Any]:
        """The inputs of a request, as examples of the task."""
        raise NotImplementedError

    def specialise(self, task: Any, request: Any) -> AnyTask:
        """The task with what this request asks for.

        Raises:
            InvalidRequestError: when it asks for what the task does not have.
        """
        return task

    def field(self, invalid: InvalidExample) -> str:
        """Path of an invalid example in the request."""
        return f"inputs[{invalid.index}].{invalid.field}"

    def result(self, prediction: Any, task: Any, request: Any) -> Any:
        """What the reply holds of one prediction; nothing of the batch's arrays is kept."""
        raise NotImplementedError

    def reply(self, results: Sequence[Any], windows: Sequence[Sequence[Features]], hidden_size: int) -> Any:
        """The reply, but for its model and num_tokens."""
        raise NotImplementedError


class Embed(Rpc):
    """Texts -> vectors."""

    name = "Embed"
    task = Embedding.name
    request_type = pb.EmbedRequest

    def examples(self, request: pb.EmbedRequest) -> list[str]:
        return list(request.texts)

    def specialise(self, task: Embedding, request: pb.EmbedRequest) -> AnyTask:
        if request.pooling != pb.POOLING_UNSPECIFIED:
            _check_pooling(request.pooling, task.settings.pooling)
        if not request.HasField("normalize"):
            return task
        if task.settings.normalize and not request.normalize:
            raise InvalidRequestError(violations=[Violation("normalize", "this model's vectors have length 1")])
        return task.with_settings(normalize=request.normalize)

    def field(self, invalid: InvalidExample) -> str:
        return f"texts[{invalid.index}]"

    def result(self, prediction: np.ndarray, task: Embedding, request: pb.EmbedRequest) -> bytes:
        return prediction.astype("<f4").tobytes()

    def reply(self, results: Sequence[bytes], windows: Sequence[Sequence[Features]], hidden_size: int) -> Any:
        return pb.EmbedReply(vectors=b"".join(results), dim=hidden_size)


def _check_pooling(asked: pb.Pooling, pooling: str) -> None:
    """The graph pools: there is no other."""
    if asked not in POOLINGS:
        known = ", ".join(f"{number} for {name}" for number, name in POOLINGS.items())
        raise InvalidRequestError(violations=[Violation("pooling", f"unknown: {asked} ({known})")])
    if POOLINGS[asked] != pooling:
        reason = f"this model has `{pooling}`, not `{POOLINGS[asked]}`; leave it unset"
        raise InvalidRequestError(violations=[Violation("pooling", reason)])


class Classify(Rpc):
    """Texts or pairs -> labels with probabilities."""

    name = "Classify"
    task = Classification.name
    request_type = pb.ClassifyRequest

    def examples(self, request: pb.ClassifyRequest) -> list[ClassificationExample]:
        return [
            ClassificationExample(item.text, item.text_pair if item.HasField("text_pair") else None)
            for item in request.inputs
        ]

    def result(self, prediction: ClassificationPrediction, task: Classification, request: pb.ClassifyRequest) -> Any:
        return pb.Classification(labels=[pb.LabelScore(label=name, score=score) for name, score in prediction.ranked()])

    def reply(self, results: Sequence[Any], windows: Sequence[Sequence[Features]], hidden_size: int) -> Any:
        return pb.ClassifyReply(results=results)


class Answer(Rpc):
    """Questions with contexts -> spans."""

    name = "Answer"
    task = Spans.name
    request_type = pb.AnswerRequest

    def examples(self, request: pb.AnswerRequest) -> list[SpanExample]:
        return [SpanExample(item.question, item.context) for item in request.inputs]

    def result(self, prediction: SpanPrediction, task: Spans, request: pb.AnswerRequest) -> Any:
        spans = prediction.spans[: request.top_k or 1]
        return pb.AnswerResult(
            spans=[pb.Span(start=span.start, end=span.end, text=span.text, score=span.score) for span in spans],
            has_answer=prediction.has_answer,
            no_answer_score=prediction.no_answer_score,
        )

    def reply(self, results: Sequence[Any], windows: Sequence[Sequence[Features]], hidden_size: int) -> Any:
        return pb.AnswerReply(results=results, num_windows=map(len, windows))


class FillMask(Rpc):
    """Texts with [MASK] -> tokens."""

    name = "FillMask"
    task = MaskedLM.name
    request_type = pb.FillMaskRequest

    def examples(self, request: pb.FillMaskRequest) -> list[ClozeExample]:
        return [ClozeExample(text) for text in request.texts]

    def specialise(self, task: MaskedLM, request: pb.FillMaskRequest) -> MaskedLM:
        unknown = [index for index, token in enumerate(request.targets) if task.tokenizer.token_id(token) is None]
        if unknown:
            raise InvalidRequestError(violations=[Violation(f"targets[{i}]", "not in the vocabulary") for i in unknown])
        return task

    def field(self, invalid: InvalidExample) -> str:
        return f"texts[{invalid.index}]"

    def result(self, prediction: MaskPrediction, task: MaskedLM, request: pb.FillMaskRequest) -> Any:
        target_ids = [task.tokenizer.token_id(token) for token in request.targets]
        return pb.FillMaskResult(
            masks=[
                pb.MaskFill(
                    tokens=[
                        pb.TokenScore(token=task.tokenizer.token(token_id), score=score)
                        for token_id, score in prediction.top(mask, request.top_k or 5)
                        if token_id < task.tokenizer.vocab_size  # a graph's vocabulary may be padded
                    ],
                    targets=[
                        pb.TokenScore(token=token, score=float(np.exp(log_probs[token_id])))
                        for token, token_id in zip(request.targets, target_ids, strict=True)
                    ],
                )
                for mask, log_probs in enumerate(prediction.log_probs)
            ]
        )

    def reply(self, results: Sequence[Any], windows: Sequence[Sequence[Features]], hidden_size: int) -> Any:
        return pb.FillMaskReply(results=results)


RPCS: tuple[Rpc, ...] = (Embed(), Classify(), Answer(), FillMask())
