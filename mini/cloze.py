"""Questions that running text asks of itself: a sentence with a gap, which another sentence of its paragraph fills.

What a paragraph says twice (a name, a number, a term) is left out of one sentence, `what` standing in its place; the
rest of the paragraph has the answer. That teaches a network to look for what fits the words of a question before it
sees any real ones. After Ram et al. 2021 ("Few-shot question answering by pretraining span selection"), who do it
while pretraining, and Lewis et al. 2019 ("Unsupervised question answering by cloze translation").
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any

from training.text.documents import split_sentences

MAX_WORDS = 5
"""Of an answer."""
MIN_SENTENCES, MAX_CHARACTERS = 3, 1200
"""Of a paragraph that is asked about."""
_WORD = re.compile(r"\w+(?:[-'’.]\w+)*")
_COMMON = frozenset(
    "a about after all also an and any are as at be been before being between both but by can could did do does during "
    "each first for from had has have he her him his how i if in into is it its later made many may more most much new "
    "no not of on one only or other our out over s she should so some such than that the their them then there these "
    "they this those three through time to two under until up used was we were what when where which while who will "
    "with would year years you your".split()
)


def questions(paragraph: str, rng: random.Random) -> tuple[str, list[dict[str, Any]]] | None:
    """A context and one question about it as SQuAD has them, without `id`; None where nothing is said twice."""
    sentences = split_sentences(paragraph)
    if len(sentences) < MIN_SENTENCES or len(paragraph) > MAX_CHARACTERS:
        return None
    order = rng.sample(range(len(sentences)), len(sentences))
    for number in order:
        sentence = sentences[number]
        if not 6 <= len(sentence.split()) <= 40:
            continue
        context = " ".join(sentences[:number] + sentences[number + 1 :])
        if found := _gap(sentence, context, rng):
            start, end = found
            question = f"{sentence[:start]}what{sentence[end:]}".rstrip(" .!?;:") + "?"
            text = sentence[start:end]
            answers = [{"text": text, "answer_start": place} for place in _places(text, context)]
            return context, [{"question": question, "answers": answers}]
    return None


def _gap(sentence: str, context: str, rng: random.Random) -> tuple[int, int] | None:
    """Where something stands in the sentence that stands in the context, too: one of the longest that there are."""
    words = list(_WORD.finditer(sentence))
    known = set(_WORD.findall(context))
    spans = []
    for first, last in _runs([word[0] in known for word in words]):
        for one, other in _within(first, last):
            start, end = words[one].start(), words[other].end()
            edges = (words[one][0].lower(), words[other][0].lower())
            text = sentence[start:end]
            if not _COMMON.intersection(edges) and _is_telling(text) and _places(text, context):
                spans.append((start, end))
                break
    return rng.choice(spans) if spans else None


def _places(text: str, context: str) -> list[int]:
    """Where it stands in the context, as whole words."""
    return [match.start() for match in re.finditer(rf"(?<!\w){re.escape(text)}(?!\w)", context)]


def _runs(flags: list[bool]) -> Iterator[tuple[int, int]]:
    """First and last place of each unbroken run of true flags."""
    first = None
    for place, flag in enumerate([*flags, False]):
        if flag and first is None:
            first = place
        elif not flag and first is not None:
            yield first, place - 1
            first = None


def _within(first: int, last: int) -> Iterator[tuple[int, int]]:
    """Spans of at most MAX_WORDS words in a run, longest first."""
    for length in range(min(MAX_WORDS, last - first + 1), 0, -1):
        for one in range(first, last - length + 2):
            yield one, one + length - 1


def _is_telling(text: str) -> bool:
    """A name, a number, several words, or a long one."""
    return bool(re.search(r"[A-Z0-9]|\s", text)) or len(text) > 6
