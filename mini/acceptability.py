"""Make sentences of all degrees of acceptability, which a teacher labels for CoLA.

    python -m mini.acceptability SENTENCES OUT

Short sentences of running text, and a changed copy of each: two words swapped, a word left out, doubled, moved, put in,
replaced by another function word, or with another ending. Some copies are still acceptable; the teacher decides.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from tasks.files import atomic_write
from training.command import command, parse
from training.text.documents import read_lines

NUM_SENTENCES = 35_000
SHORTEST, LONGEST = 4, 13
"""Smallest and largest number of words of a sentence."""
_PLAIN = re.compile(r"[A-Z][A-Za-z ,';-]+[.?!]")
_FUNCTION_WORDS = sorted(
    set(
        "the a an of in on at to for with by from is was are were be been has have had do does did "
        "that which who it he she they his her their its not and or but as".split()
    )
)

Words = list[str]
Change = Callable[[Words, random.Random], Words]
"""Function that changes the words of a sentence."""


def swapped(words: Words, rng: random.Random) -> Words:
    """Swap two neighbours."""
    place = rng.randrange(len(words) - 1)
    return [*words[:place], words[place + 1], words[place], *words[place + 2 :]]


def shortened(words: Words, rng: random.Random) -> Words:
    """Leave out a word."""
    place = rng.randrange(len(words))
    return words[:place] + words[place + 1 :]


def doubled(words: Words, rng: random.Random) -> Words:
    """Repeat a word."""
    place = rng.randrange(len(words))
    return [*words[:place], words[place], *words[place:]]


def moved(words: Words, rng: random.Random) -> Words:
    """Move a word to any place."""
    place = rng.randrange(len(words))
    return _inserted(words[:place] + words[place + 1 :], words[place], rng)


def lengthened(words: Words, rng: random.Random) -> Words:
    """Put in a function word."""
    return _inserted(words, rng.choice(_FUNCTION_WORDS), rng)


def exchanged(words: Words, rng: random.Random) -> Words:
    """Replace a function word by another; leave out a word if there is none."""
    places = [place for place, word in enumerate(words) if word.lower() in _FUNCTION_WORDS]
    if not places:
        return shortened(words, rng)
    place = rng.choice(places)
    return [*words[:place], rng.choice(_FUNCTION_WORDS), *words[place + 1 :]]


def inflected(words: Words, rng: random.Random) -> Words:
    """Give a word another ending."""
    place = rng.randrange(len(words))
    word = words[place].rstrip(",;")
    mark = words[place][len(word) :]
    other = word.removesuffix("s") if word.endswith("s") else word + rng.choice(("s", "ing"))
    return [*words[:place], other + mark, *words[place + 1 :]]


CHANGES: Sequence[Change] = (swapped, shortened, doubled, moved, lengthened, exchanged, inflected)


def _inserted(words: Words, word: str, rng: random.Random) -> Words:
    place = rng.randrange(len(words) + 1)
    return [*words[:place], word, *words[place:]]


def changed(sentence: str, rng: random.Random) -> str:
    """Return a sentence after a random change, with a capital at its start and its mark at its end."""
    while True:
        text = " ".join(rng.choice(CHANGES)(sentence[:-1].split(), rng))
        if (found := f"{text[:1].upper()}{text[1:]}{sentence[-1]}") != sentence:
            return found


def with_changed(sentences: Iterable[str], seed: int = 0) -> list[str]:
    """Return at most `NUM_SENTENCES` short plain sentences and a changed copy of each, in random order."""
    rng = random.Random(seed)
    fitting = [
        text for text in dict.fromkeys(sentences) if SHORTEST <= len(text.split()) <= LONGEST and _PLAIN.fullmatch(text)
    ]
    chosen = rng.sample(fitting, min(NUM_SENTENCES, len(fitting)))
    texts = [*chosen, *(changed(text, rng) for text in chosen)]
    rng.shuffle(texts)
    return texts


@dataclass(frozen=True, kw_only=True)
class AcceptabilityArguments:
    """Add changed sentences to sentences."""

    sentences: Annotated[Path, tyro.conf.Positional]
    """Sentences, one a line."""
    out: Annotated[Path, tyro.conf.Positional]
    """File to write, one sentence a line."""


@command
def main() -> None:
    """Command line."""
    arguments = parse(AcceptabilityArguments, "mini.acceptability", __doc__)
    if arguments.out.resolve() == arguments.sentences.resolve():
        raise ValueError(f"`{arguments.out}` has the sentences; give another file to write")
    texts = with_changed(read_lines(arguments.sentences))
    if not texts:
        raise ValueError(f"no plain sentence of {SHORTEST} to {LONGEST} words in `{arguments.sentences}`")
    atomic_write(arguments.out, "".join(f"{text}\n" for text in texts).encode())
    print(f"{arguments.out}: {len(texts):,} sentences")


if __name__ == "__main__":
    main()
