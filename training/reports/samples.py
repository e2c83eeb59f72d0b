"""What a checkpoint makes of some examples, ready to be shown by `training.report`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from tasks import AnyTask
from tasks.classification import ClassificationExample, ClassificationPrediction
from tasks.embedding import Embedding
from tasks.masked_lm import ClozeExample, MaskPrediction
from tasks.metrics import squad_example_scores
from tasks.multiple_choice import MultipleChoiceExample, MultipleChoicePrediction
from tasks.regression import RegressionExample
from tasks.spans import SpanExample, SpanPrediction, scored_by_characters
from tasks.tagging import TaggingExample, TaggingPrediction
from tasks.tags import chunks
from training.corpus import Corpus
from training.data.cloze import cloze_examples
from training.data.columns import dev_columns, existing_columns
from training.data.examples import Examples, encode_examples
from training.data.hub import is_hub
from training.data.labelled import read_examples, read_similarities
from training.data.sources import source_digest, source_names
from training.evaluate import LanguageModelError, load_for_evaluation, predict_with_progress
from training.similarity import cosines
from training.task_card import read_task_card
from training.weights import has_weights

NUM_PREDICTED = {"masked-lm": 8, "classification": 500, "regression": 500, "spans": 40}
"""Examples to predict, drawn at random; for other tasks 20."""
NUM_SHOWN, NUM_WORST = 18, 12
"""Examples to show of those that are predicted in numbers, and how many of these may be the worst."""
NUM_SPANS, NUM_WRONG_SPANS, NUM_NEAR_SPANS = 10, 4, 3
"""The same of spans, which need more space."""
MAX_PASSAGE_TOKENS = 48
CONTEXT_CHARS = 320
"""Code points of a context that are shown before and after the answers."""
TRUTHS = ("label", "labels", "tags", "value", "score", "answers", "answer")
"""Fields that may hold the truth of an example, whatever the task."""
PREDICTIONS = ("label", "labels", "tags", "value", "text", "choice", "score")
NO_ENTITIES = "none"


@dataclass(frozen=True)
class Samples:
    """Examples with predictions."""

    kind: str
    """How to show them: masked-lm, spans, or table (see `_row`)."""
    note: str
    """Where they are from, and how many were right; without items, why there are none."""
    items: Sequence[Mapping[str, Any]] = ()


def sample_predictions(run: Path, recipe: Mapping[str, Any], data: Sequence[Path] = ()) -> Samples:
    """Predictions of a run's checkpoint.

    Args:
        recipe: the run's recipe.json.
        data: files with examples; none for the dev data of the recipe, if it is still there.

    Raises:
        ValueError: for `data` that cannot be used, or a broken checkpoint.
    """
    checkpoint = run / "checkpoint"
    if not checkpoint.is_dir():
        return Samples("", "None yet: the run has no checkpoint, it is not finished.")
    if not has_weights(checkpoint):
        return Samples("", "None: the checkpoint has no weights; a grid keeps those of its best run alone.")
    try:
        task, model = load_for_evaluation(checkpoint)
    except LanguageModelError as error:
        return Samples("", f"None: {error}.")
    examples, source = _examples(task, checkpoint, recipe, data)
    if not examples:
        return Samples("", source)
    if isinstance(task, Embedding):
        predictions = cosines(examples, lambda texts: predict_with_progress(task, texts, model))
    else:
        predictions = predict_with_progress(task, examples, model)
    items, how_many = SHOWN.get(task.name, _table)(task, examples, predictions)
    return Samples(task.name if task.name in ("masked-lm", "spans") else "table", f"{how_many} {source}", items)


def _examples(
    task: AnyTask, checkpoint: Path, recipe: Mapping[str, Any], data: Sequence[Path]
) -> tuple[list[Any], str]:
    """Examples, and a sentence that says where they are from; without examples, why there are none."""
    if data:
        return _read(task, data, recipe), f"From {_names(data)}."
    try:
        if task.name == "masked-lm":
            return _from_corpus(task, recipe)
        paths = [Path(path) for path in recipe.get("dev", ())]
        if not paths:
            return [], "None: the run had no dev data; --data FILE gives some."
        if gone := [path for path in paths if not (is_hub(path) or path.is_file())]:
            return (
                [],
                f"None: {_names(gone)} is no longer where the recipe says ({gone[0]}); --data FILE gives it anew.",
            )
        changed = _changed(checkpoint, recipe, paths)
        return _read(task, paths, recipe), f"From {_names(paths)}, dev data of the run.{changed}"
    except ValueError as error:
        return [], f"None: {error}"


def _read(task: AnyTask, paths: Sequence[Path], recipe: Mapping[str, Any]) -> Examples:
    """Some random examples."""
    columns = existing_columns(paths, dev_columns(recipe))
    if isinstance(task, Embedding):
        return _some(task, read_similarities(paths, columns=columns, tokenizer=task.tokenizer))
    passage_tokens = _passage_tokens(task)
    read = read_examples(task.name, paths, columns=columns, tokenizer=task.tokenizer, max_passage_tokens=passage_tokens)
    examples = _some(task, read)
    encode_examples(task, examples)
    return examples


def _some(task: AnyTask, examples: Examples) -> Examples:
    return examples.sample(NUM_PREDICTED.get(task.name, 20))


def _changed(checkpoint: Path, recipe: Mapping[str, Any], paths: Sequence[Path]) -> str:
    """A warning, when dev data is no longer what the run was scored on."""
    card = read_task_card(checkpoint)
    digests = card.provenance.get("data", {}) if card else {}
    data = [*map(Path, recipe.get("train", ())), *paths]
    names = dict(zip(data, source_names(data), strict=True))
    known = [path for path in paths if names[path] in digests]
    changed = ", ".join(names[path] for path in known if digests[names[path]] != source_digest(path))
    return f" But {changed} has changed since: its digest is another." if changed else ""


def _names(paths: Sequence[Path]) -> str:
    return ", ".join(source_names(paths))


def _from_corpus(task: AnyTask, recipe: Mapping[str, Any]) -> tuple[list[ClozeExample], str]:
    for key, what in (("dev_corpus", "the held-out corpus"), ("corpus", "the corpus it was trained on")):
        path = Path(recipe.get(key) or "")
        if recipe.get(key) and path.is_dir():
            passages = corpus_passages(Corpus(path), _passage_tokens(task), NUM_PREDICTED["masked-lm"])
            return list(
                cloze_examples(passages, task.tokenizer)
            ), f"From {path.name}, {what}; its text is put together from token ids."
    return [], "None: the corpora of the recipe are no longer where it says; --data TEXT gives running text."


def _passage_tokens(task: AnyTask) -> int:
    return min(MAX_PASSAGE_TOKENS, task.settings.max_seq_length - 2)


def corpus_passages(corpus: Corpus, max_tokens: int, count: int) -> Iterator[str]:
    """Texts of up to `count` documents, from anywhere in them: whole sentences, as many as fit, back from ids."""
    rng = np.random.default_rng(0)
    found = 0
    for document in rng.permutation(corpus.num_documents)[: 20 * count]:
        ends = corpus.sentence_ends(int(document))
        first = int(rng.integers(len(ends) - 1))
        sizes = ends[first + 1 :] - ends[first]
        last = first + int(np.searchsorted(sizes, max_tokens, side="right"))
        if last > first and sizes[last - first - 1] >= max_tokens // 3:
            ids = corpus.tokens(int(document), first, last)
            text = corpus.tokenizer.backend.decode(ids.tolist(), skip_special_tokens=False)
            yield re.sub(r"(\w) ' (s|t|re|ve|ll|d|m)\b", r"\1'\2", text)
            found += 1
        if found == count:
            return


def _masked_words(
    task: AnyTask, examples: Sequence[ClozeExample], predictions: Sequence[MaskPrediction]
) -> tuple[list[dict[str, Any]], str]:
    items: list[dict[str, Any]] = []
    for example, prediction in zip(examples, predictions, strict=True):
        masks = [
            _mask(task, prediction, number, truth)
            for number, truth in enumerate(example.tokens[: len(prediction.log_probs)])
        ]
        texts = example.text.split("[MASK]")
        items.append({"texts": texts, "masks": masks})
    verdicts = [mask["verdict"] for item in items for mask in item["masks"]]
    right, top = verdicts.count("right"), len(verdicts) - verdicts.count("wrong")
    return items, f"{right} of {len(verdicts)} masked words are the likeliest, {top} among the five likeliest."


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
    """A row of a table.

    Args:
        text: an example, with `text_pair` below it.
        verdict: on the cell `predicted`: right or wrong, where it is one of them.
        cells: further columns by name.
    """
    return {"text": text, "text_pair": text_pair, "verdict": verdict, "cells": cells}


def _with_others(worst: list[Any], others: Sequence[Any], count: int) -> list[Any]:
    """The worst ones, and of the others so many, evenly spread, that they are `count` together."""
    left = count - len(worst)
    return [*worst, *others[:: max(1, len(others) // left)][:left]]


def _labels(
    task: AnyTask,
    examples: Sequence[ClassificationExample],
    predictions: Sequence[ClassificationPrediction],
) -> tuple[list[dict[str, Any]], str]:
    """Wrong ones first, the surest first."""
    pairs = sorted(zip(examples, predictions, strict=True), key=lambda pair: -pair[1].scores.max())
    wrong = [_label(*pair) for pair in pairs if pair[0].label != pair[1].label]
    right = [_label(*pair) for pair in pairs if pair[0].label == pair[1].label]
    note = f"{len(right):,} of {len(pairs):,} random examples are right. The surest mistakes, then some right ones."
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


def _numbers(
    task: AnyTask, examples: Sequence[RegressionExample], predictions: Sequence[float]
) -> tuple[list[dict[str, Any]], str]:
    """The largest errors first."""
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
        f"The largest errors in {len(errors):,} random examples, then some of the others; half of all errors are below "
        f"{half:.3g}."
    )


def _answers(
    task: AnyTask, examples: Sequence[SpanExample], predictions: Sequence[SpanPrediction]
) -> tuple[list[dict[str, Any]], str]:
    """Wrong ones first, then those that are partly right; of each the surest first."""
    characters = scored_by_characters(examples)
    items = [_answer(*pair, characters=characters) for pair in zip(examples, predictions, strict=True)]
    items.sort(key=lambda item: -item["score"])
    wrong, near, right = ([item for item in items if item["verdict"] == kind] for kind in ("wrong", "near", "right"))
    note = (
        f"{len(right)} of {len(items)} random questions are answered exactly, {len(near)} partly. The surest mistakes, "
        "then some that are partly or wholly right."
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
    """A text in pieces, each with the names of the marks that cover it, joined by a space.

    Args:
        marks: (start, end, name), code points.
        around: what is further from all marks is cut off, at a word.
    """
    first = min((start for start, _, _ in marks), default=0)
    last = max((end for _, end, _ in marks), default=0)
    first, last = _cut(text, first - around, last + around)
    cuts = sorted({first, last, *(place for start, end, _ in marks for place in (start, end) if first < place < last)})
    if first > 0:
        yield "… ", ""
    for start, end in pairwise(cuts):
        yield text[start:end], " ".join(name for low, high, name in marks if low <= start and end <= high)
    if last < len(text):
        yield " …", ""


def _cut(text: str, first: int, last: int) -> tuple[int, int]:
    """Bounds moved outwards to the next space, within the text."""
    first = 0 if first <= 0 else text.rfind(" ", 0, first) + 1
    end = text.find(" ", last) if last < len(text) else -1
    return first, len(text) if end < 0 else end


def _pairs(
    task: AnyTask, examples: Sequence[RegressionExample], predictions: Sequence[float]
) -> tuple[list[dict[str, Any]], str]:
    """Pairs of texts, those with the most similar vectors first."""
    rows = [
        _row(example.text, text_pair=example.text_pair, truth=_words(example.label), cosine=f"{cosine:.2f}")
        for cosine, example in sorted(zip(predictions, examples, strict=True), key=lambda pair: -pair[0])
    ]
    return rows, f"{len(rows)} random pairs, by the cosine of their vectors."


def _choices(
    task: AnyTask,
    examples: Sequence[MultipleChoiceExample],
    predictions: Sequence[MultipleChoicePrediction],
) -> tuple[list[dict[str, Any]], str]:
    """Wrong ones first, each with its choices."""
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
    return rows, f"{sum(map(_is_right, rows))} of {len(rows)} random examples are right; the wrong ones come first."


def _is_right(row: Mapping[str, Any]) -> bool:
    return bool(row["verdict"] == "right")


def _entities(
    task: AnyTask, examples: Sequence[TaggingExample], predictions: Sequence[TaggingPrediction]
) -> tuple[list[dict[str, Any]], str]:
    """The entities that there are and those that were found; sentences in which these differ come first."""
    rows, labels = [], {tag for items in (examples, predictions) for item in items for tag in item.tags}
    for example, prediction in zip(examples, predictions, strict=True):
        truth, found = (_spelt(example.words, tags, labels) for tags in (example.tags, prediction.tags))
        verdict = "right" if truth == found else "wrong"
        rows.append(_row(example.text, verdict=verdict, truth=truth, predicted=found))
    rows.sort(key=lambda row: (_is_right(row), row["cells"]["truth"] == NO_ENTITIES))
    num_right = sum(map(_is_right, rows))
    return rows, f"All entities are right in {num_right} of {len(rows)} random sentences; the others come first."


def _spelt(words: Sequence[str], tags: Sequence[str], labels: Collection[str]) -> str:
    found = [f"{' '.join(words[first : last + 1])} ({kind})" for kind, first, last in chunks(tags, labels)]
    return " · ".join(found) or NO_ENTITIES


def _table(task: AnyTask, examples: Sequence[Any], predictions: Sequence[Any]) -> tuple[list[dict[str, Any]], str]:
    """Any task: what an example says, its truth, and what was predicted."""
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


def format_percent(share: float) -> str:
    """A probability as 12.3%."""
    return f"{share:.1%}" if share >= 0.001 or share == 0 else "<0.1%"


Show = Callable[[AnyTask, Any, Any], tuple[list[dict[str, Any]], str]]
SHOWN: dict[str, Show] = {
    "masked-lm": _masked_words,
    "classification": _labels,
    "spans": _answers,
    "regression": _numbers,
    "embedding": _pairs,
    "multiple-choice": _choices,
    "tagging": _entities,
}
