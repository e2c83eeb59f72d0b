"""Names in running text: sentences with marks, and exact matches of the entities of a served model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bertline import Client

FILE = Path(__file__).with_name("names.txt")
_MARK = re.compile(r"\[([A-Z]+) ([^\[\]]+)\]")
Name = tuple[int, int, str]
"""Start, end and type of a name; offsets are in code points."""


@dataclass(frozen=True)
class MarkedText:
    """A text and its names."""

    text: str
    names: frozenset[Name]


def parse_marks(line: str) -> MarkedText:
    """Return the text of a line without marks, and the names that they mark."""
    text, names, last = "", set(), 0
    for mark in _MARK.finditer(line):
        text += line[last : mark.start()]
        names.add((len(text), len(text) + len(mark[2]), mark[1]))
        text, last = text + mark[2], mark.end()
    return MarkedText(text + line[last:], frozenset(names))


def read_names() -> list[MarkedText]:
    """Read the sentences."""
    return [parse_marks(line) for line in FILE.read_text(encoding="utf-8").splitlines()]


def name_scores(client: Client, model: str) -> dict[str, float]:
    """Return precision, recall and F1 of the names that a served model finds, with exact bounds and types."""
    sentences = read_names()
    tagged = client.tag([sentence.text for sentence in sentences], model=model)
    found = [{(item.start, item.end, item.label) for item in result.entities} for result in tagged]
    return exact_scores([sentence.names for sentence in sentences], found)


def exact_scores(known: Sequence[frozenset[Name]], found: Sequence[set[Name]]) -> dict[str, float]:
    """Return F1, precision and recall of names that are wholly right, over all texts."""
    correct = sum(len(right & names) for right, names in zip(known, found, strict=True))
    num_known, num_found = sum(map(len, known)), sum(map(len, found))
    return {
        "f1": 2 * correct / max(1, num_known + num_found),
        "precision": correct / max(1, num_found),
        "recall": correct / max(1, num_known),
    }
