"""Labelled data: docstrings with their library, and questions about types and defaults of parameters.

Questions are answered by spans of passages from the documentation of the parameters.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from recipes.demo.docstrings import Docstring, Parameter
from recipes.demo.modules import SPLITS, Module, normalize, rank, split_of

NUM_LABELS = 8
TEXTS_PER_LABEL = {"train": 1000, "dev": 125}
TEXT_WORDS = (15, 60)
MAX_SAME_OPENING = 2
ALIASES = {
    "torch": ("pytorch",),
    "sklearn": ("scikit-learn", "scikit", "scikits.learn"),
    "transformers": ("hugging face", "huggingface", "🤗", "tensorflow", "tf"),
    "matplotlib": ("pyplot", "plt", "mpl"),
    "numpy": ("np",),
    "networkx": ("nx",),
}


def mask_names(text: str, libraries: Iterable[str]) -> str:
    """Remove the names of libraries and their usual abbreviations from a text (`np.mean` -> `mean`)."""
    names = [alias for library in libraries for alias in (library, *ALIASES.get(library, ()))]
    patterns = [rf"\w*{re.escape(name)}\w*" if len(name) > 4 else re.escape(name) for name in names]
    text = re.sub(rf"(?<!\w)(?:{'|'.join(patterns)})(?!\w)(?:['’]s\b|\.(?=\w))?", " ", text, flags=re.IGNORECASE)
    return re.sub(r" (?=[.,;:!?)])|(?<=\() ", "", " ".join(text.split()))


def excerpt(sentences: Sequence[str]) -> str | None:
    """Return the first sentences, 15 to 60 words; None if there are fewer words."""
    text = first_words(sentences, TEXT_WORDS[1])
    return text if len(text.split()) >= TEXT_WORDS[0] else None


def first_words(sentences: Sequence[str], max_words: int) -> str:
    """Return the first sentences with at most `max_words` in total."""
    words: list[str] = []
    for sentence in sentences:
        if len(words) + len(sentence.split()) > max_words:
            break
        words += sentence.split()
    return " ".join(words)


def labelled_texts(modules: Sequence[Module], seed: int) -> dict[str, list[dict[str, str]]]:
    """Return texts labelled with their library, for the libraries with most texts, balanced where possible.

    No dev text starts with the same eight words as a train text.
    """
    texts = [
        (module.source, text)
        for module in modules
        for docstring in module.docstrings
        if (text := excerpt(docstring.sentences))
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


QUESTIONS = {"train": 8000, "dev": 800}
QUESTIONS_PER_CONTEXT = 5
CONTEXT_WORDS = (45, 110)
DESCRIPTION_WORDS = 40
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
    """Passage about parameters of a function, with the positions of answers."""

    function: str
    summary: str
    text: str
    answers: dict[tuple[str, str], tuple[int, int]]
    """(parameter, `type` or `default`) -> (start, end) in code points of the text."""


def contexts(docstring: Docstring) -> Iterator[Context]:
    """Yield passages of the summary and two or more parameters, 45 to 110 words each."""
    text, num_parameters = docstring.summary, 0
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for parameter in (*docstring.parameters, None):
        entry, spans = _entry(parameter) if parameter else ("", {})
        if parameter is None or len(text.split()) + len(entry.split()) > CONTEXT_WORDS[1]:
            if num_parameters > 1 and CONTEXT_WORDS[0] <= len(text.split()) <= CONTEXT_WORDS[1]:
                yield Context(docstring.name, docstring.summary, text, found)
            text, found, num_parameters = docstring.summary, {}, 0
        if parameter:
            for what, (start, end) in spans.items():
                shift = len(text) + 1
                found |= {(name, what): (start + shift, end + shift) for name in parameter.names}
            text, num_parameters = f"{text} {entry}", num_parameters + 1


def _entry(parameter: Parameter) -> tuple[str, dict[str, tuple[int, int]]]:
    """Return `name : type, default value. Description.`, and (start, end) of type and default in it."""
    text, spans = f"{', '.join(parameter.names)} ", {}
    for what, prefix, value in (("type", ": ", parameter.type), ("default", ", default ", parameter.default)):
        if value:
            start = len(text) + len(prefix)
            text, spans[what] = f"{text}{prefix}{value}", (start, start + len(value))
    return f"{text}. {first_words(parameter.description, DESCRIPTION_WORDS)}".rstrip(), spans


def question_paragraphs(modules: Sequence[Module], seed: int) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """Return (library, SQuAD paragraph) by split, without duplicate contexts."""
    passages = [
        (module.source, context)
        for module in modules
        for docstring in module.docstrings
        if docstring.summary and "._" not in docstring.name
        for context in contexts(docstring)
    ]
    passages.sort(key=lambda item: rank("context", seed, item[0].module, item[1].text))
    known: set[str] = set()
    found: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for split in SPLITS:
        left = QUESTIONS[split]
        found[split] = []
        for source, context in passages:
            key = normalize(context.text.removeprefix(context.summary))
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
