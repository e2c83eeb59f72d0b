"""Search the lines of a text file by meaning, with a faiss index of vectors from a served model.

pip install ./clients faiss-cpu
python search.py index notes.txt notes.index --model my-model
python search.py query notes.index "Where do owls sleep?" --top-k 3
python search.py evaluate notes.index questions.jsonl

`questions.jsonl` has rows {"query": "...", "text": "the line that answers"}. The evaluation prints how often that line
is among the first ten (recall@10), and the mean reciprocal rank (MRR), of the index and of all lines compared.

BERTLINE_TARGET (default 127.0.0.1:50051) and BERTLINE_TOKEN name the server.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import faiss
import numpy as np
from questions import Question, print_recall, read_questions

from bertline import BertlineError, Client, InvalidInput

LINES = 4096
"""Lines that are embedded in one call."""
EVALUATED = 50
"""Lines that are searched for each question of an evaluation."""


class Index:
    """Index folder: vectors in `vectors.faiss`, texts and the name of the model in `index.json`."""

    def __init__(self, folder: Path) -> None:
        text = (folder / "index.json").read_text(encoding="utf-8")
        try:
            about = json.loads(text)
            self.texts: list[str] = about["texts"]
            self.model: dict[str, str] = {key: about["model"][key] for key in ("model", "version")}
            """Arguments for the client. Queries need the model that made the index."""
            self._vectors = faiss.read_index(str(folder / "vectors.faiss"))
            if self._vectors.ntotal != len(self.texts):
                raise ValueError("other numbers of texts and vectors")
        except (ValueError, KeyError, TypeError, RuntimeError) as error:
            raise ValueError(f"the index `{folder}` is damaged; make it again: {error!r:.100}") from error

    def search(self, vector: np.ndarray, top_k: int) -> list[tuple[float, str]]:
        """Return the nearest texts, each with its cosine similarity.

        Args:
            vector: [dim] float32 of length 1.
            top_k: most texts to return.
        """
        scores, rows = self._vectors.search(vector[None], min(top_k, len(self.texts)))
        return [(float(score), self.texts[row]) for score, row in zip(scores[0], rows[0], strict=True) if row >= 0]

    def search_exactly(self, vectors: np.ndarray, top_k: int) -> list[list[str]]:
        """Return the nearest texts of each vector, compared with all texts, which the index does not do."""
        cosines = vectors @ self._vectors.reconstruct_n(0, len(self.texts)).T
        return [[self.texts[row] for row in rows[:top_k]] for rows in np.argsort(-cosines, axis=1)]


def build(client: Client, file: Path, folder: Path, name: str = "") -> int:
    """Write an index of the lines of a file, and return their number."""
    if folder.exists():
        raise ValueError(f"`{folder}` already exists; give another folder, or remove it")
    info = client.model(name)
    if info.task != "embedding":
        raise ValueError(f"`{info.name}` has task `{info.task}`; choose a model of task `embedding` with --model NAME")
    model = {"model": info.name, "version": info.version}  # the same version for all, even if another is loaded
    vectors = faiss.IndexHNSWFlat(info.dim, 32, faiss.METRIC_INNER_PRODUCT)
    texts: list[str] = []
    with file.open(encoding="utf-8") as lines:
        numbered = ((number, " ".join(line.split())) for number, line in enumerate(lines, start=1) if line.strip())
        while part := list(islice(numbered, LINES)):
            vectors.add(embed(client, part, model))
            texts += [text for _, text in part]
    if not texts:
        raise ValueError(f"`{file}` has no text")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as unfinished:  # so that the index appears whole
        new = Path(unfinished, "index")
        new.mkdir()
        faiss.write_index(vectors, str(new / "vectors.faiss"))
        about = {"model": model, "texts": texts}
        (new / "index.json").write_text(json.dumps(about, ensure_ascii=False), encoding="utf-8")
        new.rename(folder)
    return len(texts)


def embed(client: Client, lines: list[tuple[int, str]], model: dict[str, str]) -> np.ndarray:
    """Return the vectors of numbered lines. Errors name the lines."""
    try:
        return client.embed([text for _, text in lines], normalize=True, truncate=True, **model)
    except InvalidInput as error:
        wrong = [f"line {lines[item.index][0]}: {item.reason}" for item in error.items if item.index is not None]
        raise ValueError("; ".join(wrong[:3]) or str(error)) from error


def query(client: Client, index: Index, text: str, top_k: int) -> list[tuple[float, str]]:
    """Return the texts of an index that are nearest to a text."""
    return index.search(client.embed([text], normalize=True, truncate=True, **index.model)[0], top_k)


def evaluate(client: Client, index: Index, questions: Sequence[Question]) -> None:
    """Print recall@10 and MRR of the index, and of a comparison with every line."""
    vectors = client.embed([row["query"] for row in questions], normalize=True, truncate=True, **index.model)
    found = [[text for _, text in index.search(vector, EVALUATED)] for vector in vectors]
    print_recall(questions, {"index": found, "exact": index.search_exactly(vectors, EVALUATED)})


def read_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    indexing = commands.add_parser("index", help="write an index of the lines of a file")
    indexing.add_argument("file", type=Path)
    indexing.add_argument("folder", type=Path)
    indexing.add_argument("--model", default="", help="name of the model, if the server has several")
    asking = commands.add_parser("query", help="print the nearest lines")
    asking.add_argument("folder", type=Path)
    asking.add_argument("text")
    asking.add_argument("--top-k", type=int, default=5, choices=range(1, 1001), metavar="1..1000")
    evaluating = commands.add_parser("evaluate", help="print recall@10 and MRR")
    evaluating.add_argument("folder", type=Path)
    evaluating.add_argument("questions", type=Path)
    return parser.parse_args()


def main() -> None:
    """Run the command."""
    arguments = read_arguments()
    try:
        target = os.environ.get("BERTLINE_TARGET") or "127.0.0.1:50051"
        with Client(target, token=os.environ.get("BERTLINE_TOKEN") or None) as client:
            if arguments.command == "index":
                print(f"{build(client, arguments.file, arguments.folder, arguments.model)} texts")
                return
            if arguments.command == "evaluate":
                evaluate(client, Index(arguments.folder), read_questions(arguments.questions))
                return
            for score, text in query(client, Index(arguments.folder), arguments.text, arguments.top_k):
                print(f"{score:.3f}  {text}")
    except OSError as error:
        sys.exit(f"search: {error.strerror}: `{error.filename}`")
    except (BertlineError, ValueError) as error:
        sys.exit(f"search: {error}")


if __name__ == "__main__":
    main()
