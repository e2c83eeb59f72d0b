"""Doubts about data after reading: what parses may still not be what was meant. Each is one line, with counts."""

from __future__ import annotations

import sys
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from training.data.cells import to_number
from training.data.examples import Examples, inputs_of, labels_of

MIN_EXAMPLES = 5
"""Number of examples of a class below which it is hardly learnt."""
MAX_LISTED = 8
"""Most labels that a line names."""

_MARKS = ("-1", "-100", "-", "--", "?", "n/a", "na", "#n/a", "<na>", "nan", "null", "unlabeled", "unlabelled")
"""Labels that often mean that there is none, in lower case."""


def report_doubts(name: str, examples: Examples, others: Iterable[str] = (), *, are_trained_on: bool = False) -> None:
    """Print notes on how examples were read, and a warning for each doubt about them.

    Args:
        name: name of the examples, such as `training data`.
        others: further doubts.
        are_trained_on: True to name classes with few examples.
    """
    for note in examples.notes:
        print(f"note: {note}", flush=True)
    for line in (*doubts(examples, are_trained_on=are_trained_on), *others):
        print(f"warning: {name}: {line}", file=sys.stderr)


def doubts(examples: Examples, *, are_trained_on: bool = False) -> list[str]:
    """Return what looks wrong in the texts and labels of examples."""
    labels = [labels_of(example) for example in examples]
    counts = Counter(label for item in labels for label in item)
    texts = [text for example in examples for text in inputs_of(example) if isinstance(text, str)]
    lines = [_constant(labels, counts), _disagreements(examples, labels), quoting("texts", texts)]
    if not any(hasattr(example, "tags") for example in examples):
        lines.append(_marks(counts))
    if not any(isinstance(getattr(example, "label", None), float) for example in examples):
        lines += [_spellings(counts), quoting("labels", list(counts), fraction=0)]
    if are_trained_on and any(isinstance(getattr(example, "label", None), str) for example in examples):
        rare = [name for name in counts if counts[name] < MIN_EXAMPLES]
        few = f"{len(rare)} of {len(counts)} labels have fewer than {MIN_EXAMPLES} examples"
        lines.append(f"{few}: {listed(rare, counts)}" if rare else "")
    return list(filter(None, lines))


def listed(names: Sequence[str], counts: Mapping[str, int]) -> str:
    """Return some labels with their numbers of examples."""
    more = ", …" if len(names) > MAX_LISTED else ""
    return ", ".join(f"`{visible(name)}` {counts[name]:,}" for name in names[:MAX_LISTED]) + more


def visible(text: str) -> str:
    """Return a text with escapes for invisible characters, and for letters that are written as several characters."""
    is_plain = text.isprintable() and unicodedata.is_normalized("NFC", text)
    return text if is_plain else text.encode("unicode_escape").decode()


def quoting(name: str, texts: Sequence[str], fraction: float = 0.5) -> str:
    """Describe quotes that a file format left: doubled ones, backslashes before them, or quotes around whole texts.

    Args:
        name: what the texts are, in the plural.
        fraction: fraction of texts up to which quotes around them are their own.
    """
    odd = [text for text in texts if '\\"' in text or '""' in text]
    within = [text for text in texts if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"]
    if len(within) > fraction * len(texts):
        odd += within
    if not odd:
        return ""
    return f"{len(odd):,} of {len(texts):,} {name} look quoted or escaped, such as `{odd[0][:60]}`; check the file"


def _constant(labels: Sequence[tuple[str, ...]], counts: Mapping[str, int]) -> str:
    if len(labels) < 2 or len(counts) != 1 or not all(labels):
        return ""
    return f"every label is `{visible(next(iter(counts)))}`, so that nothing is learnt or compared"


def _marks(counts: Mapping[str, int]) -> str:
    marks = [name for name in counts if name.casefold() in _MARKS]
    if any(to_number(name) < 0 for name in counts if name not in marks):  # a scale such as -2 to 2
        marks = [name for name in marks if to_number(name) != -1]
    if not marks or len(marks) == len(counts):
        return ""
    names = " ".join(marks)
    return f"labels that often mean none: {listed(marks, counts)}; leave them out with --columns.no-label {names}"


def _spellings(counts: Mapping[str, int]) -> str:
    groups = defaultdict(list)
    for name in counts:
        shown = (char for char in unicodedata.normalize("NFKC", name) if unicodedata.category(char) != "Cf")
        key = " ".join("".join(shown).casefold().split())
        groups[key.lstrip("0") if key.isdecimal() else key].append(name)
    alike = [name for names in groups.values() if len(names) > 1 for name in sorted(names)]
    differ = "labels that differ only in case, Unicode form, leading zeros or invisible characters"
    return f"{differ}: {listed(alike, counts)}" if alike else ""


def _disagreements(examples: Examples, labels: Sequence[tuple[str, ...]]) -> str:
    first: dict[tuple[Any, ...], int] = {}
    pairs: dict[int, int] = {}
    for number, example in enumerate(examples):
        inputs = tuple(inputs_of(example))
        if labels[before := first.setdefault(inputs, number)] != labels[number]:
            pairs.setdefault(before, number)
    if not pairs:
        return ""
    numbers = next(iter(pairs.items()))
    found = " and ".join(f"`{', '.join(labels[n])[:40]}` ({examples.locations[n]})" for n in numbers)
    return f"inputs that occur with different labels: {len(pairs):,}, the first with {found}"
