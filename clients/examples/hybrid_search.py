"""Search the lines of a text file in two steps: by words with SQLite, then the best ones by a served model (rerank).

pip install ./clients
python hybrid_search.py index notes.txt notes.db
python hybrid_search.py query notes.db "Where do owls sleep?" --top-k 3
python hybrid_search.py evaluate notes.db questions.jsonl

`questions.jsonl` has rows {"query": "...", "text": "the line that answers"}. The evaluation prints, for each step and
for the mean of both orders, how often that line is among the first ten (recall@10), and the mean reciprocal rank (MRR).

BERTLINE_TARGET (default 127.0.0.1:50051) and BERTLINE_TOKEN name the server.
"""

from __future__ import annotations

import argparse
import os
import re
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from questions import Question, print_recall, read_questions

from bertline import BertlineError, Client

CANDIDATES = 50
"""Lines that the words find and the model orders."""


def build(file: Path, database: Path) -> int:
    """Write an index of the lines of a file, and return their number."""
    if database.exists():
        raise ValueError(f"`{database}` already exists; give another file, or remove it")
    unfinished = database.with_name(f".{database.name}.tmp")
    unfinished.unlink(missing_ok=True)
    with file.open(encoding="utf-8") as lines:
        texts = [(text,) for text in dict.fromkeys(" ".join(line.split()) for line in lines if line.strip())]
    if not texts:
        raise ValueError(f"`{file}` has no text")
    with closing(sqlite3.connect(unfinished)) as index, index:
        index.execute("CREATE VIRTUAL TABLE texts USING fts5(text, tokenize = 'porter unicode61')")
        index.executemany("INSERT INTO texts VALUES (?)", texts)
    unfinished.rename(database)  # so that the index appears whole
    return len(texts)


def find(index: sqlite3.Connection, query: str, count: int) -> list[str]:
    """Return the lines with the words of a query, best first by BM25."""
    words = " OR ".join(f'"{word}"' for word in re.findall(r"\w+", query))
    if not words:
        return []
    rows = index.execute("SELECT text FROM texts WHERE texts MATCH ? ORDER BY rank LIMIT ?", (words, count))
    return [text for (text,) in rows]


def search(client: Client, index: sqlite3.Connection, query: str, top_k: int, model: str) -> list[tuple[float, str]]:
    """Return the lines that fit a query best by words and model together, with the scores of the model."""
    found = find(index, query, CANDIDATES)
    if not found:
        return []
    (ranking,) = client.rerank([(query, found)], model=model, truncate=True)
    scores = {found[item.document]: item.score for item in ranking.documents}
    return [(scores[text], text) for text in fused(found, list(scores))[:top_k]]


def fused(first: Sequence[str], second: Sequence[str]) -> list[str]:
    """Return lines by their ranks in two lists together (reciprocal rank fusion, Cormack et al. 2009)."""
    scores = dict.fromkeys(first, 0.0)
    for texts in (first, second):
        for rank, text in enumerate(texts, start=1):
            scores[text] += 1 / (60 + rank)
    return sorted(scores, key=lambda text: -scores[text])


def evaluate(client: Client, index: sqlite3.Connection, rows: Sequence[Question], model: str) -> None:
    """Print recall@10 and MRR of both steps, and of their ranks together."""
    candidates = [find(index, row["query"], CANDIDATES) for row in rows]
    answered = [number for number, found in enumerate(candidates) if found]
    inputs = [(rows[number]["query"], candidates[number]) for number in answered]
    rankings = client.rerank(inputs, model=model, truncate=True)
    ordered = dict(enumerate(candidates))
    for number, ranking in zip(answered, rankings, strict=True):
        ordered[number] = [candidates[number][place] for place in ranking.order]
    ranked = list(ordered.values())
    both = [fused(first, second) for first, second in zip(candidates, ranked, strict=True)]
    print_recall(rows, {"BM25": candidates, "rerank": ranked, "both": both})


def read_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    indexing = commands.add_parser("index", help="write an index of the lines of a file")
    indexing.add_argument("file", type=Path)
    asking = commands.add_parser("query", help="print the best lines")
    evaluating = commands.add_parser("evaluate", help="print recall@10 and MRR of both steps")
    for command in (indexing, asking, evaluating):
        command.add_argument("database", type=Path)
    asking.add_argument("text")
    asking.add_argument("--top-k", type=int, default=5, choices=range(1, CANDIDATES + 1), metavar=f"1..{CANDIDATES}")
    evaluating.add_argument("questions", type=Path)
    for command in (asking, evaluating):
        command.add_argument("--model", default="", help="name of the model that ranks, if the server has several")
    return parser.parse_args()


def main() -> None:
    """Run the command."""
    arguments = read_arguments()
    try:
        if arguments.command == "index":
            print(f"{build(arguments.file, arguments.database)} texts")
            return
        if not arguments.database.is_file():
            raise ValueError(f"no index at `{arguments.database}`; make one: hybrid_search.py index FILE DATABASE")
        target = os.environ.get("BERTLINE_TARGET") or "127.0.0.1:50051"
        with (
            Client(target, token=os.environ.get("BERTLINE_TOKEN") or None) as client,
            closing(sqlite3.connect(arguments.database)) as index,
        ):
            if arguments.command == "evaluate":
                evaluate(client, index, read_questions(arguments.questions), arguments.model)
                return
            for score, text in search(client, index, arguments.text, arguments.top_k, arguments.model):
                print(f"{score:.3f}  {text}")
    except OSError as error:
        sys.exit(f"hybrid_search: {error.strerror}: `{error.filename}`")
    except (BertlineError, ValueError, sqlite3.Error) as error:
        sys.exit(f"hybrid_search: {error}")


if __name__ == "__main__":
    main()
