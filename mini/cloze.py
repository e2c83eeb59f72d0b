"""Questions that running text asks of itself: a sentence with a gap, which its own paragraph fills.

A name, a number or a term is taken out of a sentence; what is left, with some words lost, moved or changed and a
question word in the place of the gap or before all else, asks for it. The paragraph still has the sentence, so that a
network learns to find the words of a question in a text and what stands among them, before it sees any real question.
After Lewis et al. 2019 ("Unsupervised question answering by cloze translation", noisy clozes). Another sentence that
says the same (Ram et al. 2021, "Few-shot question answering by pretraining span selection") taught this small network
less: docs/experiments.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

from training.text.sentences import split_sentences

MAX_WORDS = 5
"""Of an answer."""
MIN_SENTENCES, MAX_CHARACTERS = 2, 1200
"""Of a paragraph that is asked about."""
SENTENCE_WORDS = 6, 40
"""Fewest and most of a sentence that becomes a question."""
AROUND = 14
"""Words on both sides of the gap that become a question."""
DROPPED, REPLACED, MOVED = 0.5, 0.2, 4
"""Of the question that is changed most: shares of its words that are left out, and in whose place another word of the
paragraph stands, and by how many places the rest may be moved. Others are changed less, down to not at all: from these
a network learns soon what is asked of it (from hard ones alone late, docs/experiments)."""
TO_FRONT = 0.7
"""Share of the questions that begin with their question word."""
NAME_WEIGHT = 3
"""How much sooner names and numbers are asked for than other words."""
_WORD = re.compile(r"\w+(?:[-'’.,]\w+)*")
_COMMON = frozenset(
    "a about after all also an and any are as at be been before being between both but by can could did do does during "
    "each first for from had has have he her him his how i if in into is it its later made many may more most much new "
    "no not of on one only or other our out over s she should so some such than that the their them then there these "
    "they this those three through time to two under until up used was we were what when where which while who will "
    "with would year years you your".split()
)


def questions(paragraph: str, rng: random.Random) -> tuple[str, list[dict[str, Any]]] | None:
    """A context and one question about it as SQuAD has them, without `id`; None where there is nothing to ask for."""
    sentences = split_sentences(paragraph)
    if len(sentences) < MIN_SENTENCES or len(paragraph) > MAX_CHARACTERS:
        return None
    context = " ".join(sentences)
    for number in rng.sample(range(len(sentences)), len(sentences)):
        words = list(_WORD.finditer(sentences[number]))
        if SENTENCE_WORDS[0] <= len(words) <= SENTENCE_WORDS[1] and (gaps := list(_gaps(sentences[number], words))):
            weights = [NAME_WEIGHT if _is_name(words, gap) else 1 for gap in gaps]
            gap = rng.choices(gaps, weights)[0]
            start = sum(len(sentence) + 1 for sentence in sentences[:number]) + words[gap.start].start()
            end = start + words[gap.stop - 1].end() - words[gap.start].start()
            answer = {"text": context[start:end], "answer_start": start}
            question = _question([word[0] for word in words], gap, _WORD.findall(context), rng)
            return context, [{"question": question, "answers": [answer]}]
    return None


def _gaps(sentence: str, words: Sequence[re.Match[str]]) -> Iterator[range]:
    """What may be asked for, as places of words: runs between common words and punctuation."""
    first = 0
    for place in range(len(words) + 1):
        ends = place == len(words) or words[place][0].lower() in _COMMON
        if ends or (place > first and sentence[words[place - 1].end() : words[place].start()].strip()):
            if first < place <= first + MAX_WORDS:
                yield range(first, place)
            first = place + ends


def _is_name(words: Sequence[re.Match[str]], gap: range) -> bool:
    """Or a number; a sentence's first word has a capital anyway."""
    return any(words[place][0][0].isdigit() or (place and words[place][0][0].isupper()) for place in gap)


def _question(words: Sequence[str], gap: range, others: Sequence[str], rng: random.Random) -> str:
    """What is left of a sentence, changed, and a question word."""
    amount = rng.random()
    num_left = rng.randint(max(0, AROUND - (len(words) - gap.stop)), AROUND)
    left = words[max(0, gap.start - num_left) : gap.start]
    right = words[gap.stop : gap.stop + AROUND - len(left)]
    left, right = (_changed(side, others, amount, rng) for side in (left, right))
    asked = rng.choice(_question_words([words[place] for place in gap], words[gap.start - 1] if gap.start else ""))
    parts = [asked, *left, *right] if rng.random() < TO_FRONT else [*left, asked, *right]
    return " ".join(parts) + "?"


def _changed(words: Sequence[str], others: Sequence[str], amount: float, rng: random.Random) -> list[str]:
    """Without some of the words, with others in the place of some, and not quite in their order: as people ask."""
    found: list[tuple[float, str]] = []
    for place, word in enumerate(words):
        if (luck := rng.random()) >= amount * DROPPED:
            is_replaced = luck > 1 - amount * REPLACED
            found.append((place + rng.uniform(0, amount * MOVED), rng.choice(others) if is_replaced else word))
    return [word for _, word in sorted(found)]


def _question_words(answer: Sequence[str], before: str) -> Sequence[str]:
    """Those that may ask for words."""
    if re.fullmatch(r"1\d{3}|20\d\d", answer[-1]):
        return "when", "what year", "in what year"
    if answer[0][0].isdigit():
        return "how many", "how much", "what"
    if answer[0][0].isupper():
        return ("where", "what", "which") if before in {"in", "at", "from", "near", "to"} else ("who", "what", "which")
    return "what", "what", "which", "how"
