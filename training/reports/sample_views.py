"""Views of predictions for the report: a row for each example, errors first.

To show a new task better than by its fields, add a function to `VIEWS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
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
from training.reports.page import Cell, Content, Table

NUM_SHOWN, NUM_WORST = 18, 12
"""Number of rows of a table, and how many of them are the worst."""
CONTEXT_CHARS = 320
"""Code points of a context that are shown before and after the answers."""
MAX_CHARS = 420
"""Code points of other texts that are shown."""
TRUTHS = ("label", "labels", "tags", "value", "score", "answers", "answer")
"""Fields that may hold the truth of an example of any task."""
PREDICTIONS = ("label", "labels", "tags", "value", "text", "choice", "score")
"""Fields that may hold the prediction."""
ORDERS = {
    "regression": "the largest errors come first",
    "embedding": "sorted by the cosine of their vectors",
    "masked-lm": "marked words are predicted first, among the first five, or not among them",
}
"""Orders or colours of rows that are no errors."""


@dataclass(frozen=True)
class Sample:
    """Row of an example with its prediction."""

    cells: Mapping[str, Content]
    """Cells by column, the text first."""
    verdict: str = ""
    """`wrong`, `near` or `right`; empty if predictions of the task are none of them."""
    rank: float = 0.0
    """Order of rows of a verdict, the largest first."""


def sample_table(task: AnyTask, examples: Sequence[Any], predictions: Sequence[Any]) -> tuple[Table, str]:
    """Return some rows, errors first, and a sentence about all examples."""
    view = VIEWS.get(task.name, _fields)
    samples = [view(task, *pair) for pair in zip(examples, predictions, strict=True)]
    samples.sort(key=lambda sample: -sample.rank)
    wrong = [sample for sample in samples if sample.verdict in ("wrong", "")]
    near, right = ([sample for sample in samples if sample.verdict == verdict] for verdict in ("near", "right"))
    worst, others = wrong[:NUM_WORST], [*near, *right] or wrong[NUM_WORST:]
    room = NUM_SHOWN - len(worst)
    shown = [*worst, *others[:: max(1, len(others) // room)][:room]]
    note = f"{len(samples):,} random examples"
    if task.name in ORDERS:
        note += f"; {ORDERS[task.name]}"
    elif any(sample.verdict for sample in samples):
        partly = f", {len(near):,} partly" if near else ""
        note = f"{len(right):,} of {note} are right{partly}. The most confident errors come first, then others"
    header = list(dict.fromkeys(name for sample in shown for name in sample.cells))
    return Table([[sample.cells.get(name, "") for name in header] for sample in shown], header, "examples"), f"{note}."


def _sample(text: str, *, truth: str, predicted: str, is_right: bool, rank: float = 0.0, **cells: str) -> Sample:
    verdict = "right" if is_right else "wrong"
    found = Cell(_shortened(predicted), verdict)
    return Sample({"text": _shortened(text), "truth": _shortened(truth), "predicted": found, **cells}, verdict, rank)


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]}…"


def _texts(example: Any) -> str:
    """Return the text of an example, with its pair in a second line."""
    return "\n".join(map(_shortened, filter(None, (example.text, example.text_pair))))


def _masked_words(task: AnyTask, example: ClozeExample, prediction: MaskPrediction) -> Sample:
    """Mark the masked words in the text, and list the five most likely words for each."""
    parts = example.text.split(task.tokenizer.mask_token)
    text: list[str | Cell] = [parts[0]]
    guesses: list[str | Cell] = []
    for number, part in enumerate(parts[1:]):
        if number >= min(len(prediction.log_probs), len(example.tokens)):  # cut off
            text += [task.tokenizer.mask_token, part]
            continue
        truth, row = example.tokens[number], prediction.log_probs[number]
        true_id = task.tokenizer.token_id(truth)
        rank = int((row > row[true_id]).sum()) + 1
        verdict = "right" if rank == 1 else "near" if rank <= 5 else "wrong"
        top = [f"{task.tokenizer.token(token)} {format_percent(score)}" for token, score in prediction.top(number, 5)]
        text += [Cell(truth, verdict), part]
        missed = f"; rank {rank:,}, {format_percent(float(np.exp(row[true_id])))}" if verdict == "wrong" else ""
        guesses += [Cell(truth, verdict), f" {', '.join(top)}{missed}\n"]
    return Sample({"text": text, "most likely words": guesses})


def _label(task: AnyTask, example: ClassificationExample, prediction: ClassificationPrediction) -> Sample:
    scores = dict(prediction.ranked())
    if task.settings.is_multi_label:
        truth, found = example.labels or (), prediction.selected
        return _sample(
            _texts(example),
            truth=", ".join(truth) or "none",
            predicted=", ".join(found) or "none",
            is_right=set(truth) == set(found),
            rank=len({*truth} ^ {*found}),
            score=", ".join(f"{name} {format_percent(score)}" for name, score in prediction.ranked()[:3]),
        )
    label = example.label or ""
    return _sample(
        _texts(example),
        truth=label,
        predicted=prediction.label,
        is_right=label == prediction.label,
        rank=scores[prediction.label],
        score=format_percent(scores[prediction.label]),
        **{"score of the truth": format_percent(scores[label]) if label in scores else ""},
    )


def _number(task: AnyTask, example: RegressionExample, prediction: float) -> Sample:
    error = prediction - (example.label or 0.0)
    cells = {"truth": _words(example.label), "predicted": _words(prediction), "error": f"{error:+.3g}"}
    return Sample({"text": _texts(example), **cells}, rank=abs(error))


def _pair(task: AnyTask, example: RegressionExample, cosine: float) -> Sample:
    return Sample(
        {"text": _texts(example), "truth": _words(example.label), "cosine": f"{cosine:.2f}"}, rank=float(cosine)
    )


def _answer(task: AnyTask, example: SpanExample, prediction: SpanPrediction) -> Sample:
    """Mark the true and the predicted answer in the context."""
    exact, f1 = squad_example_scores([prediction.text], [example.answers], characters=scored_by_characters([example]))
    verdict = "right" if exact[0] else "near" if f1[0] else "wrong"
    marks = []
    if prediction.has_answer:
        marks.append((prediction.spans[0].start, prediction.spans[0].end, verdict))
    if example.answers and example.answer_start >= 0:
        marks.append((example.answer_start, example.answer_start + len(example.answers[0]), "gold"))
    context = [Cell(piece, names) if names else piece for piece, names in marked(example.context, marks)]
    score = prediction.spans[0].score if prediction.has_answer else prediction.no_answer_score
    cells: dict[str, Content] = {
        "text": [Cell(example.question, "strong"), "\n", *context],
        "truth": " / ".join(dict.fromkeys(example.answers)) or "no answer",
        "predicted": Cell(prediction.text or "no answer", verdict),
        "score": format_percent(score),
    }
    return Sample(cells, verdict, score)


def marked(text: str, marks: Sequence[tuple[int, int, str]], around: int = CONTEXT_CHARS) -> Iterator[tuple[str, str]]:
    """Split a text into pieces, each with the names of the marks that cover it, joined by a space.

    Args:
        marks: (start, end, name) in code points.
        around: code points to keep before the first and after the last mark; the cut is at a word.
    """
    first = min((start for start, _, _ in marks), default=0) - around
    last = max((end for _, end, _ in marks), default=0) + around
    first = 0 if first <= 0 else text.rfind(" ", 0, first) + 1
    last = len(text) if last >= len(text) or (space := text.find(" ", last)) < 0 else space
    cuts = sorted({first, last, *(cut for start, end, _ in marks for cut in (start, end) if first < cut < last)})
    if first > 0:
        yield "… ", ""
    for start, end in pairwise(cuts):
        yield text[start:end], " ".join(name for low, high, name in marks if low <= start and end <= high)
    if last < len(text):
        yield " …", ""


def _choice(task: AnyTask, example: MultipleChoiceExample, prediction: MultipleChoicePrediction) -> Sample:
    choices = [f"{number}. {choice}" for number, choice in enumerate(example.choices)]
    question = " ".join(filter(None, (example.context, example.question)))
    return _sample(
        "\n".join([_shortened(question), *choices]),
        truth="" if example.label is None else choices[example.label],
        predicted=choices[prediction.choice],
        is_right=prediction.choice == example.label,
        rank=float(prediction.scores.max()),
        score=format_percent(prediction.scores.max()),
    )


def _entities(task: AnyTask, example: TaggingExample, prediction: TaggingPrediction) -> Sample:
    labels = task.settings.labels
    truth, found = (
        " · ".join(
            f"{' '.join(example.words[first : last + 1])} ({kind})" for kind, first, last in chunks(tags, labels)
        )
        for tags in (example.tags, prediction.tags)
    )
    return _sample(
        example.text, truth=truth or "none", predicted=found or "none", is_right=truth == found, rank=bool(truth)
    )


def _fields(task: AnyTask, example: Any, prediction: Any) -> Sample:
    """Show an example of any task: text, truth and prediction."""
    values = {item.name: getattr(example, item.name) for item in fields(example)}
    truth = next((_words(values[name]) for name in TRUTHS if values.get(name) is not None), "")
    texts = [_words(value) for name, value in values.items() if name not in (*TRUTHS, "id") and value is not None]
    found = next((name for name in PREDICTIONS if getattr(prediction, name, None) is not None), None)
    guess = _words(getattr(prediction, found) if found else prediction)
    text = _shortened(" · ".join(filter(None, texts)))
    return Sample({"text": text, "truth": _shortened(truth), "predicted": _shortened(guess)})


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


VIEWS: dict[str, Callable[[AnyTask, Any, Any], Sample]] = {
    "masked-lm": _masked_words,
    "classification": _label,
    "spans": _answer,
    "regression": _number,
    "embedding": _pair,
    "multiple-choice": _choice,
    "tagging": _entities,
}
