"""Extractive question answering: the span of a context that answers a question (SQuAD v1.1 and v2.0).

A context longer than max_seq_length is read in overlapping windows, as in the reference code (google-research/bert
run_squad.py): a new window starts every doc_stride tokens, and a span may start only in the window that shows its first
token with the most context. Unlike there, spans are cut from the context by code-point offsets, so that an answer is
the very text of the context, accents on its last letter included.

A question may come with several contexts. They count as one that is read in all their windows: the best span of any of
them is the answer, and the null score is the lowest of all windows, as it is for the windows of a single context.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from tasks._encode import Reading, check_length, raise_if_invalid, tokenize_texts
from tasks.base import InvalidExample, Outputs, Task, TaskSettings
from tasks.bounds import MAX_SEQ_LENGTH, check_bounds
from tasks.classification import softmax
from tasks.features import Features
from tasks.languages import written_without_spaces
from tasks.metrics import squad_example_scores, squad_scores
from tasks.tokenizer import Tokens, with_marks
from tasks.windows import max_context_owner, window_bounds


@dataclass(frozen=True, slots=True)
class SpanExample:
    """A question on a context; `answers` are the texts accepted as right, none for an unanswerable question."""

    question: str
    context: str
    answers: tuple[str, ...] = ()
    answer_start: int = -1
    """Code point at which the first answer starts; -1 where unknown or unanswerable."""
    id: str = ""
    more_contexts: tuple[str, ...] = ()
    """Other texts that may hold the answer, for prediction only."""

    @property
    def contexts(self) -> tuple[str, ...]:
        """All of them, in order."""
        return self.context, *self.more_contexts


@dataclass(frozen=True, slots=True, kw_only=True)
class Window(Features):
    """A question with one window of a context."""

    context: int = 0
    """Number of the context in the example."""
    offsets: np.ndarray
    """[length, 2] int32 code points of the context; (0, 0) outside of it."""
    in_context: np.ndarray
    """[length] bool"""
    has_max_context: np.ndarray
    """[length] bool: no other window shows this token with more context around it."""


@dataclass(frozen=True, slots=True)
class Span:
    """context[start:end], with its probability among the candidates and its logit (start + end)."""

    start: int
    end: int
    text: str
    score: float
    logit: float
    context: int = 0
    """Number of the context in the example."""


@dataclass(frozen=True, slots=True)
class SpanPrediction:
    """The n best spans of a context, and how "no answer" compares."""

    spans: tuple[Span, ...]
    has_answer: bool
    no_answer_score: float
    """Probability of "no answer" among the candidates; 0 where the model does not know unanswerable questions."""
    null_margin: float
    """Null score minus the best span's logit; "no answer" wins above the null threshold."""

    @property
    def text(self) -> str:
        """The answer, empty for "no answer"."""
        return self.spans[0].text if self.has_answer else ""


MAX_N_BEST = 1000
"""Largest `n_best_size`: its square is the number of spans that are looked at in each window."""


@dataclass(frozen=True)
class SpanSettings(TaskSettings):
    """How contexts are read and spans chosen. Defaults of the reference code."""

    max_seq_length: int = 384
    doc_stride: int = 128
    """Tokens from the start of one window to the start of the next."""
    max_query_length: int = 64
    """Longest question, in tokens."""
    max_answer_length: int = 30
    """Longest answer, in tokens."""
    n_best_size: int = 20
    """Start and end positions looked at in each window, and spans kept in the end."""
    unanswerable: bool = False
    """Whether the model knows questions without an answer (SQuAD v2.0)."""
    null_threshold: float = 0.0
    """Predict "no answer" when null score minus best span is above this."""

    def __post_init__(self) -> None:
        super().__post_init__()
        lengths = dict.fromkeys(("doc_stride", "max_query_length", "max_answer_length"), (1, MAX_SEQ_LENGTH))
        check_bounds(self, lengths | {"n_best_size": (1, MAX_N_BEST)})
        if self.max_query_length + 4 > self.max_seq_length:
            raise ValueError(
                f"max_query_length `{self.max_query_length}` leaves no room for a context in "
                f"max_seq_length `{self.max_seq_length}`"
            )


