"""Retrieval: collections in BEIR's layout and of MTEB, their scores, search by words, fusion of rankings.

corpus.jsonl       {"_id": "d1", "title": "may be empty", "text": "..."}
queries.jsonl      {"_id": "q1", "text": "..."}
qrels/test.tsv     query-id, corpus-id, score: a first line with these names, then a grade for each judged document

Source: Thakur et al. 2021 (BEIR). Files may end in .gz or .xz.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bm25s
import numpy as np

from training.data.tables import read_rows

QRELS = ("query-id", "corpus-id", "score")
"""Columns of judgements."""
_PATTERN = r"\w+"
_K1, _B = 1.2, 0.75
"""Saturation of the number of a word in a text, and weight of the text's length (BM25's usual values)."""
_K = 60
"""Rank whose document gets half of what the first one gets in a fusion, about."""

Ranked = Sequence[int]
"""Documents of a query by position in the corpus, best first."""
Grades = Mapping[str, Mapping[str, int]]
"""Grade of each judged document by id, for each query by id; documents above 0 are relevant."""


class WordIndex:
    """Index of texts by their words in lower case (BM25), without stemming and stop words.

    Source: Robertson and Zaragoza 2009, equation 3.15; the weight of rare words is Lucene's, which is never negative.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        found = bm25s.tokenize(list(texts), token_pattern=_PATTERN, stopwords=[], show_progress=False)
        self._zeros = np.zeros(len(texts), np.float32)
        self._index = bm25s.BM25(method="lucene", k1=_K1, b=_B) if found.vocab else None
        if self._index:
            self._index.index(found, show_progress=False)

    def scores(self, query: str) -> np.ndarray:
        """Return the score of each text for a query, [texts] float32; 0 for texts without a word of it."""
        if self._index is None:
            return self._zeros
        return self._index.get_scores_from_ids(self._index.get_tokens_ids(re.findall(_PATTERN, query.lower())))


@dataclass(frozen=True)
class Collection:
    """Documents, and queries with judged documents."""

    name: str
    documents: Mapping[str, str]
    """Texts by id."""
    queries: Mapping[str, str]
    """Texts by id, of judged queries only."""
    grades: Grades
    copies: frozenset[str] = frozenset()
    """Ids of queries that are documents with the same id, as in ArguAna: a search for others leaves those out."""
    notes: tuple[str, ...] = ()
    """Sentences about the items that were left out."""

    @classmethod
    def of(cls, name: str, documents: Mapping[str, str], queries: Mapping[str, str], grades: Grades) -> Collection:
        """Return a collection without blank documents and queries that are not judged.

        Raises:
            ValueError: if nothing is left, or if a judged query is blank.
        """
        texts = {key: text for key, text in documents.items() if text.strip()}
        judged = {key: text for key, text in queries.items() if key in grades}
        if not texts or not judged:
            missing = "documents with text" if judged else "judged queries: compare the ids of queries and judgements"
            raise ValueError(f"`{name}` has no {missing}")
        if blank := next((key for key, text in judged.items() if not text.strip()), None):
            raise ValueError(f"`{name}`: the query `{blank}` is blank; remove it and its judgements")
        lost = {key for query in judged for key, grade in grades[query].items() if grade > 0 and key not in texts}
        copies = frozenset(
            key for key in judged if _is_copy(judged[key], texts.get(key, "")) and key not in grades[key]
        )
        counts = {
            "Blank documents, left out": len(documents) - len(texts),
            "Judged queries that are missing, left out": len(grades.keys() - judged.keys()),
            "Relevant documents that are missing or blank, counted as not found": len(lost),
            "Queries that are documents themselves, which they do not find": len(copies),
        }
        notes = tuple(f"{what}: {count:,}." for what, count in counts.items() if count)
        return cls(name, texts, judged, {key: grades[key] for key in judged}, copies, notes)


def _is_copy(query: str, document: str) -> bool:
    """Return whether a query is the text of a document, with or without its title; an equal id alone says nothing."""
    return " ".join(document.split()).endswith(" ".join(query.split()))


