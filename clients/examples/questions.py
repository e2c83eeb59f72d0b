"""Questions with the lines that answer them, and how well a search finds these. Used by the other examples."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

Question = dict[str, str]
"""`query` and `text`, the line that answers it."""


def read_questions(file: Path) -> list[Question]:
    """Read questions with the lines that answer them.

    Raises:
        ValueError: naming a line that is not such a row.
    """
    rows: list[Question] = []
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                row = json.loads(line)
                query, text = row["query"], row["text"]
            except (ValueError, KeyError, TypeError, RecursionError):
                query = text = None
            if not (isinstance(query, str) and query.strip() and isinstance(text, str)):
                raise ValueError(f"`{file}`, line {number}: expected an object with the texts `query` and `text`")
            rows.append({"query": query, "text": " ".join(text.split())})
    if not rows:
        raise ValueError(f"`{file}` has no questions")
    return rows


def print_recall(questions: Sequence[Question], found: Mapping[str, Sequence[Sequence[str]]]) -> None:
    """Print recall@10 and the mean reciprocal rank of each way to search.

    Args:
        questions: questions with their lines.
        found: for each way, the lines that it found for each question, best first.
    """
    print(f"{len(questions)} questions  recall@10    MRR")
    for name, lists in found.items():
        ranks = [
            lines.index(question["text"]) + 1 if question["text"] in lines else None
            for question, lines in zip(questions, lists, strict=True)
        ]
        recall = sum(rank is not None and rank <= 10 for rank in ranks) / len(ranks)
        reciprocal = sum(1 / rank for rank in ranks if rank) / len(ranks)
        print(f"{name:<12} {100 * recall:13.1f} {100 * reciprocal:6.1f}")
