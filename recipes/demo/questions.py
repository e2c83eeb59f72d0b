"""Questions about types and defaults of parameters, answered by spans of passages from their documentation."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from recipes.demo.docstrings import Docstring, Parameter
from recipes.demo.modules import SPLITS, Module, normalize, rank, split_of
from recipes.demo.texts import first_words

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