def read_collection(folder: Path, split: str) -> Collection:
    """Read a folder in BEIR's layout.

    Args:
        split: name of the file of judgements.

    Raises:
        ValueError: for a missing file, and for the first row that cannot be used.
    """
    grades: dict[str, dict[str, int]] = {}
    for location, row in read_rows(_file(folder, f"qrels/{split}.tsv")):
        if missing := [name for name in QRELS if name not in row]:
            raise ValueError(
                f"{location}: no column `{missing[0]}`; the first line must be `{' '.join(QRELS)}`, by tabs"
            )
        query, document, grade = (row[name] for name in QRELS)
        if not re.fullmatch(r"\s*-?\d+\s*", grade):
            raise ValueError(f"{location}: the score must be a whole number: `{grade}`")
        if grades.setdefault(query, {}).setdefault(document, int(grade)) != int(grade):
            raise ValueError(f"{location}: a second, other score of `{document}` for the query `{query}`")
    documents, queries = (_read_texts(_file(folder, f"{name}.jsonl")) for name in ("corpus", "queries"))
    return Collection.of(folder.resolve().name, documents, queries, grades)


def _file(folder: Path, name: str) -> Path:
    for suffix in ("", ".gz", ".xz"):
        if (path := folder / f"{name}{suffix}").is_file():
            return path
    raise ValueError(f"no file `{folder / name}`; a collection has corpus.jsonl, queries.jsonl and qrels/<split>.tsv")


def _read_texts(path: Path) -> dict[str, str]:
    texts: dict[str, str] = {}
    for location, row in read_rows(path):
        key = row.get("_id")
        if not isinstance(key, str | int) or isinstance(key, bool):
            raise ValueError(f"{location}: expected an `_id`, a string")
        if str(key) in texts:
            raise ValueError(f"{location}: a second `_id` `{key}`")
        texts[str(key)] = _joined(location, row)
    return texts


def _joined(location: str, row: Mapping[str, Any]) -> str:
    """Return title and text of a row, as BEIR and MTEB join them."""
    title, text = row.get("title") or "", row.get("text")
    if not isinstance(title, str) or not isinstance(text, str):
        raise ValueError(f"{location}: `text`, and `title` if there is one, must be strings")
    return f"{title} {text}".strip()


def read_mteb(name: str) -> Iterator[Collection]:
    """Download a retrieval task of MTEB, and yield a collection for each of its languages and splits.

    Raises:
        ValueError: if MTEB is not installed or has no such task, and for a task of another type.
    """
    try:
        import mteb
    except ImportError:
        raise ValueError("MTEB is not installed: pip install --group mteb -c constraints.txt") from None
    try:
        task = mteb.get_task(name)
    except KeyError as error:
        raise ValueError(f"MTEB has no task `{name}`") from error
    if task.metadata.type != "Retrieval":
        raise ValueError(f"`{name}` is a task of type {task.metadata.type}, not Retrieval")
    task.load_data()
    assert task.dataset is not None
    for subset, splits in task.dataset.items():
        for split in task.metadata.eval_splits:
            data, label = splits[split], f"{name}, {subset}, {split}"
            documents, queries = (
                {row["id"]: _joined(label, row) for row in data[part]} for part in ("corpus", "queries")
            )
            yield Collection.of(label, documents, queries, data["relevant_docs"])


def ranking_scores(ranked: Sequence[str], grades: Mapping[str, int]) -> dict[str, float]:
    """Return nDCG@10, recall@100 and reciprocal rank among ten of one query, in percent, as trec_eval computes them.

    Args:
        ranked: ids of documents, best first.
        grades: of judged documents; others have 0.
    """
    gains = [max(0, grades.get(key, 0)) for key in ranked[:100]]
    ideal = sorted((max(0, grade) for grade in grades.values()), reverse=True)
    first = next((1 / rank for rank, gain in enumerate(gains[:10], start=1) if gain), 0.0)
    return {
        "nDCG@10": 100 * _discounted(gains) / (_discounted(ideal) or 1.0),
        "recall@100": 100 * sum(map(bool, gains)) / max(1, sum(map(bool, ideal))),
        "MRR@10": 100 * first,
    }


def _discounted(gains: Sequence[int]) -> float:
    return math.fsum(gain / math.log2(1 + rank) for rank, gain in enumerate(gains[:10], start=1))


def fused(rankings: Iterable[Ranked]) -> list[int]:
    """Return documents by their ranks in several rankings (reciprocal rank fusion, Cormack et al. 2009)."""
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, document in enumerate(ranking, start=1):
            scores[document] = scores.get(document, 0.0) + 1 / (_K + rank)
    return sorted(scores, key=lambda document: -scores[document])
