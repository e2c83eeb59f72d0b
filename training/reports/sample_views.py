"""Views of predictions for the report, one function a task. Each returns items to show and a sentence about all.

To show a new task better than by a plain table, add a function to `SHOWN`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Any

import numpy as np

from tasks import AnyTask
from tasks.classification import ClassificationExample, ClassificationPrediction
from tasks.masked_lm import ClozeExample, MaskPrediction
from tasks.metrics import squad_example_scores
from tasks.multiple_choice import MultipleChoiceExample, MultipleChoicePrediction
from tasks.regression import RegressionExample
from tasks.spans import SpanExample, SpanPrediction, scored_by_characters
from tasks.tagging import TaggingExample, TaggingPrediction
from tasks.tags import chunks

NUM_SHOWN, NUM_WORST = 18, 12
"""Number of examples in a table of errors, and how many of them are the worst."""
NUM_SPANS, NUM_WRONG_SPANS, NUM_NEAR_SPANS = 10, 4, 3
"""Number of spans to show, which need more space: in all, of wrong and of partly right ones."""
CONTEXT_CHARS = 320
"""Code points of a context that are shown before and after the answers."""
TRUTHS = ("label", "labels", "tags", "value", "score", "answers", "answer")
"""Fields that may hold the truth of an example of any task."""
PREDICTIONS = ("label", "labels", "tags", "value", "text", "choice", "score")
"""Fields that may hold the prediction."""
NO_LABELS = NO_ENTITIES = "none"

Items = list[dict[str, Any]]
"""Examples to show, as the template reads them."""


def _masked_words(
    task: AnyTask, examples: Sequence[ClozeExample], predictions: Sequence[MaskPrediction]
) -> tuple[Items, str]:
    items: Items = []
    for example, prediction in zip(examples, predictions, strict=True):
        masks = [
            _mask(task, prediction, number, truth)
            for number, truth in enumerate(example.tokens[: len(prediction.log_probs)])
        ]
        mask = task.tokenizer.mask_token
        items.append({"texts": example.text.split(mask), "masks": masks, "mask": mask})
    verdicts = [mask["verdict"] for item in items for mask in item["masks"]]
    right, top = verdicts.count("right"), len(verdicts) - verdicts.count("wrong")
    return items, f"{right} of {len(verdicts)} masked words are predicted first, {top} among the first five."


def _mask(task: AnyTask, prediction: MaskPrediction, number: int, truth: str) -> dict[str, Any]:
    true_id = task.tokenizer.token_id(truth)
    row = prediction.log_probs[number]
    rank = int((row > row[true_id]).sum()) + 1
    top = [
        {"token": task.tokenizer.token(token_id), "score": score, "is_true": token_id == true_id}
        for token_id, score in prediction.top(number, 5)
    ]
    verdict = "right" if top[0]["is_true"] else "near" if rank <= 5 else "wrong"
    return {"truth": truth, "score": float(np.exp(row[true_id])), "rank": rank, "top": top, "verdict": verdict}


def _row(text: str, *, text_pair: str | None = None, verdict: str = "", **cells: str) -> dict[str, Any]:
    """Return a row of a table.

    Args:
        text: text of the example; `text_pair` is shown below it.
        verdict: `right` or `wrong`, the colour of the cell `predicted`; empty for none.
        cells: further cells by column name.
    """
    return {"text": text, "text_pair": text_pair, "verdict": verdict, "cells": cells}


def _with_others(worst: list[Any], others: Sequence[Any], count: int) -> list[Any]:
    """Return the worst items, filled up to `count` with others, evenly spread."""
    left = count - len(worst)
    return [*worst, *others[:: max(1, len(others) // left)][:left]]


def _labels(
    task: AnyTask,
    examples: Sequence[ClassificationExample],
    predictions: Sequence[ClassificationPrediction],
) -> tuple[Items, str]:
    """Show errors first, the most confident first."""
    if task.settings.is_multi_label:
        return _label_sets(examples, predictions)
    pairs = sorted(zip(examples, predictions, strict=True), key=lambda pair: -pair[1].scores.max())
    wrong = [_label(*pair) for pair in pairs if pair[0].label != pair[1].label]
    right = [_label(*pair) for pair in pairs if pair[0].label == pair[1].label]
    note = f"{len(right):,} of {len(pairs):,} random examples are right. Confident errors come first, then right ones."
    return _with_others(wrong[:NUM_WORST], right, NUM_SHOWN), note


def _label(example: ClassificationExample, prediction: ClassificationPrediction) -> dict[str, Any]:
    scores, truth = dict(prediction.ranked()), example.label or ""
    return _row(
        example.text,
        text_pair=example.text_pair,
        verdict="right" if truth == prediction.label else "wrong",
        truth=truth,
        predicted=prediction.label,
        score=format_percent(scores[prediction.label]),
        **{"score of the truth": format_percent(scores[truth]) if truth in scores else ""},
    )


def _label_sets(
    examples: Sequence[ClassificationExample], predictions: Sequence[ClassificationPrediction]
) -> tuple[Items, str]:
    """Show texts whose labels differ first, those with most differences first."""
    both = zip(examples, predictions, strict=True)
    pairs = [(len(set(example.labels or ()) ^ set(found.selected)), example, found) for example, found in both]
    rows = [
        _row(
            example.text,
            text_pair=example.text_pair,
            verdict="wrong" if distance else "right",
            truth=", ".join(example.labels or ()) or NO_LABELS,
            predicted=", ".join(prediction.selected) or NO_LABELS,
            score=", ".join(f"{name} {format_percent(score)}" for name, score in prediction.ranked()[:3]),
        )
        for distance, example, prediction in sorted(pairs, key=lambda item: -item[0])
    ]
    wrong, right = ([row for row in rows if row["verdict"] == verdict] for verdict in ("wrong", "right"))
    note = f"All labels are right in {len(right):,} of {len(rows):,} random examples; most errors come first."
    return _with_others(wrong[:NUM_WORST], right, NUM_SHOWN), note


def _numbers(task: AnyTask, examples: Sequence[RegressionExample], predictions: Sequence[float]) -> tuple[Items, str]:
    """Show the largest errors first."""
    errors = [number - (example.label or 0.0) for example, number in zip(examples, predictions, strict=True)]
    order = sorted(range(len(errors)), key=lambda index: -abs(errors[index]))
    rows = [
        _row(
            examples[index].text,
            text_pair=examples[index].text_pair,
            truth=_words(examples[index].label),
            predicted=_words(predictions[index]),
            error=f"{errors[index]:+.3g}",
        )
        for index in _with_others(order[:NUM_WORST], order[NUM_WORST:], NUM_SHOWN)
    ]
    half = float(np.median(np.abs(errors)))
    return rows, (
        f"The largest errors in {len(errors):,} random examples, then some others; the median error is {half:.3g}."
    )


def _answers(
    task: AnyTask, examples: Sequence[SpanExample], predictions: Sequence[SpanPrediction]
) -> tuple[Items, str]:
    """Show wrong answers first, then partly right ones; the most confident first."""
    characters = scored_by_characters(examples)
    items = [_answer(*pair, characters=characters) for pair in zip(examples, predictions, strict=True)]
    items.sort(key=lambda item: -item["score"])
    wrong, near, right = ([item for item in items if item["verdict"] == kind] for kind in ("wrong", "near", "right"))
    note = (
        f"{len(right)} of {len(items)} random questions are answered exactly, {len(near)} partly. The most confident "
        "errors come first, then some answers that are partly or exactly right."
    )
    return _with_others(wrong[:NUM_WRONG_SPANS] + near[:NUM_NEAR_SPANS], right, NUM_SPANS), note


def _answer(example: SpanExample, prediction: SpanPrediction, *, characters: bool) -> dict[str, Any]:
    exact, f1 = squad_example_scores([prediction.text], [example.answers], characters=characters)
    verdict = "right" if exact[0] else "near" if f1[0] else "wrong"
    marks = []
    if prediction.has_answer:
        marks.append((prediction.spans[0].start, prediction.spans[0].end, verdict))
    if example.answers and example.answer_start >= 0:
        marks.append((example.answer_start, example.answer_start + len(example.answers[0]), "gold"))
    return {
        "question": example.question,
        "context": list(marked(example.context, marks)),
        "answer": prediction.text,
        "score": prediction.spans[0].score if prediction.has_answer else prediction.no_answer_score,
        "truths": list(dict.fromkeys(example.answers)),
        "verdict": verdict,
    }


def marked(text: str, marks: Sequence[tuple[int, int, str]], around: int = CONTEXT_CHARS) -> Iterator[tuple[str, str]]:
    """Split a text into pieces, each with the names of the marks that cover it, joined by a space.

    Args:
        marks: (start, end, name) in code points.
        around: code points to keep before the first and after the last mark; the cut is at a word.
    """
    first = min((start for start, _, _ in marks), default=0)
    last = max((end for _, end, _ in marks), default=0)
    first, last = _extend_to_words(text, first - around, last + around)
    cuts = sorted({first, last, *(cut for start, end, _ in marks for cut in (start, end) if first < cut < last)})
    if first > 0:
        yield "… ", ""
    for start, end in pairwise(cuts):
        yield text[start:end], " ".join(name for low, high, name in marks if low <= start and end <= high)
    if last < len(text):
        yield " …", ""


def _extend_to_words(text: str, first: int, last: int) -> tuple[int, int]:
    """Move bounds outwards to the next space, within the text."""
    first = 0 if first <= 0 else text.rfind(" ", 0, first) + 1
    end = text.find(" ", last) if last < len(text) else -1
    return first, len(text) if end < 0 else end


def _pairs(task: AnyTask, examples: Sequence[RegressionExample], predictions: Sequence[float]) -> tuple[Items, str]:
    """Show pairs of texts, the most similar vectors first."""
    rows = [
        _row(example.text, text_pair=example.text_pair, truth=_words(example.label), cosine=f"{cosine:.2f}")
        for cosine, example in sorted(zip(predictions, examples, strict=True), key=lambda pair: -pair[0])
    ]
    return rows, f"{len(rows)} random pairs, sorted by the cosine of their vectors."


def _choices(
    task: AnyTask,
    examples: Sequence[MultipleChoiceExample],
    predictions: Sequence[MultipleChoicePrediction],
) -> tuple[Items, str]:
    """Show errors first, each with its choices."""
    rows = []
    for example, prediction in zip(examples, predictions, strict=True):
        choices = [f"{number}. {choice}" for number, choice in enumerate(example.choices)]
        row = _row(
            " ".join(filter(None, (example.context, example.question))),
            text_pair=" · ".join(choices),
            verdict="right" if prediction.choice == example.label else "wrong",
            truth="" if example.label is None else choices[example.label],
            predicted=choices[prediction.choice],
            score=format_percent(prediction.scores.max()),
        )
        rows.append(row)
    rows.sort(key=_is_right)
    return rows, f"{sum(map(_is_right, rows))} of {len(rows)} random examples are right; errors come first."


def _is_right(row: Mapping[str, Any]) -> bool:
    return bool(row["verdict"] == "right")


def _entities(
    task: AnyTask, examples: Sequence[TaggingExample], predictions: Sequence[TaggingPrediction]
) -> tuple[Items, str]:
    """Show the true and the predicted entities; sentences with errors come first."""
    rows, labels = [], {tag for items in (examples, predictions) for item in items for tag in item.tags}
    for example, prediction in zip(examples, predictions, strict=True):
        truth, found = (_list_entities(example.words, tags, labels) for tags in (example.tags, prediction.tags))
        verdict = "right" if truth == found else "wrong"
        rows.append(_row(example.text, verdict=verdict, truth=truth, predicted=found))
    rows.sort(key=lambda row: (_is_right(row), row["cells"]["truth"] == NO_ENTITIES))
    num_right = sum(map(_is_right, rows))
    return rows, f"All entities are right in {num_right} of {len(rows)} random sentences; errors come first."


def _list_entities(words: Sequence[str], tags: Sequence[str], labels: Collection[str]) -> str:
    found = [f"{' '.join(words[first : last + 1])} ({kind})" for kind, first, last in chunks(tags, labels)]
    return " · ".join(found) or NO_ENTITIES


def show_table(task: AnyTask, examples: Sequence[Any], predictions: Sequence[Any]) -> tuple[Items, str]:
    """Show any task: text, truth and prediction."""
    items = []
    for example, prediction in zip(examples, predictions, strict=True):
        values = {item.name: getattr(example, item.name) for item in fields(example)}
        truth = next((_words(values[name]) for name in TRUTHS if values.get(name) is not None), "")
        texts = [_words(value) for name, value in values.items() if name not in (*TRUTHS, "id") and value is not None]
        found = next((name for name in PREDICTIONS if getattr(prediction, name, None) is not None), None)
        guess = _words(getattr(prediction, found) if found else prediction)
        items.append(_row(" · ".join(filter(None, texts)), truth=truth, predicted=guess))
    return items, f"{len(items)} random examples."


def _words(value: Any) -> str:
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, str | int):
        return str(value)
    if isinstance(value, float | np.floating):
        return f"{value:,.0f}" if abs(float(value)) >= 1000 else f"{value:.3g}"
    return " ".join(map(_words, value)) if isinstance(value, Iterable) else str(value)


def format_percent(fraction: float) -> str:
    """Format a probability as 12.3%."""
    return f"{fraction:.1%}" if fraction >= 0.001 or fraction == 0 else "<0.1%"


Show = Callable[[AnyTask, Any, Any], tuple[Items, str]]
SHOWN: dict[str, Show] = {
    "masked-lm": _masked_words,
    "classification": _labels,
    "spans": _answers,
    "regression": _numbers,
    "embedding": _pairs,
    "multiple-choice": _choices,
    "tagging": _entities,
}
