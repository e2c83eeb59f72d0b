"""Extractive question answering: the span of a context that answers a question (SQuAD v1.1 and v2.0).

A context longer than max_seq_length is split into overlapping windows, as in the reference code (google-research/bert
run_squad.py): a new window starts every doc_stride tokens, and a span may start only in the window in which its first
token has the most context. Unlike the reference code, answers are cut from the context by code-point offsets, so that
they equal the text of the context, accents on the last letter included.

A question may have several contexts. The null score of a context is the lowest of its windows, and that of the example
the lowest of its contexts. Spans of several contexts are compared by their logits, or, if the model was trained on
unanswerable questions, by their lead over the null score of their own context: Clark and Gardner 2018 show that logits
of different paragraphs cannot be compared, and that a score of "no answer" solves this (section 3).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np

from tasks._encode import max_context_owner, raise_if_invalid, tokenize_fitting, tokenize_lists, window_bounds
from tasks.base import MAX_SEQ_LENGTH, InvalidExample, Outputs, SeqLength, Task, TaskSettings
from tasks.classification import softmax
from tasks.features import Features
from tasks.metrics import squad_example_scores, squad_scores
from tasks.schema import Bounds
from tasks.text.languages import written_without_spaces
from tasks.text.tokenizer import Tokens, include_combining_marks


@dataclass(frozen=True, slots=True)
class SpanExample:
    """A question on a context, and its accepted answers: none for an unanswerable question."""

    question: str
    context: str
    answers: tuple[str, ...] = ()
    answer_start: int = -1
    """Code point at which the first answer starts; -1 if unknown or unanswerable."""
    id: str = ""
    more_contexts: tuple[str, ...] = ()
    """Further contexts that may hold the answer; for prediction only."""

    @property
    def contexts(self) -> tuple[str, ...]:
        """All contexts, in order."""
        return self.context, *self.more_contexts


@dataclass(frozen=True, slots=True, kw_only=True)
class Window(Features):
    """A question and one window of a context."""

    context: int = 0
    """Number of the context in the example."""
    offsets: np.ndarray
    """[length, 2] int32 (start, end) in code points of the context; (0, 0) for other tokens."""
    in_context: np.ndarray
    """[length] bool"""
    has_max_context: np.ndarray
    """[length] bool: no other window has more context around this token."""


@dataclass(frozen=True, slots=True)
class Span:
    """context[start:end], its probability among the candidates, and its logit.

    The logit is start logit + end logit. Between several contexts of a model with `null_is_trained`, it is lowered by
    what the null score of its context exceeds the lowest one.
    """

    start: int
    end: int
    text: str
    score: float
    logit: float
    context: int = 0
    """Number of the context in the example."""


@dataclass(frozen=True, slots=True)
class SpanPrediction:
    """Best spans of an example, and the scores of "no answer"."""

    spans: tuple[Span, ...]
    has_answer: bool
    no_answer_score: float
    """Probability of "no answer" among the candidates; 0 without `unanswerable`."""
    null_margin: float
    """Null score minus the logit of the best span; above the null threshold, the prediction is "no answer"."""

    @property
    def text(self) -> str:
        """Predicted answer, empty for "no answer"."""
        return self.spans[0].text if self.has_answer else ""


TokenCount = Annotated[int, Bounds(least=1, most=MAX_SEQ_LENGTH)]
MAX_N_BEST = 1000
"""Largest `n_best_size`; its square is the number of spans ranked in each window."""


@dataclass(frozen=True)
class SpanSettings(TaskSettings):
    """Lengths, windows and choice of spans; the defaults come from the reference code."""

    max_seq_length: SeqLength = 384
    doc_stride: TokenCount = 128
    """Tokens from the start of one window to the start of the next."""
    max_query_length: TokenCount = 64
    """Longest question in tokens."""
    max_answer_length: TokenCount = 30
    """Longest answer in tokens."""
    n_best_size: Annotated[int, Bounds(least=1, most=MAX_N_BEST)] = 20
    """Number of start and of end positions tried in each window, and of spans returned."""
    unanswerable: bool = False
    """True if the model was trained on unanswerable questions (SQuAD v2.0)."""
    null_threshold: float = 0.0
    """Predict "no answer" if null score minus best span is above this; it counts in the scores, too."""
    temperature: Annotated[float, Bounds(above=0)] = 1.0
    """Number that the logits of spans are divided by, so that scores are probabilities (Guo et al. 2017)."""
    null_temperature: Annotated[float | None, Bounds(above=0)] = None
    """The same for the lead of "no answer" over the best span: its sigmoid is the score of "no answer", and the spans
    share the rest. None: "no answer" and the spans share one softmax, as in the reference code."""
    null_is_trained: bool = False
    """True for a model that was trained on unanswerable questions although "no answer" is not a choice: its null scores
    tell which of several contexts has the answer."""

    @property
    def compares_contexts(self) -> bool:
        """True if spans of different contexts can be compared, by their lead over "no answer"."""
        return self.unanswerable or self.null_is_trained

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_query_length + 4 > self.max_seq_length:
            raise ValueError(
                f"max_query_length `{self.max_query_length}` leaves no room for a context in "
                f"max_seq_length `{self.max_seq_length}`"
            )


@dataclass(frozen=True)
class Spans(Task[SpanExample, Window, SpanPrediction, SpanSettings]):
    """Predicts spans for questions on contexts."""

    name: ClassVar[str] = "spans"
    settings_type: ClassVar[type[TaskSettings]] = SpanSettings
    output_names: ClassVar[tuple[str, ...]] = ("start_logits", "end_logits")
    token_outputs: ClassVar[bool] = True
    length_setting: ClassVar[str] = "max_query_length"  # contexts are read in windows

    def __post_init__(self) -> None:
        settings, pair = self.settings, self.tokenizer.pair
        if settings.max_query_length >= pair.capacity(settings.max_seq_length):
            raise ValueError(
                f"max_query_length `{settings.max_query_length}` and {pair.num_special} special tokens leave no room "
                f"for a context in max_seq_length `{settings.max_seq_length}`"
            )

    def encode(self, examples: Sequence[SpanExample], *, truncate: bool = True) -> list[list[Window]]:
        invalid: list[InvalidExample] = []
        texts, longest = [example.question for example in examples], self.settings.max_query_length
        questions = tokenize_fitting(self.tokenizer, texts, "question", longest, invalid, truncate=truncate)
        contexts = tokenize_lists(
            self.tokenizer,
            [example.contexts for example in examples],
            lambda index, number: f"contexts[{number}]" if examples[index].more_contexts else "context",
            invalid,
            ids_only=False,
        )
        raise_if_invalid(invalid)
        return [
            [
                window
                for number, (context, text) in enumerate(zip(items, example.contexts, strict=True))
                for window in self._windows(question, context, text, number)
            ]
            for example, question, items in zip(examples, questions, contexts, strict=True)
        ]

    def _windows(self, question: Tokens, context: Tokens, text: str, context_number: int) -> list[Window]:
        question_ids = question.ids
        capacity = self.tokenizer.pair.capacity(self.settings.max_seq_length) - len(question_ids)
        spans = self.tokenizer.report_sequences(window_bounds(len(context), capacity, self.settings.doc_stride))
        owner = max_context_owner(spans, len(context))
        context_offsets = include_combining_marks(text, context.offsets)
        first = self.tokenizer.pair.start(question_ids)
        windows = []
        for number, (start, end) in enumerate(spans):
            arrays = self.tokenizer.assemble(question_ids, context.ids[start:end])
            length, in_sequence = len(arrays["input_ids"]), slice(first, first + end - start)
            offsets = np.zeros((length, 2), dtype=np.int32)
            offsets[in_sequence] = context_offsets[start:end]
            in_context = np.zeros(length, dtype=bool)
            in_context[in_sequence] = True
            has_max_context = np.zeros(length, dtype=bool)
            has_max_context[in_sequence] = owner[start:end] == number
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
        nulls = _null_scores(features, outputs)
        null_score = min(nulls.values())
        best: dict[tuple[int, int, int], float] = {}
        for window, output in zip(features, outputs, strict=True):
            excess = nulls[window.context] - null_score if self.settings.compares_contexts else 0.0
            for start, end, logit in self._candidates(window, output):
                span = window.context, start, end
                best[span] = max(logit - excess, best.get(span, -np.inf))
        ranked = _n_best(sorted(best.items(), key=lambda item: (-item[1], item[0])), self.settings.n_best_size)
        scores, no_answer_score = self._scores(np.array([logit for _, logit in ranked]), null_score)
        spans = tuple(
            Span(start, end, example.contexts[context][start:end], float(score), logit, context)
            for ((context, start, end), logit), score in zip(ranked, scores, strict=True)
        )
        margin = null_score - spans[0].logit if spans else np.inf
        return SpanPrediction(
            spans=spans,
            has_answer=self._has_answer(spans, margin),
            no_answer_score=no_answer_score,
            null_margin=float(margin),
        )

    def _scores(self, logits: np.ndarray, null_score: float) -> tuple[np.ndarray, float]:
        """Return the scores of spans and of "no answer".

        Args:
            logits: [spans], highest first.
        """
        settings = self.settings
        if not settings.unanswerable:
            return softmax(logits / settings.temperature) if len(logits) else logits, 0.0
        null_logit = null_score - settings.null_threshold
        if settings.null_temperature is None or not len(logits):
            scores = softmax(np.append(logits, null_logit) / settings.temperature)
            return scores[:-1], float(scores[-1])
        has_answer, no_answer = softmax(np.array([logits[0], null_logit]) / settings.null_temperature)
        return has_answer * softmax(logits / settings.temperature), float(no_answer)

    def decisions(self, prediction: SpanPrediction) -> tuple[str]:
        return (prediction.text,)

    def score(self, examples: Sequence[SpanExample], predictions: Sequence[SpanPrediction]) -> dict[str, float]:
        return answer_scores(examples, [prediction.text for prediction in predictions])

    def to_dict(self, example: SpanExample, prediction: SpanPrediction) -> dict[str, Any]:
        spans = [{"start": s.start, "end": s.end, "text": s.text, "score": s.score} for s in prediction.spans[:1]]
        found = {"id": example.id, "answer": prediction.text, "spans": spans}
        if not self.settings.unanswerable:
            return found
        margin = prediction.null_margin if prediction.spans else None  # else infinity, which JSON lacks
        return found | {"no_answer_score": prediction.no_answer_score, "null_margin": margin}

    def decide(self, prediction: SpanPrediction) -> SpanPrediction:
        """Return a prediction, made with another null threshold, as it is with that of the settings."""
        return replace(prediction, has_answer=self._has_answer(prediction.spans, prediction.null_margin))

    def _has_answer(self, spans: Sequence[Span], null_margin: float) -> bool:
        return bool(spans) and not (self.settings.unanswerable and null_margin > self.settings.null_threshold)

    def _candidates(self, window: Window, output: Outputs) -> Iterator[tuple[int, int, float]]:
        """Yield the best spans of one window as (start, end, logit), each once, start and end in code points."""
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


def _n_best(
    ranked: Sequence[tuple[tuple[int, int, int], float]], count: int
) -> list[tuple[tuple[int, int, int], float]]:
    """Return the first `count` of ranked spans; the best one of each context is among them as far as there is room."""
    firsts: dict[int, int] = {}
    for place, ((context, _, _), _) in enumerate(ranked):
        firsts.setdefault(context, place)
    if len(firsts) == 1:
        return list(ranked[:count])
    kept = set(firsts.values())
    order = sorted(range(len(ranked)), key=lambda place: (place not in kept, place))
    return [ranked[place] for place in sorted(order[:count])]


def _null_scores(features: Sequence[Window], outputs: Sequence[Outputs]) -> dict[int, float]:
    """Return the null score of each context by its number."""
    found: dict[int, float] = {}
    for window, output in zip(features, outputs, strict=True):
        score = float(output["start_logits"][0] + output["end_logits"][0])
        found[window.context] = min(score, found.get(window.context, np.inf))
    return found


def best_leads(
    count: int, features: Sequence[Window], outputs: Sequence[Outputs], max_answer_length: int
) -> np.ndarray:
    """Return the lead of the best span of each context over the null score of the context, [contexts] float64.

    The lead of a context without windows is minus infinity.
    """
    best, nulls = np.full(count, -np.inf), _null_scores(features, outputs)
    for window, output in zip(features, outputs, strict=True):
        starts = np.where(window.has_max_context, output["start_logits"], -np.inf)
        ends = np.where(window.in_context, output["end_logits"], -np.inf)
        length = min(max_answer_length, len(ends))
        following = np.append(ends, np.full(length - 1, -np.inf))
        best_ends = np.lib.stride_tricks.sliding_window_view(following, length).max(axis=1)
        best[window.context] = max((starts + best_ends).max(), best[window.context])
    return best - [nulls.get(context, 0.0) for context in range(count)]


def answer_scores(examples: Sequence[SpanExample], texts: Sequence[str]) -> dict[str, float]:
    """Score predicted texts, empty for "no answer", by words or characters (see `squad_scores`)."""
    return squad_scores(texts, [example.answers for example in examples], characters=scored_by_characters(examples))


def scored_by_characters(examples: Sequence[SpanExample]) -> bool:
    """Return whether the contexts are in a script without spaces, so that answers are scored by characters."""
    return written_without_spaces({example.context for example in examples})


def best_null_threshold(examples: Sequence[SpanExample], predictions: Sequence[SpanPrediction]) -> float:
    """Return the null threshold with the highest F1; of several, the lowest.

    It is midway between the margins of two predictions, or 1 below the lowest margin (no answer is best for all) or 1
    above the highest (for none).

    Source: `find_best_thresh` of the official evaluation script of SQuAD v2.0, which takes the lower of the two.
    """
    texts = [prediction.spans[0].text if prediction.spans else "" for prediction in predictions]
    answers, characters = [example.answers for example in examples], scored_by_characters(examples)
    _, f1 = squad_example_scores(texts, answers, characters=characters)
    _, null_f1 = squad_example_scores([""] * len(examples), answers, characters=characters)
    margins = np.array([prediction.null_margin for prediction in predictions])
    known = np.isfinite(margins)  # a prediction without spans has no answer at any threshold
    levels, level_of = np.unique(margins[known], return_inverse=True)
    if not len(levels):
        return 0.0
    gains = np.bincount(level_of, weights=(f1 - null_f1)[known], minlength=len(levels))
    # Round, so that rounding errors do not decide between equal thresholds.
    best = int(np.round(np.cumsum([0.0, *gains]), 9).argmax())
    thresholds = [levels[0] - 1, *(levels[1:] + levels[:-1]) / 2, levels[-1] + 1]
    return float(thresholds[best])


def _top(logits: np.ndarray, allowed: np.ndarray, count: int) -> np.ndarray:
    """Return the allowed positions of the `count` highest logits, highest first; of equal ones, the earlier first."""
    positions = np.flatnonzero(allowed)
    return positions[np.argsort(-logits[positions], kind="stable")[:count]]


TEMPERATURES = np.geomspace(0.25, 16, 97)
"""Temperatures that `best_temperatures` tries."""


def best_temperatures(
    examples: Sequence[SpanExample], predictions: Sequence[SpanPrediction], null_threshold: float
) -> tuple[float, float]:
    """Return the `temperature` and the `null_temperature` at which scores are probabilities: of the lowest log loss.

    The score of "no answer" is the probability that there is none, that of a chosen span that it is exactly right.

    Args:
        predictions: predictions of a task with `unanswerable`.
        null_threshold: null threshold that they are used with.
    """
    found = [(e, p) for e, p in zip(examples, predictions, strict=True) if p.spans]
    leads = np.array([p.null_margin - null_threshold for _, p in found])
    no_answer = 1 / (1 + np.exp(np.clip(-leads / TEMPERATURES[:, None], -500, 500)))  # [temperatures, examples]
    null_number = _log_losses(no_answer, np.array([not e.answers for e, _ in found])).argmin()
    chosen = leads <= 0
    spans = [p.spans for _, p in found]
    shares = [1 / np.exp([(span.logit - each[0].logit) / TEMPERATURES for span in each]).sum(axis=0) for each in spans]
    exact, _ = squad_example_scores(
        [each[0].text for each in spans],
        [e.answers for e, _ in found],
        characters=scored_by_characters(examples),
    )
    scores = (1 - no_answer[null_number]) * np.array(shares).T
    number = _log_losses(scores[:, chosen], exact[chosen] > 0).argmin() if chosen.any() else null_number
    return float(TEMPERATURES[number]), float(TEMPERATURES[null_number])


def _log_losses(probabilities: np.ndarray, is_true: np.ndarray) -> np.ndarray:
    """Return the mean log loss of each row of probabilities."""
    return -np.log(np.clip(np.where(is_true, probabilities, 1 - probabilities), 1e-12, None)).mean(axis=-1)
