"""Unlabelled texts for distillation, which `recipes.mini.data` writes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from training.text.sentences import split_sentences

NUM_SENTENCES, NUM_PART, NUM_PARAGRAPHS, NUM_CLOZE = 500_000, 100_000, 60_000, 60_000
SHORTEST, LONGEST = 4, 60
"""Smallest and largest number of words of a sentence."""
PARAGRAPH_WORDS = (30, 180)
"""Smallest and largest number of words of a paragraph."""


Paragraph = dict[str, Any]
Titled = tuple[str, Paragraph]
"""Title of an article, and a paragraph of it in SQuAD's format."""
IsHeldOut = Callable[[str], bool]
"""Function that returns whether a text is in the dev set of STS-B or SQuAD."""


def sentences(texts: Iterable[str], is_held_out: IsHeldOut) -> Iterator[str]:
    """Yield each sentence of 4 to 60 words once, except those of dev sets."""
    seen: set[str] = set()
    for sentence in chain.from_iterable(map(split_sentences, texts)):
        if SHORTEST <= len(sentence.split()) <= LONGEST and sentence not in seen and not is_held_out(sentence):
            seen.add(sentence)
            yield sentence


def sample_sentences(texts: Sequence[str], is_held_out: IsHeldOut) -> list[str]:
    """Return `NUM_SENTENCES` random sentences, in random order."""
    rng = random.Random(0)
    found = list(sentences(texts, is_held_out))
    return rng.sample(found, min(NUM_SENTENCES, len(found)))


def sample_paragraphs(texts: Iterable[str], is_held_out: IsHeldOut) -> list[str]:
    """Return at most `NUM_PARAGRAPHS` random paragraphs of several sentences, without a sentence of a dev set."""
    smallest, largest = PARAGRAPH_WORDS
    fitting = [text for text in texts if smallest <= len(text.split()) <= largest]
    chosen = random.Random(1).sample(fitting, min(NUM_PARAGRAPHS, len(fitting)))
    return [text for text in chosen if not any(map(is_held_out, split_sentences(text)))]


def questions_and_paragraphs(paragraphs: Iterable[Titled]) -> Iterator[dict[str, str]]:
    """Yield a row for each question and its paragraph."""
    for _, paragraph in paragraphs:
        for item in paragraph["qas"]:
            yield {"text": item["question"], "text_pair": paragraph["context"]}
