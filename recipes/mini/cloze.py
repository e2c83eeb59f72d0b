"""Synthetic cloze questions: a sentence with a gap, which its own paragraph answers.

A name, a number or a term is removed from a sentence. The rest becomes a question: some words are dropped, replaced or
moved, and a question word stands in the gap or at the front. The paragraph still contains the sentence, so that a
network learns to find the words of a question in a text before it sees real questions. After Lewis et al. 2019
("Unsupervised question answering by cloze translation", noisy clozes). Questions from another sentence that repeats the
answer (Ram et al. 2021, "Few-shot question answering by pretraining span selection") helped this small network less:
docs/experiments.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

from training.text.sentences import split_sentences

MAX_ANSWER_WORDS = 5
MIN_SENTENCES, MAX_CHARACTERS = 2, 1200
"""Limits of a paragraph."""
SENTENCE_WORDS = 6, 40
"""Minimum and maximum length of a sentence that becomes a question."""
QUESTION_WORDS = 14
"""Maximum number of words on both sides of the gap that become a question."""
MAX_DROP_RATE, MAX_REPLACE_RATE, MAX_SHIFT = 0.5, 0.2, 4
"""Noise of the hardest question: fractions of words that are dropped and replaced, and maximum shift of a word.

The noise of each question is a random fraction of this. Training on hard questions only learns late (docs/experiments).
"""
FRONT_RATE = 0.7
"""Fraction of questions that begin with their question word."""
NAME_WEIGHT = 3
"""Sampling weight of names and numbers as answers; other words have weight 1."""
_WORD = re.compile(r"\w+(?:[-'’.,]\w+)*")
_COMMON_WORDS = frozenset(
    "a about after all also an and any are as at be been before being between both but by can could did do does during "
    "each first for from had has have he her him his how i if in into is it its later made many may more most much new "
    "no not of on one only or other our out over s she should so some such than that the their them then there these "
    "they this those three through time to two under until up used was we were what when where which while who will "
    "with would year years you your".split()
)


def cloze_question(paragraph: str, rng: random.Random) -> tuple[str, dict[str, Any]] | None:
    """Make one question about a paragraph.

    Returns:
        The context and a SQuAD question without `id`; None if the paragraph is too short, too long or has no answer.
    """
    sentences = split_sentences(paragraph)
    if len(sentences) < MIN_SENTENCES or len(paragraph) > MAX_CHARACTERS:
        return None
    context = " ".join(sentences)
    for number in rng.sample(range(len(sentences)), len(sentences)):
        words = list(_WORD.finditer(sentences[number]))
        if SENTENCE_WORDS[0] <= len(words) <= SENTENCE_WORDS[1] and (gaps := list(_gaps(sentences[number], words))):
            weights = [NAME_WEIGHT if _has_name(words, gap) else 1 for gap in gaps]
            gap = rng.choices(gaps, weights)[0]
            start = sum(len(sentence) + 1 for sentence in sentences[:number]) + words[gap.start].start()
            end = start + words[gap.stop - 1].end() - words[gap.start].start()
            answer = {"text": context[start:end], "answer_start": start}
            question = _question([word[0] for word in words], gap, _WORD.findall(context), rng)
            return context, {"question": question, "answers": [answer]}
    return None


def _gaps(sentence: str, words: Sequence[re.Match[str]]) -> Iterator[range]:
    """Yield possible answers as ranges of words: runs between common words and punctuation."""
    first = 0
    for index in range(len(words) + 1):
        ends = index == len(words) or words[index][0].lower() in _COMMON_WORDS
        if ends or (index > first and sentence[words[index - 1].end() : words[index].start()].strip()):
            if first < index <= first + MAX_ANSWER_WORDS:
                yield range(first, index)
            first = index + ends


def _has_name(words: Sequence[re.Match[str]], gap: range) -> bool:
    """Return whether a gap has a number or a capitalized word; the first word of the sentence does not count."""
    return any(words[index][0][0].isdigit() or (index and words[index][0][0].isupper()) for index in gap)


def _question(words: Sequence[str], gap: range, paragraph_words: Sequence[str], rng: random.Random) -> str:
    """Return a question made of the words around the gap, with noise and a question word."""
    noise = rng.random()
    num_left = rng.randint(max(0, QUESTION_WORDS - (len(words) - gap.stop)), QUESTION_WORDS)
    left = words[max(0, gap.start - num_left) : gap.start]
    right = words[gap.stop : gap.stop + QUESTION_WORDS - len(left)]
    left, right = (_add_noise(side, paragraph_words, noise, rng) for side in (left, right))
    before = words[gap.start - 1] if gap.start else ""
    question_word = rng.choice(_question_words([words[index] for index in gap], before))
    at_front = rng.random() < FRONT_RATE
    parts = [question_word, *left, *right] if at_front else [*left, question_word, *right]
    return " ".join(parts) + "?"


def _add_noise(words: Sequence[str], paragraph_words: Sequence[str], noise: float, rng: random.Random) -> list[str]:
    """Drop some words, replace some with words of the paragraph, and move the rest a little."""
    found: list[tuple[float, str]] = []
    for index, word in enumerate(words):
        if (draw := rng.random()) >= noise * MAX_DROP_RATE:
            is_replaced = draw > 1 - noise * MAX_REPLACE_RATE
            position = index + rng.uniform(0, noise * MAX_SHIFT)
            found.append((position, rng.choice(paragraph_words) if is_replaced else word))
    return [word for _, word in sorted(found)]


def _question_words(answer: Sequence[str], before: str) -> Sequence[str]:
    """Return question words that fit an answer and the word before it."""
    if re.fullmatch(r"1\d{3}|20\d\d", answer[-1]):
        return "when", "what year", "in what year"
    if answer[0][0].isdigit():
        return "how many", "how much", "what"
    if answer[0][0].isupper():
        return ("where", "what", "which") if before in {"in", "at", "from", "near", "to"} else ("who", "what", "which")
    return "what", "what", "which", "how"