@dataclass(frozen=True)
class Spans(Task[SpanExample, Window, SpanPrediction, SpanSettings]):
    """Examples are questions with contexts, predictions are spans."""

    name: ClassVar[str] = "spans"
    settings_type: ClassVar[type[TaskSettings]] = SpanSettings
    output_names: ClassVar[tuple[str, ...]] = ("start_logits", "end_logits")
    token_outputs: ClassVar[bool] = True

    def encode(self, examples: Sequence[SpanExample], *, truncate: bool = True) -> list[list[Window]]:
        invalid: list[InvalidExample] = []
        longest = self.settings.max_query_length
        reading = Reading(keep=longest, enough=None if truncate else longest)
        asked = [example.question for example in examples]
        questions = tokenize_texts(self.tokenizer, asked, "question", invalid, reading)
        contexts = self._tokenize_contexts(examples, invalid)
        if not truncate:
            for index, question in enumerate(questions):
                check_length(index, "question", len(question), longest, invalid, is_whole=question.is_whole)
        raise_if_invalid(invalid)
        return [
            [
                window
                for number, (context, text) in enumerate(zip(items, example.contexts, strict=True))
                for window in self._windows(question, context, text, number)
            ]
            for example, question, items in zip(examples, questions, contexts, strict=True)
        ]

    def _tokenize_contexts(self, examples: Sequence[SpanExample], invalid: list[InvalidExample]) -> list[list[Tokens]]:
        places = [(index, number) for index, example in enumerate(examples) for number in range(len(example.contexts))]
        texts = [text for example in examples for text in example.contexts]
        found: list[InvalidExample] = []
        tokens = iter(tokenize_texts(self.tokenizer, texts, "context", found, Reading(ids_only=False)))
        for item in found:
            index, number = places[item.index]
            field = f"contexts[{number}]" if examples[index].more_contexts else "context"
            invalid.append(InvalidExample(index, field, item.reason))
        return [[next(tokens) for _ in example.contexts] for example in examples]

    def _windows(self, question: Tokens, context: Tokens, text: str, context_number: int) -> list[Window]:
        question_ids = question.ids
        capacity = self.settings.max_seq_length - len(question_ids) - 3
        spans = self.tokenizer.planned(window_bounds(len(context), capacity, self.settings.doc_stride))
        owner = max_context_owner(spans, len(context))
        context_offsets = with_marks(text, context.offsets)
        windows = []
        for number, (start, end) in enumerate(spans):
            arrays = self.tokenizer.assemble(question_ids, context.ids[start:end])
            length, first = len(arrays["input_ids"]), len(question_ids) + 2
            offsets = np.zeros((length, 2), dtype=np.int32)
            offsets[first:-1] = context_offsets[start:end]
            in_context = np.zeros(length, dtype=bool)
            in_context[first:-1] = True
            has_max_context = np.zeros(length, dtype=bool)
            has_max_context[first:-1] = owner[start:end] == number
            window = Window(
                **arrays,
                num_truncated=0 if context_number or number else len(question) - len(question_ids),
                context=context_number,
                offsets=offsets,
                in_context=in_context,
                has_max_context=has_max_context,
            )
            windows.append(window)
        return windows

    def decode(self, example: SpanExample, features: Sequence[Window], outputs: Sequence[Outputs]) -> SpanPrediction:
        null_score = min(float(output["start_logits"][0] + output["end_logits"][0]) for output in outputs)
        best: dict[tuple[int, int, int], float] = {}
        for window, output in zip(features, outputs, strict=True):
            for start, end, logit in self._candidates(window, output):
                place = window.context, start, end
                best[place] = max(logit, best.get(place, -np.inf))
        ranked = sorted(best.items(), key=lambda item: (-item[1], item[0]))[: self.settings.n_best_size]
        logits = np.array([logit for _, logit in ranked] + [null_score] * self.settings.unanswerable)
        scores = softmax(logits) if len(logits) else logits
        spans = tuple(
            Span(start, end, example.contexts[context][start:end], float(score), logit, context)
            for ((context, start, end), logit), score in zip(ranked, scores, strict=False)
        )
        margin = null_score - spans[0].logit if spans else np.inf
        return SpanPrediction(
            spans=spans,
            has_answer=self._has_answer(spans, margin),
            no_answer_score=float(scores[-1]) if self.settings.unanswerable else 0.0,
            null_margin=float(margin),
        )

    def score(self, examples: Sequence[SpanExample], predictions: Sequence[SpanPrediction]) -> dict[str, float]:
        return answer_scores(examples, [prediction.text for prediction in predictions])

    def to_dict(self, example: SpanExample, prediction: SpanPrediction) -> dict[str, Any]:
        spans = [{"start": s.start, "end": s.end, "text": s.text, "score": s.score} for s in prediction.spans[:1]]
        return {"id": example.id, "answer": prediction.text, "spans": spans}

    def decide(self, prediction: SpanPrediction) -> SpanPrediction:
        """A prediction that was made with another null threshold, as it is with this one."""
        return replace(prediction, has_answer=self._has_answer(prediction.spans, prediction.null_margin))

    def _has_answer(self, spans: Sequence[Span], null_margin: float) -> bool:
        return bool(spans) and not (self.settings.unanswerable and null_margin > self.settings.null_threshold)

    def _candidates(self, window: Window, output: Outputs) -> Iterator[tuple[int, int, float]]:
        """The best spans of one window as (start, end, logit), each once, start and end in code points."""
        count = self.settings.n_best_size
        starts = _top(output["start_logits"], window.has_max_context, count)
        ends = _top(output["end_logits"], window.in_context, count)
        length = ends[None, :] - starts[:, None] + 1
        fits = (length >= 1) & (length <= self.settings.max_answer_length)
        logits = output["start_logits"][starts][:, None] + output["end_logits"][ends][None, :]
        pairs = np.flatnonzero(fits)
        ranked = pairs[np.argsort(-logits.flat[pairs], kind="stable")]
        found = set()
        for row, column in zip(*np.unravel_index(ranked, logits.shape), strict=True):
            span = int(window.offsets[starts[row], 0]), int(window.offsets[ends[column], 1])
            if span not in found:  # a character may be several tokens
                found.add(span)
                yield *span, float(logits[row, column])
            if len(found) == count:
                break


