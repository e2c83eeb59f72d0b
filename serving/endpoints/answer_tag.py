"""Answer: questions and contexts -> spans. Tag: texts -> entities."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import islice
from typing import Any

from bertline.v1 import encoder_pb2 as pb
from serving.core.errors import InvalidRequestError, Violation
from serving.core.limits import MAX_WORDS
from serving.endpoints.base import TextEndpoint, raise_violations
from tasks.base import InvalidExample
from tasks.spans import SpanExample, SpanPrediction, Spans
from tasks.tagging import Tagging, TaggingExample, TaggingPrediction, pairs

SERIALIZED_WORDS = 4096
"""Number of words that are serialised at a time, in a few milliseconds."""


class Answer(TextEndpoint):
    """Questions with contexts -> spans."""

    name = "Answer"
    task = Spans.name
    reply_type = pb.AnswerReply

    def part_counts(self, request: pb.AnswerRequest) -> Mapping[str, int]:
        return {"contexts": self.num_sequences(request)}

    def num_sequences(self, request: pb.AnswerRequest) -> int:
        return sum(len(item.contexts) for item in request.inputs)

    def examples(self, request: pb.AnswerRequest, task: Spans) -> list[SpanExample]:
        raise_violations(
            Violation(f"inputs[{index}].contexts", "empty; at least one is needed")
            for index, item in enumerate(request.inputs)
            if not item.contexts
        )
        return [
            SpanExample(item.question, item.contexts[0], more_contexts=tuple(item.contexts[1:]))
            for item in request.inputs
        ]

    def windowed_fields(self, request: pb.AnswerRequest) -> frozenset[str]:
        return frozenset({"context", "more_contexts"})

    def field_path(self, invalid: InvalidExample, request: pb.AnswerRequest) -> str:
        field = "contexts[0]" if invalid.field == "context" else invalid.field
        if match := re.fullmatch(r"more_contexts\[(\d+)\]", field):
            field = f"contexts[{int(match[1]) + 1}]"
        return f"inputs[{invalid.index}].{field}"

    def result(self, prediction: SpanPrediction, example: Any, task: Spans, request: pb.AnswerRequest) -> bytes:
        result = pb.AnswerResult(has_answer=prediction.has_answer, no_answer_score=prediction.no_answer_score)
        for span in prediction.spans[: request.top_k or 1]:
            result.spans.add(start=span.start, end=span.end, text=span.text, score=span.score, context=span.context)
        return result.SerializeToString()


class Tag(TextEndpoint):
    """Texts or words -> entities."""

    name = "Tag"
    task = Tagging.name
    reply_type = pb.TagReply

    def examples(self, request: pb.TagRequest, task: Tagging) -> list[TaggingExample]:
        raise_violations(
            Violation(f"inputs[{index}].words", "set together with `text`; give one of them")
            for index, item in enumerate(request.inputs)
            if item.text and item.words
        )
        if (num_words := sum(len(item.words) for item in request.inputs)) > MAX_WORDS:
            reason = f"too many words: `{num_words}` (maximum `{MAX_WORDS}`); send several requests"
            raise InvalidRequestError(reason, [Violation("inputs", reason)])
        return [TaggingExample(tuple(item.words), source=None if item.words else item.text) for item in request.inputs]

    def windowed_fields(self, request: pb.TagRequest) -> frozenset[str]:
        return frozenset({"source", "words"})

    def field_path(self, invalid: InvalidExample, request: pb.TagRequest) -> str:
        return f"inputs[{invalid.index}].{'words' if request.inputs[invalid.index].words else 'text'}"

    def result(
        self, prediction: TaggingPrediction, example: TaggingExample, task: Tagging, request: pb.TagRequest
    ) -> bytes:
        result = pb.TagResult()
        for item in prediction.entities:
            result.entities.add(start=item.start, end=item.end, text=item.text, label=item.type, score=item.score)
        parts = [result]
        if request.return_words:
            words = zip(pairs(example.word_offsets), prediction.tags, prediction.scores, strict=True)
            for chunk in iter(lambda: list(islice(words, SERIALIZED_WORDS)), []):
                parts.append(pb.TagResult())
                for (start, end), tag, score in chunk:
                    parts[-1].words.add(start=start, end=end, tag=tag, score=score)
        # Serialising a large message in one step would hold the interpreter lock.
        return b"".join(part.SerializeToString() for part in parts)
