"""Make the data of the model that ranks: queries, each with texts that may fit.

    python -m recipes.mini.search build/mini/data build/mini/teachers/minilm build/mini/data/search

pairs.jsonl      queries, each with the text that it comes from (label 1) and others that words and vectors find (0)
pairs-dev.jsonl  500 further queries

Most queries are questions of SQuAD and SQuADShifts. The others are words of a sentence of Wikipedia; most of their
paragraphs lack that sentence, so that words alone do not find them.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from recipes.mini.data import json_lines, merge
from recipes.retrieval import WordIndex, fused
from tasks.bundle.files import atomic_write
from tasks.text.json_files import read_json
from training.command_line.command import command, parse
from training.command_line.progress_bar import ProgressBar
from training.data.examples import Examples
from training.distillation.teachers import read_teacher
from training.loop.distributed import world
from training.text.documents import read_lines
from training.text.sentences import split_sentences

NUM_QUESTIONS, NUM_PARAGRAPHS = 16_000, 9_000
"""Questions, and paragraphs of Wikipedia that queries are made of."""
NUM_DEV, NUM_PAIRS = 500, 40_000
"""Queries for dev, and pairs for training, about."""
CHUNK = 2048
"""Texts whose vectors are computed at a time."""
Row = dict[str, str | int]
"""`text`, `text_pair` and `label`."""


@dataclass(frozen=True, kw_only=True)
class SearchArguments:
    """Make the data of the model that ranks."""

    data: Annotated[Path, tyro.conf.Positional]
    """Folder that recipes.mini.data wrote."""
    teacher: Annotated[Path, tyro.conf.Positional]
    """Model of sentence vectors that finds texts for a query, with words."""
    out: Annotated[Path, tyro.conf.Positional]
    """Folder to write."""


@dataclass(frozen=True)
class Query:
    """A query, and the text that it comes from."""

    text: str
    source: int
    """Number of the text."""
    answers: tuple[str, ...] = ()
    """Answers in lower case; texts with one of them are not taken for wrong. Empty for queries that are no question."""


@dataclass(frozen=True)
class Texts:
    """Texts to search, in the order of their sources."""

    texts: list[str]
    articles: list[str]
    """Title of the article of each text; empty for paragraphs of Wikipedia."""
    queries: list[Query]


@command
def main() -> None:
    """Command line."""
    arguments = parse(SearchArguments, "recipes.mini.search", __doc__)
    found = read_texts(arguments.data, random.Random(0))
    queries = [query.text for query in found.queries]
    vectors, query_vectors = (embed(arguments.teacher, texts) for texts in (found.texts, queries))
    groups = list(candidates(found, vectors, query_vectors, random.Random(1)))
    random.Random(2).shuffle(groups)
    for name, part in {"pairs-dev": groups[:NUM_DEV], "pairs": until(groups[NUM_DEV:], NUM_PAIRS)}.items():
        atomic_write(arguments.out / f"{name}.jsonl", json_lines(row for group in part for row in group).encode())
    print(f"search data -> {arguments.out}")


def words_of(sentence: str, rng: random.Random) -> str:
    """Return 4 to 18 words of a sentence, in a row or not, mostly in lower case."""
    words = sentence.split()
    count = max(4, min(18, int(len(words) * rng.uniform(0.35, 0.8))))
    if rng.random() < 0.5:
        start = rng.randrange(max(1, len(words) - count + 1))
        chosen = words[start : start + count]
    else:
        chosen = [words[place] for place in sorted(rng.sample(range(len(words)), min(count, len(words))))]
    text = " ".join(chosen).strip(' ,;.()"')
    return text.lower() if rng.random() < 0.7 else text


def read_texts(data: Path, rng: random.Random) -> Texts:
    """Read paragraphs with questions, and make queries from paragraphs of Wikipedia."""
    texts, articles, questions, made = list[str](), list[str](), list[Query](), list[Query]()
    for title, paragraph in merge([read_json(data / "squad-v1.json")]):
        for item in paragraph["qas"]:
            answers = tuple(answer["text"].lower() for answer in item["answers"])
            questions.append(Query(item["question"], len(texts), answers))
        texts.append(paragraph["context"])
        articles.append(title)
    paragraphs = [line for line in read_lines(data / "paragraphs.txt") if line.strip()]
    for text in rng.sample(paragraphs, min(NUM_PARAGRAPHS, len(paragraphs))):
        sentences = split_sentences(text)
        if len(sentences) >= 3 and (query := words_of(chosen := rng.choice(sentences), rng)):
            made.append(Query(query, len(texts)))
            rest = " ".join(sentence for sentence in sentences if sentence != chosen)
            texts.append(rest if rest and rng.random() < 0.7 else text)
            articles.append("")
    return Texts(texts, articles, rng.sample(questions, min(NUM_QUESTIONS, len(questions))) + made)


def embed(teacher: Path, texts: Sequence[str]) -> np.ndarray:
    """Return the vectors of texts, [texts, dim] float32 of length 1; long texts are cut."""
    parts: list[np.ndarray] = []
    with world() as here, ProgressBar("vectors", unit="text", total=len(texts)) as bar:
        compute = read_teacher(teacher, "embedding").vectors(Examples(("", text) for text in texts), here)
        for first in range(0, len(texts), CHUNK):
            part = slice(first, min(first + CHUNK, len(texts)))
            parts += compute(part)
            bar.update(part.stop - part.start)
    return np.concatenate(parts)


def candidates(found: Texts, vectors: np.ndarray, query_vectors: np.ndarray, rng: random.Random) -> Iterator[list[Row]]:
    """Yield rows for each query: its own text first, then others that are close to it by words and vectors.

    Args:
        vectors: [texts, dim].
        query_vectors: [queries, dim].
    """
    index = WordIndex(found.texts)
    by_article: dict[str, list[int]] = {}
    for number, article in enumerate(found.articles):
        by_article.setdefault(article, []).append(number)
    with ProgressBar("candidates", unit="query", total=len(found.queries)) as bar:
        for query, vector in zip(found.queries, query_vectors, strict=True):

            def is_wrong(number: int, query: Query = query) -> bool:
                text = found.texts[number].lower()
                return number != query.source and not any(answer in text for answer in query.answers)

            scores = (index.scores(query.text), vectors @ vector)
            rankings = [np.argsort(-values, kind="stable")[:100].tolist() for values in scores]
            near = list(filter(is_wrong, fused(rankings)[:40]))
            others = near[:2] + rng.sample(near[2:25], min(2, len(near[2:25])))
            if article := found.articles[query.source]:
                same = list(filter(is_wrong, by_article[article]))
                others += rng.sample(same, min(1, len(same)))
            if rng.random() < 0.4:
                others.append(rng.randrange(len(found.texts)))
            numbers = dict.fromkeys([query.source, *others])
            yield [
                {"text": query.text, "text_pair": found.texts[number], "label": int(number == query.source)}
                for number in numbers
            ]
            bar.update(1)


def until(groups: Iterable[list[Row]], count: int) -> Iterator[list[Row]]:
    """Yield groups until they have a number of rows."""
    total = 0
    for group in groups:
        if total >= count:
            return
        total += len(group)
        yield group


if __name__ == "__main__":
    main()
