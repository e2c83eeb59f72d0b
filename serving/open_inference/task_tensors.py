"""Input and output tensors of each task."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, ClassVar, TypeVar

import numpy as np

from serving.core.models import Model
from serving.endpoints.classify import labels_bytes
from serving.endpoints.embed_sparse import weights_bytes
from serving.endpoints.embed_tokens import check_num_vectors
from serving.endpoints.fill_mask import DEFAULT_TOP_K, tokens_bytes
from serving.open_inference.tensors import BYTES, DTYPES, Options, TensorSpec, invalid_field, quoted
from tasks.base import AnyTask
from tasks.classification import Classification, ClassificationExample, ClassificationPrediction
from tasks.embedding import Embedding
from tasks.features import Features
from tasks.masked_lm import ClozeExample, MaskedLM, MaskPrediction
from tasks.multiple_choice import MultipleChoice, MultipleChoiceExample, MultipleChoicePrediction
from tasks.prompts import PROMPT_NAMES
from tasks.regression import Regression, RegressionExample
from tasks.spans import SpanExample, SpanPrediction, Spans
from tasks.sparse_embedding import SparseEmbedding, SparseVector
from tasks.tagging import Tagging, TaggingExample, TaggingPrediction, pairs
from tasks.token_embedding import TokenEmbedding, TokenVectors

Row = Mapping[str, Any]
"""Texts of one example by input: a tuple for `choices`, None for an input that was not sent."""

TEXT = TensorSpec("text", BYTES, (-1,))
TEXT_PAIR = TensorSpec("text_pair", BYTES, (-1,), optional=True)

PromptedT = TypeVar("PromptedT", Embedding, SparseEmbedding, TokenEmbedding)
"""Task whose models may have prompts."""
JSON_ITEMS = 1024
"""Number of list items that are written as JSON at a time."""


class TaskTensors:
    """Tensors of one task. To add another: subclass it, implement it, and add it to TASK_TENSORS."""

    task: ClassVar[str]
    inputs: ClassVar[tuple[TensorSpec, ...]] = (TEXT,)
    options: ClassVar[tuple[str, ...]] = ("truncate",)
    windowed_fields: ClassVar[frozenset[str]] = frozenset()
    """Fields of its examples that are split into windows and may have any length."""
    returns_vectors: ClassVar[bool] = False
    """True if the reply has a vector for each output of the model."""

    def outputs(self, model: Model) -> list[TensorSpec]:
        """Return the output tensors of a model."""
        raise NotImplementedError

    def example(self, row: Row, task: Any) -> Any:
        """Return the example that a row holds."""
        return row["text"]

    def task_for(self, task: Any, options: Options) -> AnyTask:
        """Return the task with the options of a request.

        Raises:
            InvalidRequestError: when the model does not support an option.
        """
        return task

    def reply_bytes(self, windows: Sequence[Sequence[Features]], options: Options, task: Any) -> int:
        """Return the bytes of the reply for these features; 0 if it is small.

        Raises:
            InvalidRequestError: when it would be too large.
        """
        return 0

    def result(self, prediction: Any, example: Any, options: Options, task: Any) -> Sequence[Any]:
        """Return a value, or a list of values, for each output. It must not refer to arrays of the batch."""
        raise NotImplementedError

    def arrays(self, results: Sequence[Sequence[Any]], specs: Sequence[TensorSpec]) -> dict[str, np.ndarray]:
        """Return the output arrays by name. Shorter rows are padded."""
        return {spec.name: _stacked([result[place] for result in results], spec) for place, spec in enumerate(specs)}


def _stacked(values: Sequence[Any], spec: TensorSpec) -> np.ndarray:
    if len(spec.shape) == 1:
        array = np.empty(len(values), DTYPES[spec.datatype])
        array[:] = values
        return array
    width = max([spec.shape[1], 1, *map(len, values)])
    array = np.full((len(values), width), b"" if spec.datatype == BYTES else 0, DTYPES[spec.datatype])
    for row, items in enumerate(values):
        array[row, : len(items)] = items
    return array


def _with_prompt_of(task: PromptedT, options: Options) -> PromptedT:
    """Return a task with the prompt that a request asks for."""
    name, kind = options.prompt_name, options.input_type
    if kind is not None:
        if kind not in PROMPT_NAMES:
            raise invalid_field("parameters[input_type]", f"must be {' or '.join(PROMPT_NAMES)}: {quoted(kind)}")
        if name is not None:
            raise invalid_field("parameters[input_type]", "set together with `prompt_name`; give one of them")
        return replace(task, prompt_name=task.settings.prompt_name_for(kind))  # type: ignore[arg-type]
    if name is None:
        return task
    try:
        task.settings.prompt(name)
    except ValueError as error:
        raise invalid_field("parameters[prompt_name]", str(error)) from error
    return replace(task, prompt_name=name)


class EmbeddingTensors(TaskTensors):
    """Texts -> vectors."""

    task = Embedding.name
    options = ("truncate", "normalize", "prompt_name", "input_type")
    returns_vectors = True

    def outputs(self, model: Model) -> list[TensorSpec]:
        return [TensorSpec("embedding", "FP32", (-1, model.manifest.hidden_size))]

    def task_for(self, task: Embedding, options: Options) -> AnyTask:
        task = _with_prompt_of(task, options)
        if options.normalize is None:
            return task
        if task.settings.normalize and not options.normalize:
            raise invalid_field(
                "parameters[normalize]", "must be true or unset: this model always returns vectors of length 1"
            )
        return task.with_settings(normalize=options.normalize)

    def result(self, prediction: np.ndarray, example: Any, options: Options, task: Embedding) -> Sequence[Any]:
        return [prediction.copy()]


class ClassificationTensors(TaskTensors):
    """Texts or pairs -> labels with probabilities, most likely first; of multi-label models also which are selected."""

    task = Classification.name
    inputs = (TEXT, TEXT_PAIR)
    options = ("truncate", "top_k")

    def outputs(self, model: Model) -> list[TensorSpec]:
        specs = [TensorSpec("label", BYTES, (-1, -1)), TensorSpec("score", "FP32", (-1, -1))]
        if model.task.settings.is_multi_label:
            specs.append(TensorSpec("selected", "BOOL", (-1, -1)))
        return specs

    def example(self, row: Row, task: Any) -> ClassificationExample:
        return ClassificationExample(row["text"], row["text_pair"])

    def reply_bytes(self, windows: Sequence[Sequence[Features]], options: Options, task: Classification) -> int:
        return labels_bytes(len(windows), task, options.top_k)

    def result(
        self, prediction: ClassificationPrediction, example: Any, options: Options, task: Classification
    ) -> Sequence[Any]:
        ranked = prediction.top(options.top_k)
        values: list[Any] = [[label.encode() for label, _ in ranked], [score for _, score in ranked]]
        if task.settings.is_multi_label:
            selected = frozenset(prediction.selected)
            values.append([label in selected for label, _ in ranked])
        return values


class RegressionTensors(TaskTensors):
    """Texts or pairs -> numbers."""

    task = Regression.name
    inputs = (TEXT, TEXT_PAIR)

    def outputs(self, model: Model) -> list[TensorSpec]:
        return [TensorSpec("value", "FP32", (-1,))]

    def example(self, row: Row, task: Any) -> RegressionExample:
        return RegressionExample(row["text"], row["text_pair"])

    def result(self, prediction: float, example: Any, options: Options, task: Regression) -> Sequence[Any]:
        return [prediction]


class SpansTensors(TaskTensors):
    """Questions with contexts -> spans, best first."""

    task = Spans.name
    inputs = (TensorSpec("question", BYTES, (-1,)), TensorSpec("context", BYTES, (-1,)))
    options = ("truncate", "top_k")
    windowed_fields = frozenset({"context"})

    def outputs(self, model: Model) -> list[TensorSpec]:
        return [
            TensorSpec("answer", BYTES, (-1, -1)),
            TensorSpec("score", "FP32", (-1, -1)),
            TensorSpec("start", "INT64", (-1, -1)),
            TensorSpec("end", "INT64", (-1, -1)),
            TensorSpec("num_spans", "INT64", (-1,)),
            TensorSpec("has_answer", "BOOL", (-1,)),
            TensorSpec("no_answer_score", "FP32", (-1,)),
        ]

    def example(self, row: Row, task: Any) -> SpanExample:
        return SpanExample(row["question"], row["context"])

    def result(self, prediction: SpanPrediction, example: Any, options: Options, task: Spans) -> Sequence[Any]:
        spans = prediction.spans[: options.top_k or 1]
        return [
            [span.text.encode() for span in spans],
            [span.score for span in spans],
            [span.start for span in spans],
            [span.end for span in spans],
            len(spans),
            prediction.has_answer,
            prediction.no_answer_score,
        ]


class MaskedLMTensors(TaskTensors):
    """Texts with masks -> tokens, most likely first, one row for each mask of all texts."""

    task = MaskedLM.name
    options = ("truncate", "top_k")

    def outputs(self, model: Model) -> list[TensorSpec]:
        return [
            TensorSpec("token", BYTES, (-1, -1)),
            TensorSpec("score", "FP32", (-1, -1)),
            TensorSpec("num_masks", "INT64", (-1,)),
        ]

    def example(self, row: Row, task: Any) -> ClozeExample:
        return ClozeExample(row["text"])

    def reply_bytes(self, windows: Sequence[Sequence[Features]], options: Options, task: MaskedLM) -> int:
        return tokens_bytes(windows, task, options.top_k or DEFAULT_TOP_K)

    def result(self, prediction: MaskPrediction, example: Any, options: Options, task: MaskedLM) -> Sequence[Any]:
        masks = [prediction.top(mask, options.top_k or DEFAULT_TOP_K) for mask in range(len(prediction.log_probs))]
        tokens = [[task.tokenizer.token(token_id).encode() for token_id, _ in mask] for mask in masks]
        return [tokens, [[score for _, score in mask] for mask in masks], len(masks)]

    def arrays(self, results: Sequence[Sequence[Any]], specs: Sequence[TensorSpec]) -> dict[str, np.ndarray]:
        token, score, num_masks = specs
        return {
            token.name: _stacked([mask for result in results for mask in result[0]], token),
            score.name: _stacked([mask for result in results for mask in result[1]], score),
            num_masks.name: _stacked([result[2] for result in results], num_masks),
        }


class MultipleChoiceTensors(TaskTensors):
    """Choices, with a context and a question -> the most likely choice."""

    task = MultipleChoice.name
    inputs = (
        TensorSpec("choices", BYTES, (-1, -1)),
        TensorSpec("context", BYTES, (-1,), optional=True),
        TensorSpec("question", BYTES, (-1,), optional=True),
    )

    def outputs(self, model: Model) -> list[TensorSpec]:
        return [TensorSpec("choice", "INT64", (-1,)), TensorSpec("score", "FP32", (-1, -1))]

    def example(self, row: Row, task: Any) -> MultipleChoiceExample:
        return MultipleChoiceExample(row["choices"], row["context"] or "", row["question"] or "")

    def result(
        self, prediction: MultipleChoicePrediction, example: Any, options: Options, task: MultipleChoice
    ) -> Sequence[Any]:
        return [prediction.choice, prediction.scores]


class TaggingTensors(TaskTensors):
    """Texts -> entities and tagged words, as JSON."""

    task = Tagging.name
    windowed_fields = frozenset({"source", "words"})

    def outputs(self, model: Model) -> list[TensorSpec]:
        return [TensorSpec("entities", BYTES, (-1,)), TensorSpec("tags", BYTES, (-1,))]

    def example(self, row: Row, task: Tagging) -> TaggingExample:
        return TaggingExample((), source=row["text"])

    def result(
        self, prediction: TaggingPrediction, example: TaggingExample, options: Options, task: Tagging
    ) -> Sequence[Any]:
        tags = (
            {"word": word, "start": start, "end": end, "tag": tag, "score": float(score)}
            for word, (start, end), tag, score in zip(
                example.words, pairs(example.word_offsets), prediction.tags, prediction.scores, strict=True
            )
        )
        entities = (
            {
                "type": entity.type,
                "start": entity.start,
                "end": entity.end,
                "text": example.text[entity.start : entity.end],
                "score": entity.score,
            }
            for entity in prediction.entities
        )
        return [_json(entities), _json(tags)]


def _json(items: Iterator[Any]) -> bytes:
    """Write a list as JSON, some items at a time: a hundred thousand in one piece would hold the interpreter lock."""
    parts = iter(lambda: list(islice(items, JSON_ITEMS)), [])
    return b"[%s]" % b", ".join(json.dumps(part, ensure_ascii=False)[1:-1].encode() for part in parts)


class SparseEmbeddingTensors(TaskTensors):
    """Texts -> weights of tokens, largest first."""

    task = SparseEmbedding.name
    options = ("truncate", "top_k", "prompt_name", "input_type")

    def outputs(self, model: Model) -> list[TensorSpec]:
        return [
            TensorSpec("index", "INT64", (-1, -1)),
            TensorSpec("weight", "FP32", (-1, -1)),
            TensorSpec("num_weights", "INT64", (-1,)),
        ]

    def task_for(self, task: SparseEmbedding, options: Options) -> AnyTask:
        return replace(_with_prompt_of(task, options), top_k=options.top_k or 0)

    def reply_bytes(self, windows: Sequence[Sequence[Features]], options: Options, task: SparseEmbedding) -> int:
        return weights_bytes(len(windows), task)

    def result(self, prediction: SparseVector, example: Any, options: Options, task: SparseEmbedding) -> Sequence[Any]:
        return [prediction.indices, prediction.values, len(prediction.indices)]


class TokenEmbeddingTensors(TaskTensors):
    """Texts -> vectors of tokens."""

    task = TokenEmbedding.name
    options = ("truncate", "prompt_name", "input_type")
    returns_vectors = True

    def outputs(self, model: Model) -> list[TensorSpec]:
        return [
            TensorSpec("embedding", "FP32", (-1, -1, model.manifest.hidden_size)),
            TensorSpec("num_vectors", "INT64", (-1,)),
        ]

    def task_for(self, task: TokenEmbedding, options: Options) -> AnyTask:
        return replace(_with_prompt_of(task, options), is_query=options.input_type == "query")

    def reply_bytes(self, windows: Sequence[Sequence[Features]], options: Options, task: TokenEmbedding) -> int:
        lengths = [len(window) for items in windows for window in items]
        check_num_vectors(len(lengths) * max(lengths, default=0))  # with padding
        return 0

    def result(self, prediction: TokenVectors, example: Any, options: Options, task: TokenEmbedding) -> Sequence[Any]:
        return [prediction.vectors, len(prediction.vectors)]

    def arrays(self, results: Sequence[Sequence[Any]], specs: Sequence[TensorSpec]) -> dict[str, np.ndarray]:
        vectors, num_vectors = specs
        counts = _stacked([result[1] for result in results], num_vectors)
        padded = np.zeros((len(results), max(counts, default=1), vectors.shape[2]), np.float32)
        for row, (found, count) in zip(padded, results, strict=True):
            row[:count] = found
        return {vectors.name: padded, num_vectors.name: counts}


TASK_TENSORS: dict[str, TaskTensors] = {
    tensors.task: tensors
    for tensors in (
        EmbeddingTensors(),
        ClassificationTensors(),
        RegressionTensors(),
        SpansTensors(),
        MaskedLMTensors(),
        MultipleChoiceTensors(),
        TaggingTensors(),
        SparseEmbeddingTensors(),
        TokenEmbeddingTensors(),
    )
}
"""Tensors by name of the task."""