def answer_scores(examples: Sequence[SpanExample], texts: Sequence[str]) -> dict[str, float]:
    """Score predicted texts, empty for "no answer", by the rule that suits the data set (see `squad_scores`)."""
    return squad_scores(texts, [example.answers for example in examples], characters=counts_characters(examples))


def counts_characters(examples: Sequence[SpanExample]) -> bool:
    """Whether answers of a data set are scored by characters rather than words, by the script of its contexts."""
    return written_without_spaces({example.context for example in examples})


def best_null_threshold(examples: Sequence[SpanExample], predictions: Sequence[SpanPrediction]) -> float:
    """The null threshold that gives the highest F1; of several, the lowest.

    It lies midway between the margins of two predictions, as far as can be from changing either; 1 below the lowest
    margin or above the highest where all or none are best left without an answer.

    Source: `find_best_thresh` of the official evaluation script of SQuAD v2.0, which takes the lower of the two.
    """
    texts = [prediction.spans[0].text if prediction.spans else "" for prediction in predictions]
    answers, characters = [example.answers for example in examples], counts_characters(examples)
    _, f1 = squad_example_scores(texts, answers, characters=characters)
    _, null_f1 = squad_example_scores([""] * len(examples), answers, characters=characters)
    margins = np.array([prediction.null_margin for prediction in predictions])
    known = np.isfinite(margins)  # without any span there is no answer, whatever the threshold
    levels, level_of = np.unique(margins[known], return_inverse=True)
    if not len(levels):
        return 0.0
    gains = np.bincount(level_of, weights=(f1 - null_f1)[known], minlength=len(levels))
    # Rounding must not decide between thresholds that are as good.
    best = int(np.round(np.cumsum([0.0, *gains]), 9).argmax())
    thresholds = [levels[0] - 1, *(levels[1:] + levels[:-1]) / 2, levels[-1] + 1]
    return float(thresholds[best])


def _top(logits: np.ndarray, allowed: np.ndarray, count: int) -> np.ndarray:
    """Positions of the `count` highest logits where allowed, highest first; of equal ones, the earlier first."""
    positions = np.flatnonzero(allowed)
    return positions[np.argsort(-logits[positions], kind="stable")[:count]]
