"""Questions that a text no longer answers, as a word of them was changed.

A network that saw only answerable questions and questions on other texts learns to look for shared words. SQuAD v2.0
(Rajpurkar et al. 2018, table 1) asks about the same text with an opposite word, another name or number, a negation, or
a condition that does not hold. Rules make such questions here; each stands beside the question that it was made from.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

_WORD = re.compile(r"\w+(?:[-'’.,]\w+)*")
_NAME = re.compile(r"[A-Z]\w*(?:[-'’]\w+)*(?: (?:(?:of|the|de|van|von) )*[A-Z]\w*(?:[-'’]\w+)*)*")
_NUMBER = re.compile(r"\d[\d.,]*(?<![.,])")
_AUXILIARY = re.compile(r"\b(?:is|are|was|were|did|does|do|has|have|had|can|could|would|will|should)\b")
_NEGATIONS = frozenset("not no never n't none nobody nothing neither nor without cannot".split())
_ENDINGS = "ings ing ed ly ions ion ities ity ments ment ers er als al ics ic ous ive es s".split()
_ARTICLES = frozenset("a an the this these his her its their your my our of".split())
_SHORTEST = 4
"""Smallest number of letters of an ordinary word that is exchanged."""
_WEIGHTS: Mapping[str, float] = {"opposite": 0.35, "name": 0.3, "word": 0.2, "negation": 0.15}
"""How often each rule comes first."""
_PRONOUNS = frozenset("i i'm it he she we they you my his her its our their your this that".split())
_COMMON_WORDS = frozenset(
    "about after also always among another because been before being between both called could does during each from "
    "have having here into kind known made make many more most much name named never only other over people person "
    "same should some such term than that their them then there these they this those through time type under upon "
    "used using very were what when where which while whom whose will with would year years".split()
)
OPPOSITES: dict[str, list[str]] = {}
"""Words of opposite meaning, in both directions (opposites.txt)."""
for _pair in (Path(__file__).parent / "opposites.txt").read_text(encoding="utf-8").split():
    for _word, _other in (_pair.split("/"), _pair.split("/")[::-1]):
        OPPOSITES.setdefault(_word, []).append(_other)
_TOO_LOOSE = frozenset("in out on off up down to from for with".split())
"""Words whose opposite seldom changes what is asked."""


def changed_question(question: str, context: str, answers: Sequence[str], rng: random.Random) -> str | None:
    """Return a question that differs in a word or a name, and that a text likely does not answer.

    Args:
        question: question that the text answers.
        context: the text.
        answers: its answers, which do not get into the question.
        rng: source of randomness.

    Returns:
        The changed question, or None if no rule fits.
    """
    order = sorted(_RULES, key=lambda name: rng.random() ** (1 / _WEIGHTS[name]), reverse=True)  # a weighted shuffle
    for name in order:
        if found := [made for made in _RULES[name](question, context, answers) if made.lower() != question.lower()]:
            return rng.choice(found)
    return None


def _with_opposite(question: str, context: str, answers: Sequence[str]) -> Iterator[str]:
    for match in _WORD.finditer(question):
        word, asks_degree = match[0].lower(), question[: match.start()].lower().rstrip().endswith("how")
        if word not in _TOO_LOOSE and not asks_degree:
            for other in OPPOSITES.get(word, []):
                yield _put(question, match, other.capitalize() if match[0][0].isupper() else other)


def _with_other_name(question: str, context: str, answers: Sequence[str]) -> Iterator[str]:
    """Yield questions with another name or number of the text in place of one that the text has."""
    for pattern in (_NAME, _NUMBER):
        others = {match[0] for match in pattern.finditer(context) if not _starts_sentence(context, match)}
        fit = sorted(other for other in others if other.split("'")[0].lower() not in _PRONOUNS)
        for match in pattern.finditer(question):
            if not match.start() or match[0] not in context or match[0].lower() in _PRONOUNS:
                continue
            for other in fit:
                is_alike = pattern is _NAME or len(other) == len(match[0])
                if is_alike and not _overlap(other, question) and not any(_overlap(other, each) for each in answers):
                    yield _put(question, match, other)


def _with_other_word(question: str, context: str, answers: Sequence[str]) -> Iterator[str]:
    """Yield questions with another word of the text, of the same ending, in place of one that the text has."""
    words = dict.fromkeys((match[0], _slot(context, match)) for match in _WORD.finditer(context))
    known = {word.lower() for text in (question, *answers) for word in _WORD.findall(text)}
    fit = [(word, slot) for word, slot in words if _is_ordinary(word) and word not in known]
    for match in _WORD.finditer(question):
        if _is_ordinary(match[0]) and match[0] in context:
            yield from (_put(question, match, word) for word, slot in fit if slot == _slot(question, match))


def _negated(question: str, context: str, answers: Sequence[str]) -> Iterator[str]:
    if _NEGATIONS & {word.lower() for word in re.findall(r"n't|\w+", f"{question} {context}")}:
        return
    if match := _AUXILIARY.search(question):
        short = {"can": "can't", "will": "won't"}.get(match[0], f"{match[0]}n't")
        yield _put(question, match, short)


_RULES: Mapping[str, Callable[[str, str, Sequence[str]], Iterator[str]]] = {
    "opposite": _with_opposite,
    "name": _with_other_name,
    "word": _with_other_word,
    "negation": _negated,
}


def _put(text: str, match: re.Match[str], other: str) -> str:
    return text[: match.start()] + other + text[match.end() :]


def _starts_sentence(text: str, match: re.Match[str]) -> bool:
    return match[0][0].isupper() and (match.start() == 0 or text[: match.start()].rstrip()[-1:] in ".!?\"'(")


def _overlap(one: str, other: str) -> bool:
    """Return whether two texts share a word."""
    return bool({word.lower() for word in _WORD.findall(one)} & {word.lower() for word in _WORD.findall(other)})


def _is_ordinary(word: str) -> bool:
    return len(word) >= _SHORTEST and word.isalpha() and word.islower() and word not in _COMMON_WORDS


def _slot(text: str, match: re.Match[str]) -> tuple[str, str]:
    """Return what tells the part of speech of a word: its ending, and whether an article stands before it."""
    ending = next((ending for ending in _ENDINGS if match[0].endswith(ending)), "")
    before = _WORD.findall(text[: match.start()])[-1:]
    return ending, "article" if before and before[0].lower() in _ARTICLES else ""
