"""Make the demo's data from docstrings: a corpus, labelled texts and questions.

python -m recipes.demo.data build/demo/data
python -m recipes.demo.data build/demo/data --max-words 200000 --seed 1

corpus/{train,dev}.txt             a sentence a line, a blank line between documents (modules)
classification/{train,dev}.jsonl   {"text", "label"}: which library a docstring is from
spans/{train,dev}.json             SQuAD v1.1: types and defaults of parameters
data.json                          counts; written last
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from recipes.demo.corpus import read_modules
from recipes.demo.modules import SPLITS, find_sources, installed_libraries
from recipes.demo.questions import question_paragraphs
from recipes.demo.texts import labelled_texts
from tasks.bundle.files import atomic_write
from training.command_line.bounds import COUNT, check_numbers
from training.command_line.command import command, parse

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
    out_dir = Path(out_dir)
    out_dir.mkdir(parents=True, exist_ok=True)  # fail before the work, not after it
    modules, corpus, num_skipped = read_modules(find_sources(folders), max_words=max_words, seed=seed)
    documents, texts, paragraphs = corpus.splits(), labelled_texts(modules, seed), question_paragraphs(modules, seed)
    files = {}
    for split in SPLITS:
        files[f"corpus/{split}.txt"] = "\n".join("\n".join(document) + "\n" for document in documents[split])
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
        "files": {
            "sentences": {split: sum(map(len, documents[split])) for split in SPLITS},
            "texts": {split: len(texts[split]) for split in SPLITS},
            "contexts": {split: len(paragraphs[split]) for split in SPLITS},
            "questions": {split: sum(len(item["qas"]) for _, item in paragraphs[split]) for split in SPLITS},
        },
    }
    (out_dir / NUMBERS_FILE).unlink(missing_ok=True)
    for name, content in files.items():
        atomic_write(out_dir / name, content.encode())
    atomic_write(out_dir / NUMBERS_FILE, (json.dumps(numbers, indent=2) + "\n").encode())
    return numbers


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _squad(paragraphs: Iterable[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    articles: dict[str, list[dict[str, Any]]] = {}
    for library, paragraph in paragraphs:
        articles.setdefault(library, []).append(paragraph)
    data = [{"title": library, "paragraphs": found} for library, found in sorted(articles.items())]
    return {"version": "1.1", "data": data}


@dataclass(frozen=True, kw_only=True)
class DataArguments:
    """Make the demo's data from docstrings."""

    out: Annotated[Path, tyro.conf.Positional]
    """Directory to write; other files in it are kept."""
    max_words: Annotated[int, COUNT] = MAX_WORDS
    """Words of the corpus."""
    seed: int = 0
    """Seed of splits and samples."""

    def __post_init__(self) -> None:
        check_numbers(self)


@command
def main() -> None:
    """Command line."""
    arguments = parse(DataArguments, "recipes.demo.data", __doc__)
    numbers = build(arguments.out, folders=installed_libraries(), max_words=arguments.max_words, seed=arguments.seed)
    made = {name: sum(counts.values()) for name, counts in numbers["files"].items()}
    print(
        f"{made['sentences']:,} sentences, {made['texts']:,} labelled texts, {made['questions']:,} questions "
        f"-> {arguments.out}"
    )


if __name__ == "__main__":
    main()
