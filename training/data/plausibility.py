"""Doubts about data after reading: what parses may still not be what was meant. Each is one line, with counts."""

from __future__ import annotations

import math
import sys
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from training.data.cells import is_list_text, to_number
from training.data.examples import Examples, inputs_of, labels_of

MIN_EXAMPLES = 5
"""Number of examples of a class below which it is hardly learnt."""
MAX_LISTED = 8
"""Most labels that a line names."""

_MARKS = ("-1", "-100", "-", "--", "?", "n/a", "na", "#n/a", "<na>", "\\n", "nan", "null", "unlabeled", "unlabelled")
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
    lines = [_constant(labels, counts), _disagreements(examples, labels), quoting("texts", texts), _no_texts(texts)]
    chosen = Counter(example.label for example in examples if hasattr(example, "choices"))
    if chosen.total() > 4 * MIN_EXAMPLES and not chosen[0]:
        lines.append("the first choice, number 0, is never right; do the numbers begin at 1?")
    if not any(hasattr(example, "tags") for example in examples):
        lines += [_marks(counts), _joined(counts)]
    if not any(isinstance(getattr(example, "label", None), float) for example in examples):
        lines += [_spellings(counts), quoting("labels", list(counts), fraction=0), _strange_file(examples, labels)]
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
    within = [text for text in texts if len(text.strip()) > 1 and text.lstrip()[0] == text.rstrip()[-1] in "\"'"]
    if len(within) > fraction * len(texts):
        odd += within
    if not odd:
        return ""
    return f"{len(odd):,} of {len(texts):,} {name} look quoted or escaped, such as `{odd[0][:60]}`; check the file"


def _no_texts(texts: Sequence[str]) -> str:
    """Describe texts that often mean that there is none, and lists that were printed as texts."""
    marks = Counter(text for text in texts if text.casefold() in _MARKS and text.upper() != text.lower())
    if marks:
        return f"texts that often mean none: {listed(list(marks), marks)}"
    lists = [text for text in texts if is_list_text(text)]
    count = f"{len(lists):,} of {len(texts):,} texts look like lists that a program printed"
    return f"{count}, such as `{lists[0][:60]}`" if 2 * len(lists) > len(texts) else ""


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
        groups[spelling(name)].append(name)
    alike = [name for names in groups.values() if len(names) > 1 for name in sorted(names)]
    differ = "labels that differ only in case, Unicode form, leading zeros or invisible characters"
    return f"{differ}: {listed(alike, counts)}" if alike else ""


def spelling(name: str) -> str | float:
    """Return a number, or what labels share that differ only in case, Unicode form or invisible characters."""
    shown = (char for char in unicodedata.normalize("NFKC", name) if unicodedata.category(char) != "Cf")
    key = " ".join("".join(shown).casefold().split())
    number = to_number(key)
    return number if math.isfinite(number) else key


def _joined(counts: Mapping[str, int]) -> str:
    """Describe labels that share parts between separators, as several labels in one text do (`a, b` beside `a`)."""
    for mark in "|;,":
        parts = Counter(part.strip() for name in counts for part in {*name.split(mark)})
        if joined := [
            name for name in counts if mark in name and any(parts[part.strip()] > 1 for part in name.split(mark))
        ]:
            hint = f"if each part is a label, give --columns.label-separator '{mark}'"
            return f"labels that look like several: {listed(joined, counts)}; {hint}"
    return ""


def _strange_file(examples: Examples, labels: Sequence[tuple[str, ...]]) -> str:
    """Describe a file with several labels that no other file has, as with words in one and numbers in another."""
    found = defaultdict[str, set[str]](set)
    for location, own in zip(examples.locations, labels, strict=True):
        found[location.rpartition("`, ")[0]].update(own)
    for file, names in found.items():
        others = set[str]().union(*(found[other] for other in found if other != file))
        if len(names) > 1 and len(others) > 1 and names.isdisjoint(others):
            listed_names = ", ".join(f"`{visible(name)}`" for name in sorted(names)[:MAX_LISTED])
            return f"no other file has the labels of {file}`: {listed_names}"
    return ""


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
