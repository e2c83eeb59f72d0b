"""Make the demo's data from docstrings: a corpus, labelled texts and questions.

python -m demo.data build/demo/data
python -m demo.data build/demo/data --max-words 200000 --seed 1

corpus/{train,dev}.txt             a sentence a line, a blank line between documents (modules)
classification/{train,dev}.jsonl   {"text", "label"}: which library a docstring is from
spans/{train,dev}.json             SQuAD v1.1: types and defaults of parameters
data.json                          counts and versions; written last
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from demo.corpus import read_modules
from demo.modules import SPLITS, find_sources, installed_libraries
from demo.questions import question_paragraphs
from demo.texts import labelled_texts
from tasks.files import atomic_write

NUMBERS_FILE = "data.json"
MAX_WORDS = 1_500_000


def build(
    out_dir: str | Path, *, folders: Mapping[str, Path], max_words: int = MAX_WORDS, seed: int = 0
) -> dict[str, Any]:
    """Write all data files atomically, `data.json` last.

    Args:
        out_dir: directory to write to; other files in it are kept.
        folders: folder of each library, as `installed_libraries` returns it.

    Returns:
        The content of `data.json`.

    Raises:
        ValueError: if a file would be empty; nothing is written then.
        OSError: if `out_dir` cannot be written.
    """
    Path(out_dir).mkdir(parents=True, exist_ok=True)  # fail before the work, not after it
    modules, corpus, num_skipped = read_modules(find_sources(folders), max_words=max_words, seed=seed)
    documents, texts, paragraphs = corpus.splits(), labelled_texts(modules, seed), question_paragraphs(modules, seed)
    files = {}
    for split in SPLITS:
        files[f"corpus/{split}.txt"] = "\n".join("\n".join(document) + "\n" for _, document in documents[split])
        files[f"classification/{split}.jsonl"] = "".join(_json(text) + "\n" for text in texts[split])
        files[f"spans/{split}.json"] = _json(_squad(paragraphs[split])) + "\n" if paragraphs[split] else ""
    for name, content in files.items():
        if not content:
            raise ValueError(f"too little documentation for `{name}`: `{len(modules)}` modules read; raise --max-words")
    numbers = {
        "seed": seed,
        "max_words": max_words,
        "python": platform.python_version(),
        "num_modules": len(modules),
        "num_skipped_files": num_skipped,
        "libraries": _library_numbers(documents),
        "labels": {split: dict(sorted(Counter(text["label"] for text in texts[split]).items())) for split in SPLITS},
        "spans": {split: _question_numbers(paragraphs[split]) for split in SPLITS},
    }
    _write(Path(out_dir), files, numbers)
    return numbers


def _write(out_dir: Path, files: Mapping[str, str], numbers: Mapping[str, Any]) -> None:
    (out_dir / NUMBERS_FILE).unlink(missing_ok=True)
    for name, content in files.items():
        atomic_write(out_dir / name, content.encode())
    atomic_write(out_dir / NUMBERS_FILE, (json.dumps(numbers, indent=2) + "\n").encode())


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _squad(paragraphs: Iterable[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    articles: dict[str, list[dict[str, Any]]] = {}
    for library, paragraph in paragraphs:
        articles.setdefault(library, []).append(paragraph)
    return {
        "version": "1.1",
        "data": [{"title": library, "paragraphs": articles[library]} for library in sorted(articles)],
    }


def _library_numbers(documents: Mapping[str, list[tuple[str, list[str]]]]) -> dict[str, dict[str, Any]]:
    """Return version and counts of each library, largest first."""
    counts: dict[str, Counter[str]] = {}
    for library, document in (item for split in SPLITS for item in documents[split]):
        num_words = sum(len(text.split()) for text in document)
        counts.setdefault(library, Counter()).update(documents=1, sentences=len(document), words=num_words)
    distributions = importlib.metadata.packages_distributions()
    numbers: dict[str, dict[str, Any]] = {}
    for library in sorted(counts, key=lambda library: -counts[library]["words"]):
        names = sorted(distributions.get(library, []), key=lambda name: (name != library, name))
        version = importlib.metadata.version(names[0]) if names else platform.python_version()
        numbers[library] = {"version": version, **counts[library]}
    return numbers


def _question_numbers(paragraphs: Sequence[tuple[str, dict[str, Any]]]) -> dict[str, int]:
    return {"contexts": len(paragraphs), "questions": sum(len(paragraph["qas"]) for _, paragraph in paragraphs)}


def table(numbers: Mapping[str, Any]) -> str:
    """Format the counts of `data.json` as a table, with a summary in the last line."""
    rows = ["library             version       documents  sentences      words  texts"]
    labels = Counter(numbers["labels"]["train"]) + Counter(numbers["labels"]["dev"])
    total: Counter[str] = Counter()
    for library, item in numbers["libraries"].items():
        counts = {key: item[key] for key in ("documents", "sentences", "words")}
        total.update(counts, texts=labels[library])
        rows.append(_row(library, item["version"], {**counts, "texts": labels[library]}))
    rows.append(_row("all", "", total))
    num_questions = sum(item["questions"] for item in numbers["spans"].values())
    rows.append(f"{total['sentences']:,} sentences, {total['texts']:,} labelled texts, {num_questions:,} questions")
    return "\n".join(rows)


def _row(library: str, version: str, counts: Mapping[str, int]) -> str:
    return (
        f"{library:<20}{version:<13}{counts['documents']:>10}{counts['sentences']:>11}{counts['words']:>11}"
        f"{counts['texts'] or '-':>7}"
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m demo.data", description="Make the demo's data from docstrings.")
    parser.add_argument("out_dir", type=Path)
    parser.add_argument("--max-words", type=_positive, default=MAX_WORDS, help="words of the corpus (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of splits and samples (%(default)s)")
    arguments = parser.parse_args()
    try:
        numbers = build(
            arguments.out_dir, folders=installed_libraries(), max_words=arguments.max_words, seed=arguments.seed
        )
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    print(f"{table(numbers)} -> {arguments.out_dir}")


def _positive(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"must be a positive whole number: `{text}`")
    return int(text)


if __name__ == "__main__":
    main()
