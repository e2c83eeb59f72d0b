"""Search the lines of a text file by words and by meaning, and let a model order the best of them.

pip install ./clients
python search.py index notes.txt notes.db
python search.py query notes.db "Where do owls sleep?" --top-k 3
python search.py evaluate notes.db questions.jsonl

Words find lines by BM25 (SQLite), vectors of a served model by their cosine; both rankings are fused, and the first 30
lines ranked by a model that reads query and line together. `questions.jsonl` has rows {"query": "...", "text": "the
line that answers"}. The evaluation prints, for each step, how often that line is among the first ten (recall@10), how
often it is the first, and the mean reciprocal rank (MRR).

BERTLINE_TARGET (default 127.0.0.1:50051) and BERTLINE_TOKEN name the server.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sqlite3
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from bertline import BertlineError, Client, InvalidInput

LINES = 4096
"""Lines that are embedded in one call."""
CANDIDATES = 30
"""Lines that words and vectors find and the last model orders."""
EVALUATED = 50
"""Lines of each ranking that an evaluation looks at."""
Question = dict[str, str]
"""`query` and `text`, the line that answers it."""


class Index:
    """Index file: a SQLite database with the lines, their words and vectors, and the model that made them.

    Raises:
        ValueError: if there is no such file, or if it is no index.
    """

    def __init__(self, file: Path) -> None:
        if not file.is_file():
            raise ValueError(f"no index at `{file}`; make one: search.py index FILE {file}")
        self._database = sqlite3.connect(file)
        try:
            about = dict(self._database.execute("SELECT name, value FROM about"))
            self.model = {"model": about["model"], "version": about["version"]}
            """Arguments for the client. Queries need the model that made the index."""
            self.space: str = about["space"]
            """Space of the vectors, for `Client(space=...)`: another model under the same name is refused."""
            rows = self._database.execute("SELECT text, vector FROM lines ORDER BY id").fetchall()
            self.texts: list[str] = [text for text, _ in rows]
            self.vectors = np.stack([np.frombuffer(vector, np.float32) for _, vector in rows])
            """Vectors of length 1, [lines, dim] float32."""
        except (sqlite3.Error, KeyError, ValueError, TypeError) as error:
            raise ValueError(f"`{file}` is no index, or is damaged; make it again: {error!r:.100}") from error

    def by_words(self, query: str, count: int) -> list[int]:
        """Return the lines with words of a query by number, best first by BM25."""
        words = " OR ".join(f'"{word}"' for word in re.findall(r"\w+", query))
        rows = "SELECT rowid FROM words WHERE words MATCH ? ORDER BY rank LIMIT ?"
        return [row for (row,) in self._database.execute(rows, (words, count))] if words else []

    def nearest(self, vector: np.ndarray, count: int) -> list[int]:
        """Return the lines whose vectors are nearest to one, best first. Compares it with all lines."""
        return np.argsort(-(self.vectors @ vector), kind="stable")[:count].tolist()

    def both(self, query: str, vector: np.ndarray, count: int) -> list[int]:
        """Return the lines that words and vectors find together, best first."""
        return fused(self.by_words(query, 1000), self.nearest(vector, 1000))[:count]


def fused(*rankings: Sequence[int]) -> list[int]:
    """Return the numbers in several rankings by their ranks together (Cormack et al. 2009)."""
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, number in enumerate(ranking, start=1):
            scores[number] = scores.get(number, 0) + 1 / (60 + rank)
    return sorted(scores, key=lambda number: -scores[number])


def build(client: Client, file: Path, index: Path, name: str) -> int:
    """Write an index of the lines of a file, and return their number."""
    if index.exists():
        raise ValueError(f"`{index}` already exists; give another file, or remove it")
    info = client.model(name)
    if info.task != "embedding":
        raise ValueError(f"`{info.name}` has task `{info.task}`; choose a model of task `embedding` with --model NAME")
    model = {"model": info.name, "version": info.version}  # the same version for all, even if another is loaded
    unfinished = index.with_name(f".{index.name}.tmp")
    unfinished.unlink(missing_ok=True)
    database = sqlite3.connect(unfinished)
    try:
        with file.open(encoding="utf-8") as lines, database:
            database.execute("CREATE TABLE about (name, value)")
            database.execute("CREATE TABLE lines (id INTEGER PRIMARY KEY, text, vector)")
            database.execute("CREATE VIRTUAL TABLE words USING fts5(text, tokenize = 'porter unicode61')")
            database.executemany("INSERT INTO about VALUES (?, ?)", [*model.items(), ("space", info.space)])
            count, seen = 0, dict[str, int]()
            for number, line in enumerate(lines, start=1):
                if text := " ".join(line.split()):
                    seen.setdefault(text, number)
            numbered = iter(seen.items())
            while part := list(islice(numbered, LINES)):
                rows = [(count + place, text) for place, (text, _) in enumerate(part)]
                vectors = embed(client, part, model)
                both = [(*row, vector.tobytes()) for row, vector in zip(rows, vectors, strict=True)]
                database.executemany("INSERT INTO lines VALUES (?, ?, ?)", both)
                database.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", rows)
                count += len(part)
        if not count:
            raise ValueError(f"`{file}` has no text")
        database.close()
        unfinished.rename(index)  # so that the index appears whole
    finally:
        database.close()
        unfinished.unlink(missing_ok=True)
    return count


def embed(client: Client, lines: Sequence[tuple[str, int]], model: dict[str, str]) -> np.ndarray:
    """Return the vectors of numbered lines. Errors name the lines."""
    try:
        return client.embed([text for text, _ in lines], normalize=True, truncate=True, **model)
    except InvalidInput as error:
        wrong = [f"line {lines[item.index][1]}: {item.reason}" for item in error.items if item.index is not None]
        raise ValueError("; ".join(wrong[:3]) or str(error)) from error


def search(client: Client, index: Index, text: str, ranker: str) -> list[tuple[float, str]]:
    """Return the lines that fit a query, best first, with the scores of the model that orders them."""
    vector = client.embed([text], normalize=True, truncate=True, **index.model)[0]
    found = [index.texts[row] for row in index.both(text, vector, CANDIDATES)]
    (ranking,) = client.rerank([(text, found)], model=ranker, truncate=True)
    return [(item.score, found[item.document]) for item in ranking.documents]


def evaluate(client: Client, index: Index, questions: Sequence[Question], ranker: str) -> None:
    """Print how well each step finds the lines that answer questions."""
    queries = [row["query"] for row in questions]
    vectors = client.embed(queries, normalize=True, truncate=True, **index.model)
    steps: dict[str, list[list[int]]] = {
        "BM25": [index.by_words(query, EVALUATED) for query in queries],
        "vectors": [index.nearest(vector, EVALUATED) for vector in vectors],
        "both": [index.both(query, vector, EVALUATED) for query, vector in zip(queries, vectors, strict=True)],
    }
    inputs = [
        (query, [index.texts[row] for row in found[:CANDIDATES]])
        for query, found in zip(queries, steps["both"], strict=True)
    ]
    rankings = client.rerank(inputs, model=ranker, truncate=True)
    steps["reranked"] = [
        [found[place] for place in ranking.order] + found[CANDIDATES:]
        for found, ranking in zip(steps["both"], rankings, strict=True)
    ]
    print(f"{len(questions)} questions  recall@10  first    MRR")
    for name, lists in steps.items():
        texts = [[index.texts[row] for row in found] for found in lists]
        ranks = [
            lines.index(row["text"]) + 1 if row["text"] in lines else None
            for row, lines in zip(questions, texts, strict=True)
        ]
        found = [sum(rank is not None and rank <= most for rank in ranks) for most in (10, 1)]
        scores = [*found, sum(1 / rank for rank in ranks if rank)]
        recall, first, mrr = (100 * score / len(ranks) for score in scores)
        print(f"{name:<12} {recall:13.1f} {first:6.1f} {mrr:6.1f}")


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


def read_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    indexing = commands.add_parser("index", help="write an index of the lines of a file")
    indexing.add_argument("file", type=Path)
    indexing.add_argument("--model", default="embed", help="name of the model of vectors (default: embed)")
    asking = commands.add_parser("query", help="print the best lines")
    evaluating = commands.add_parser("evaluate", help="print how well each step finds the lines that answer")
    for command in (indexing, asking, evaluating):
        command.add_argument("index", type=Path)
    asking.add_argument("text")
    asking.add_argument("--top-k", type=int, default=5, choices=range(1, CANDIDATES + 1), metavar=f"1..{CANDIDATES}")
    evaluating.add_argument("questions", type=Path)
    for command in (asking, evaluating):
        command.add_argument("--ranker", default="", help="name of the model that ranks, if the server has several")
    return parser.parse_args()


def main() -> None:
    """Run the command."""
    arguments = read_arguments()
    try:
        target, token = os.environ.get("BERTLINE_TARGET") or "127.0.0.1:50051", os.environ.get("BERTLINE_TOKEN") or None
        if arguments.command == "index":
            with Client(target, token=token) as client:
                print(f"{build(client, arguments.file, arguments.index, arguments.model)} texts")
            return
        index = Index(arguments.index)
        with Client(target, token=token, space=index.space or None) as client:
            if arguments.command == "evaluate":
                evaluate(client, index, read_questions(arguments.questions), arguments.ranker)
                return
            for score, text in search(client, index, arguments.text, arguments.ranker)[: arguments.top_k]:
                print(f"{score:.3f}  {text}")
    except OSError as error:
        sys.exit(f"search: {error.strerror}: `{error.filename}`")
    except (BertlineError, ValueError, sqlite3.Error) as error:
        sys.exit(f"search: {error}")


if __name__ == "__main__":
    main()
