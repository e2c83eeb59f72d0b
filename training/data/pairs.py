"""Pairs of texts for contrastive training: their negatives, and what their labels mean."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.data.cells import is_list_text, read_table, text_cell, text_list, to_number
from training.data.columns import Columns
from training.data.examples import Examples

POSITIVE_WORDS = frozenset(
    {"duplicate", "entailment", "equivalent", "paraphrase", "positive", "relevant", "similar", "true", "yes"}
)
"""Labels of pairs with the same meaning."""
MAYBE_CLASSES = frozenset({"-1", "0", "1", "2"})
"""Labels that may be scores, or numbers of classes: none, entailment, neutral, contradiction."""
MAX_SHOWN = 6
"""Most labels that a message shows."""


@dataclass(frozen=True)
class TrainingTexts:
    """Texts to train on."""

    views: Examples
    """Tuples of a text, its positive and its negatives; of both texts of a pair if it has a score."""
    scores: Sequence[float] = ()
    """Score of each pair, greater for more similar texts; empty if all are positives."""
    notes: Sequence[str] = ()
    """Lines about labels and columns, for the user."""


@dataclass(frozen=True, slots=True)
class TextPair:
    """A text with its pair, its negatives and its label."""

    texts: tuple[str, ...]
    label: str
    """Label as `plain_label` writes it; "" for none."""


def read_pairs(paths: Sequence[Path], columns: Columns) -> tuple[Examples, Counter[str]]:
    """Read all pairs of some tables.

    Negatives stand in a column, as a text or a list, and in columns of that name with a number, such as `negative_2`.

    Returns:
        The pairs, and the number of rows that have each column.

    Raises:
        ValueError: naming file, line and column of a missing or malformed text; or if there are no pairs.
    """
    names = Counter[str]()

    def pair_of(location: str, row: dict[str, Any]) -> TextPair:
        texts = [text_cell(location, row, name) for name in (columns.text, columns.text_pair)]
        for name in negative_columns(row, columns):
            value = row[name]
            is_list = isinstance(value, list) or (isinstance(value, str) and is_list_text(value))
            texts += text_list(location, row, name) if is_list else [text_cell(location, row, name)]
        names.update(row.keys())
        return TextPair(tuple(texts), plain_label(row.get(columns.label)))

    pairs = Examples()
    for path in paths:
        pairs.join(read_table(path, columns, pair_of))
    if not pairs:
        raise ValueError(f"no pairs in {', '.join(f'`{path}`' for path in paths)}")
    return pairs, names


def negative_columns(names: Iterable[str], columns: Columns) -> list[str]:
    """Return the columns with negatives."""
    return [name for name in names if re.fullmatch(rf"{re.escape(columns.negative)}([_-]?\d+)?", name)]


def plain_label(value: Any) -> str:
    """Return a label in one spelling: `1` for 1, 1.0 and true; "" for an empty cell."""
    number = to_number(int(value) if isinstance(value, bool) else value)
    if math.isfinite(number):
        return str(int(number) if number.is_integer() else number)
    return "" if value is None or value != value else str(value).strip()


def find_positives(labels: Mapping[str, int]) -> set[str] | None:
    """Return the labels of positives, found by their names; None if labels are scores.

    Args:
        labels: number of pairs of each label.

    Raises:
        ValueError: naming the labels, if this cannot be told from them.
    """
    numbers = {label for label in labels if math.isfinite(to_number(label))}
    words = labels.keys() - numbers - {""}
    if numbers <= {"0", "1"} or numbers <= {"-1", "1"}:
        positives = {label for label in words if label.casefold() in POSITIVE_WORDS} | ({"1"} if numbers else set())
        if positives:
            return positives
    elif not words and not numbers <= MAYBE_CLASSES:
        return None
    raise ValueError(
        f"cannot tell which labels mean the same: {describe_labels(labels)}; name them with --positive-labels, or give "
        "--loss cosent if they are numbers, greater for more similar texts"
    )


def describe_labels(labels: Mapping[str, int]) -> str:
    """Return the commonest labels with their numbers of pairs."""
    common = Counter(labels).most_common(MAX_SHOWN)
    shown = [f"`{label[:40]}` {count:,}" if label else f"without a label {count:,}" for label, count in common]
    return ", ".join(shown) + (", …" if len(labels) > MAX_SHOWN else "")


def positive_pairs(pairs: Examples, positives: Collection[str], column: str) -> TrainingTexts:
    """Return the pairs that have one of some labels.

    Raises:
        ValueError: if there are none, or as `views_of`.
    """
    labels = Counter(pair.label for pair in pairs)
    kept = {label: labels[label] for label in positives if label in labels}
    others = _others({label: count for label, count in labels.items() if label not in kept})
    if not kept:
        raise ValueError(f"no pair has a `{column}` that makes it a positive{others}")
    chosen = Examples(item for item in pairs.located() if item[1].label in kept)
    return TrainingTexts(views_of(chosen), notes=[f"positives by `{column}`: {describe_labels(kept)}{others}"])


def scored_pairs(pairs: Examples, column: str) -> TrainingTexts:
    """Return the pairs that have a score, without negatives.

    Raises:
        ValueError: naming the first label that is no number; or if all scores are equal.
    """
    chosen = Examples(item for item in pairs.located() if item[1].label)
    for location, pair in chosen.located():
        if not math.isfinite(to_number(pair.label)):
            raise ValueError(f"{location}: `{column}` must be a number: `{pair.label[:60]}`")
    labels = Counter(pair.label for pair in chosen)
    if len(labels) < 2:
        raise ValueError(f"no pair is more similar than another by `{column}`: {describe_labels(labels)}")
    scores = [float(pair.label) for pair in chosen]
    others = _others({"": len(pairs) - len(chosen)} if len(chosen) < len(pairs) else {})
    note = f"scores in `{column}` from {min(scores):g} to {max(scores):g}, learnt in their order (CoSENT){others}"
    return TrainingTexts(chosen.map(lambda pair: pair.texts[:2]), scores, [note])


def _others(left_out: Mapping[str, int]) -> str:
    return f"; left out: {describe_labels(left_out)}" if left_out else ""


def views_of(pairs: Examples) -> Examples:
    """Return the texts of each pair.

    Raises:
        ValueError: naming the first pair that has more or fewer negatives than the first one.
    """
    views = pairs.map(lambda pair: pair.texts)
    for location, texts in views.located():
        if len(texts) != len(views[0]):
            raise ValueError(
                f"{location}: number of negatives `{len(texts) - 2}`, but {len(views[0]) - 2} in {views.locations[0]}; "
                "give all texts the same number"
            )
    return views
