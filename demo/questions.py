"""Questions about types and defaults of parameters, answered by spans of passages from their documentation."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from demo.docstrings import Parameter, answers
from demo.modules import SPLITS, Function, Module, ended, normalize, rank, split_of
from demo.texts import first_words

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
    text: str
    answers: dict[tuple[str, str], tuple[int, int]]
    """(parameter, `type` or `default`) -> (start, end) in code points of the text."""


def contexts(function: Function) -> Iterator[Context]:
    """Yield passages of a summary and two or more parameters, 45 to 110 words each."""
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
    """Format `name : type. Description`; the description ends with a whole sentence."""
    description = first_words(parameter.description, DESCRIPTION_WORDS)
    return f"{', '.join(parameter.names)} : {ended(parameter.line)} {description}".rstrip()


def question_paragraphs(modules: Sequence[Module], seed: int) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """Return (library, SQuAD paragraph) by split, without duplicate contexts."""
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
