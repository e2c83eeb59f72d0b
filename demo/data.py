"""The data of the demo, made of documentation strings that every machine has: a corpus, labelled texts and questions.

python -m demo.data build/demo/data
python -m demo.data build/demo/data --max-words 200000 --seed 1

    corpus/{train,dev}.txt             a sentence a line, a blank line between documents (modules)
    classification/{train,dev}.jsonl   {"text", "label"}: which library a docstring is from
    spans/{train,dev}.json             SQuAD v1.1: types and defaults of parameters
    data.json                          counts and versions; written last
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import importlib.metadata
import json
import multiprocessing
import os
import platform
import re
import signal
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from demo.docstrings import (
    Docstring,
    Parameter,
    Source,
    answers,
    find_sources,
    installed_libraries,
    parse_parameters,
    read_docstrings,
    sentences,
)
from tasks.files import atomic_write

NUMBERS_FILE = "data.json"
SPLITS = ("train", "dev")
DEV_SHARE = 0.1
MAX_WORDS = 1_500_000
MAX_REPEATS = 3
"""How often one sentence may stand in the corpus."""
LEAK_WORDS = 5
"""Sentences up to this length may stand in both splits."""
BATCH_FILES = 256
NUM_LABELS = 8
TEXTS_PER_LABEL = {"train": 1000, "dev": 125}
TEXT_WORDS = (15, 60)
MAX_SAME_OPENING = 2
QUESTIONS = {"train": 8000, "dev": 800}
QUESTIONS_PER_CONTEXT = 5
CONTEXT_WORDS = (45, 110)
DESCRIPTION_WORDS = 40


@dataclass(frozen=True, slots=True)
class Function:
    """A documented function or class with its typed parameters."""

    name: str
    summary: str
    parameters: list[Parameter]


@dataclass(frozen=True, slots=True)
class Module:
    """What one file gives: the sentences of each docstring, and the functions with a "Parameters" section."""

    source: Source
    docstrings: list[list[str]]
    functions: list[Function]


def rank(*key: object) -> float:
    """A number in [0, 1) that depends on nothing but the key: the same on every machine, unlike `hash`."""
    digest = hashlib.sha256("\0".join(map(str, key)).encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def split_of(module: str, seed: int) -> str:
    """The split of everything that a module holds."""
    return "dev" if rank("split", seed, module) < DEV_SHARE else "train"


def normalize(text: str) -> str:
    """Lower-case letters and single spaces only: what makes two texts the same."""
    return _NOT_LETTERS.sub(" ", text.lower()).strip()


_NOT_LETTERS = re.compile(r"[^a-z]+")


# Reading.


def read_module(source: Source) -> Module | None:
    """Read and clean one file; None when it cannot be read or parsed."""
    try:
        docstrings = read_docstrings(source)
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    functions = [function for docstring in docstrings if (function := _function(docstring))]
    return Module(source, [found for docstring in docstrings if (found := sentences(docstring.text))], functions)


def _function(docstring: Docstring) -> Function | None:
    parameters = parse_parameters(docstring.text)
    name = docstring.name.removesuffix(".__init__")
    if len(parameters) < 2 or "._" in name:
        return None
    summary = sentences(f"\n{docstring.text}".split("\nParameters\n")[0])
    return Function(name, _ended(summary[0]), parameters) if summary else None


def _ended(sentence: str) -> str:
    return sentence if sentence.endswith((".", "!", "?", ":")) else f"{sentence}."


def read_modules(sources: Sequence[Source], *, max_words: int, seed: int) -> tuple[list[Module], Corpus, int]:
    """Read files in an order given by the seed until the corpus has `max_words`, no library more than a fair share.

    Args:
        max_words: words of the corpus; reading stops with the module that reaches it.

    Returns:
        The modules read, the corpus of them, and the number of files that could not be read.
    """
    num_libraries = len({source.library for source in sources})
    library_words = max_words / min(10, max(1, num_libraries))
    ordered = sorted(sources, key=lambda source: rank("order", seed, source.module))
    modules, corpus, num_skipped = [], Corpus(seed), 0
    with _worker_pool() as pool, tqdm(total=max_words, unit=" words", unit_scale=True) as progress:
        for first in range(0, len(ordered), BATCH_FILES):
            batch = ordered[first : first + BATCH_FILES]
            wanted = [source for source in batch if corpus.words[source.library] < library_words]
            for module in pool.map(read_module, wanted, chunksize=16):
                if module is None:
                    num_skipped += 1
                elif corpus.words.total() < max_words:
                    modules.append(module)
                    progress.update(corpus.add(module))
            if corpus.words.total() >= max_words:
                break
    return modules, corpus, num_skipped


def _worker_pool() -> ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")  # forking a process with threads (tqdm has one) is unsafe
    return ProcessPoolExecutor(min(os.cpu_count() or 1, 8), context, _start_worker)


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the workers
    gc.disable()  # syntax trees have no cycles; looking for some takes a fifth of the time


# Corpus.


@dataclass
class Corpus:
    """Documents of docstrings of sentences, without what is repeated too often."""

    seed: int
    documents: dict[str, list[tuple[str, list[list[str]]]]] = field(default_factory=lambda: {s: [] for s in SPLITS})
    """By split: (library, docstrings)."""
    words: Counter[str] = field(default_factory=Counter)
    """By library."""
    _repeats: Counter[str] = field(default_factory=Counter)

    def add(self, module: Module) -> int:
        """Add one module, less the sentences that have stood in MAX_REPEATS places; how many words that is."""
        document = [kept for docstring in module.docstrings if (kept := list(self._fresh(docstring)))]
        num_words = sum(len(text.split()) for docstring in document for text in docstring)
        self.words[module.source.library] += num_words
        self.documents[split_of(module.source.module, self.seed)].append((module.source.library, document))
        return num_words

    def _fresh(self, docstring: list[str]) -> Iterator[str]:
        for sentence in docstring:
            key = normalize(sentence)
            self._repeats[key] += 1
            if self._repeats[key] <= MAX_REPEATS:
                yield sentence

    def splits(self) -> dict[str, list[tuple[str, list[str]]]]:
        """By split: (library, sentences) of documents with at least two; dev holds nothing that train holds."""
        train = [docstring for _, document in self.documents["train"] for docstring in document]
        known = {normalize(text) for docstring in train for text in (" ".join(docstring), *docstring)}
        flat = {
            "train": [(library, _unknown(document, set())) for library, document in self.documents["train"]],
            "dev": [(library, _unknown(document, known)) for library, document in self.documents["dev"]],
        }
        return {split: [item for item in documents if len(item[1]) > 1] for split, documents in flat.items()}


def _unknown(document: list[list[str]], known: set[str]) -> list[str]:
    """The sentences of a document, less known docstrings and known sentences that are not short."""
    return [
        text
        for docstring in document
        if normalize(" ".join(docstring)) not in known
        for text in docstring
        if len(text.split()) <= LEAK_WORDS or normalize(text) not in known
    ]


# Classification.

ALIASES = {
    "torch": ("pytorch",),
    "sklearn": ("scikit-learn", "scikit", "scikits.learn"),
    "transformers": ("hugging face", "huggingface", "🤗", "tensorflow", "tf"),
    "matplotlib": ("pyplot", "plt", "mpl"),
    "numpy": ("np",),
    "networkx": ("nx",),
}


def mask_names(text: str, libraries: Iterable[str]) -> str:
    """Take the names of libraries and their usual short forms out of a text (`np.mean` -> `mean`)."""
    names = [alias for library in libraries for alias in (library, *ALIASES.get(library, ()))]
    patterns = [rf"\w*{re.escape(name)}\w*" if len(name) > 4 else re.escape(name) for name in names]
    text = re.sub(rf"(?<!\w)(?:{'|'.join(patterns)})(?!\w)(?:['’]s\b|\.(?=\w))?", " ", text, flags=re.IGNORECASE)
    return re.sub(r" (?=[.,;:!?)])|(?<=\() ", "", " ".join(text.split()))


def excerpt(docstring: Sequence[str]) -> str | None:
    """The first sentences of a docstring, 15 to 60 words; None when it has fewer."""
    text = first_words(docstring, TEXT_WORDS[1])
    return text if len(text.split()) >= TEXT_WORDS[0] else None


def first_words(texts: Sequence[str], max_words: int) -> str:
    """As many of the first sentences as have `max_words` together; a full stop is set where one lacks."""
    words: list[str] = []
    for text in texts:
        if len(words) + len(text.split()) > max_words:
            break
        words += _ended(text).split()
    return " ".join(words)


def labelled_texts(modules: Sequence[Module], seed: int) -> dict[str, list[dict[str, str]]]:
    """Texts with the library they are from, for the libraries that have most of them, equally many each where possible.

    No opening (first eight words) of a dev text opens a train text.
    """
    texts = [
        (module.source, text) for module in modules for docstring in module.docstrings if (text := excerpt(docstring))
    ]
    counts = Counter(source.library for source, _ in texts)
    labels = sorted(counts, key=lambda label: (-counts[label], label))[:NUM_LABELS]
    texts.sort(key=lambda item: rank("text", seed, item[0].module, item[1]))
    openings: Counter[str] = Counter()
    found: dict[str, list[dict[str, str]]] = {}
    for split in SPLITS:
        allowed = MAX_SAME_OPENING if split == "train" else 1
        taken: Counter[str] = Counter()
        found[split] = []
        for source, text in texts:
            masked = mask_names(text, labels) if source.library in labels else ""
            opening = " ".join(normalize(masked).split()[:8])
            fits = len(masked.split()) >= TEXT_WORDS[0] and openings[opening] < allowed
            if split_of(source.module, seed) == split and fits and taken[source.library] < TEXTS_PER_LABEL[split]:
                openings[opening] += 1
                taken[source.library] += 1
                found[split].append({"text": masked, "label": source.library})
    return found


# Questions on parameters.

_TYPE_QUESTIONS = (
    "what type is parameter `{name}` of {function}?",
    "what is the type of `{name}` in {function}?",
    "which type does {function} expect for `{name}`?",
)
_DEFAULT_QUESTIONS = (
    "what is the default of parameter `{name}` of {function}?",
    "what is the default value of `{name}` in {function}?",
    "which default does {function} use for `{name}`?",
)


@dataclass(frozen=True, slots=True)
class Context:
    """A passage on some parameters of a function, with where it answers what."""

    function: str
    text: str
    answers: dict[tuple[str, str], tuple[int, int]]
    """(parameter, `type` or `default`) -> (start, end) in code points of the text."""


def contexts(function: Function) -> Iterator[Context]:
    """Passages of a summary and two or more parameters, 45 to 110 words each."""
    text, num_parameters = function.summary, 0
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for parameter in (*function.parameters, None):
        entry = _entry(parameter) if parameter else ""
        if parameter is None or len(text.split()) + len(entry.split()) > CONTEXT_WORDS[1]:
            if num_parameters > 1 and CONTEXT_WORDS[0] <= len(text.split()) <= CONTEXT_WORDS[1]:
                yield Context(function.name, text, found)
            text, found, num_parameters = function.summary, {}, 0
        if parameter:
            start = len(text) + len(f" {', '.join(parameter.names)} : ")
            text, num_parameters = f"{text} {entry}", num_parameters + 1
            for what, (first, last) in answers(parameter.line).items():
                found |= {(name, what): (start + first, start + last) for name in parameter.names}


def _entry(parameter: Parameter) -> str:
    """`name : type. Description`, the description cut at the end of a sentence."""
    description = first_words(parameter.description, DESCRIPTION_WORDS)
    return f"{', '.join(parameter.names)} : {_ended(parameter.line)} {description}".rstrip()


def question_paragraphs(modules: Sequence[Module], seed: int) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """By split: (library, SQuAD paragraph). No two contexts say the same of the same parameters."""
    passages = [
        (module.source, function, context)
        for module in modules
        for function in module.functions
        for context in contexts(function)
    ]
    passages.sort(key=lambda item: rank("context", seed, item[0].module, item[2].text))
    known: set[str] = set()
    found: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for split in SPLITS:
        left = QUESTIONS[split]
        found[split] = []
        for source, function, context in passages:
            key = normalize(context.text.removeprefix(function.summary))
            if left > 0 and split_of(source.module, seed) == split and key not in known and context.answers:
                known.add(key)
                paragraph = _paragraph(context, min(left, QUESTIONS_PER_CONTEXT), seed)
                left -= len(paragraph["qas"])
                found[split].append((source.library, paragraph))
    return found


def _paragraph(context: Context, num_questions: int, seed: int) -> dict[str, Any]:
    chosen = sorted(context.answers, key=lambda item: rank("question", seed, context.text, *item))[:num_questions]
    qas = []
    for name, what in chosen:
        start, end = context.answers[name, what]
        templates = _TYPE_QUESTIONS if what == "type" else _DEFAULT_QUESTIONS
        number = int(rank("template", seed, context.text, name, what) * len(templates))
        qas.append(
            {
                "id": hashlib.sha256(f"{context.function} {name} {what} {context.text}".encode()).hexdigest()[:16],
                "question": templates[number].format(name=name, function=context.function),
                "answers": [{"text": context.text[start:end], "answer_start": start}],
            }
        )
    return {"context": context.text, "qas": qas}


# Files.


def build(
    out_dir: str | Path, *, folders: Mapping[str, Path], max_words: int = MAX_WORDS, seed: int = 0
) -> dict[str, Any]:
    """Write all data files, each whole or not at all, `data.json` last.

    Args:
        out_dir: made where missing; other files in it stay as they are.
        folders: where the libraries are, as `installed_libraries` gives it.

    Returns:
        What `data.json` holds.

    Raises:
        ValueError: when a file would be empty; nothing is written then.
        OSError: when `out_dir` cannot be written.
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
    """Documents, sentences and words of each library over both splits, most words first, and its version."""
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
    """The numbers of `data.json` for the reader."""
    rows = ["library             version       documents  sentences      words  texts"]
    labels = Counter(numbers["labels"]["train"]) + Counter(numbers["labels"]["dev"])
    total: Counter[str] = Counter()
    for library, item in numbers["libraries"].items():
        counts = {key: item[key] for key in ("documents", "sentences", "words")}
        total.update(counts, texts=labels[library])
        rows.append(_row(library, item["version"], {**counts, "texts": labels[library]}))
    rows.append(_row("all", "", total))
    for split, item in numbers["spans"].items():
        rows.append(f"{split}: {item['questions']} questions on {item['contexts']} contexts")
    return "\n".join(rows)


def _row(library: str, version: str, counts: Mapping[str, int]) -> str:
    return (
        f"{library:<20}{version:<13}{counts['documents']:>10}{counts['sentences']:>11}{counts['words']:>11}"
        f"{counts['texts'] or '-':>7}"
    )


def main() -> None:
    """Parse the command line and build."""
    parser = argparse.ArgumentParser(prog="python -m demo.data", description="Make the demo's data from docstrings.")
    parser.add_argument("out_dir", type=Path)
    parser.add_argument("--max-words", type=_positive, default=MAX_WORDS, help="words of the corpus (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the splits and of what is chosen (%(default)s)")
    arguments = parser.parse_args()
    try:
        numbers = build(
            arguments.out_dir, folders=installed_libraries(), max_words=arguments.max_words, seed=arguments.seed
        )
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    print(table(numbers))


def _positive(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"must be a positive whole number: `{text}`")
    return int(text)


if __name__ == "__main__":
    main()
