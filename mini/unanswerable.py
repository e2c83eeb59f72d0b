"""Make questions that a text does not answer out of questions that it answers.

python -m mini.unanswerable QUESTIONS CHECKPOINT OUT

A question is changed as the authors of SQuAD v2.0 changed theirs (Rajpurkar et al. 2018, table 1): another name or
number, an opposite or a word of the same kind, or a negation. Names and numbers come from the same article. Words of
the same kind are those with similar word embeddings in a pretrained network, such as `north` and `south`.

Some changed questions can still be answered: words of the same kind may be synonyms.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from mini.data import ELSEWHERE, merge, squad_file, squad_text
from mini.unlabelled import Paragraph, Titled
from tasks.files import atomic_write
from tasks.tokenizer_files import load_backend
from training.command import command, parse
from training.weights import read_weights

REPEATS = 8
"""Copies of questions that people wrote as unanswerable, as there are few."""
NUM_NEIGHBOURS = 8
"""Most similar words that may replace a word."""
_SHORTEST_WORD = 4
_SHARED_START = 4
"""Letters at the start that tell forms of one word: `begin`, `begins`."""
_FUNCTION_WORDS = frozenset(
    "about after also among been before being could does during from have into many most much must named known called "
    "over should some such than that their them then there these they this those type under used very were what when "
    "where which while whom whose will with would your".split()
)
_NAME = re.compile(r"(?<!^)(?<![.?!] )\b[A-Z][\w'-]+(?: [A-Z][\w'-]+)*")
_NUMBER = re.compile(r"\b\d+(?:[.,]\d+)*\b")
_VERB = re.compile(r"\b(?:did|does|do|is|are|was|were|could|would|has|have|had|should)\b")
_WORD = re.compile(r"\b[a-z]+\b")

Neighbours = Mapping[str, Sequence[str]]
"""Words of the same kind for each word."""


@dataclass(frozen=True)
class Place:
    """Texts, words and random numbers for the change of a question."""

    paragraph: str
    """Text that answers the question."""
    article: str
    """The same, and another paragraph of its article."""
    neighbours: Neighbours
    rng: random.Random


Change = Callable[[str, Place], str | None]
"""Function that changes a question; None if it cannot."""


def other_number(question: str, place: Place) -> str | None:
    """Replace a number by another one of the article with as many digits."""
    return _replace(question, _NUMBER, place, lambda old, new: len(old) == len(new))


def other_name(question: str, place: Place) -> str | None:
    """Replace a name by another one of the article."""
    return _replace(question, _NAME, place, lambda old, new: new not in old and old not in new)


def other_word(question: str, place: Place) -> str | None:
    """Replace a word of the paragraph by one of the same kind, or its opposite, which it does not have."""
    words = set(_WORD.findall(place.paragraph.lower()))
    found = [match for match in _WORD.finditer(question) if match.group() in words & place.neighbours.keys()]
    if not found:
        return None
    chosen = place.rng.choice(found)
    others = [word for word in place.neighbours[chosen.group()] if word not in words]
    return _put(question, chosen, place.rng.choice(others)) if others else None


def negated(question: str, place: Place) -> str | None:
    """Negate the first auxiliary verb."""
    found = _VERB.search(question)
    return found and _put(question, found, f"{found.group()}n't")


CHANGES: Mapping[Change, int] = {other_number: 4, other_name: 3, other_word: 4, negated: 1}
"""Changes, and how often each is tried first."""


def _replace(question: str, kind: re.Pattern[str], place: Place, fits: Callable[[str, str], bool]) -> str | None:
    found = list(kind.finditer(question))
    if not found:
        return None
    chosen = place.rng.choice(found)
    others = [new for new in kind.findall(place.article) if new not in question and fits(chosen.group(), new)]
    return _put(question, chosen, place.rng.choice(others)) if others else None


def _put(question: str, match: re.Match[str], new: str) -> str:
    return question[: match.start()] + new + question[match.end() :]


def changed_question(question: str, place: Place) -> str | None:
    """Return a question that the text does not answer; None if no change fits."""
    changes, weights = list(CHANGES), list(CHANGES.values())
    while changes:
        (number,) = place.rng.choices(range(len(changes)), weights)
        found = changes.pop(number)(question, place)
        weights.pop(number)
        if found:
            return found
    return None


def with_changed_questions(paragraphs: Sequence[Titled], neighbours: Neighbours, seed: int = 0) -> Iterator[Titled]:
    """Yield paragraphs with their answerable questions, and a changed one for each.

    Unanswerable questions that people wrote for the paragraph are repeated `REPEATS` times.
    """
    rng = random.Random(seed)
    texts: dict[str, list[str]] = {}
    for title, paragraph in paragraphs:
        texts.setdefault(title, []).append(paragraph["context"])
    for title, paragraph in paragraphs:
        context = paragraph["context"]
        place = Place(context, f"{context}\n{rng.choice(texts[title])}", neighbours, rng)
        yield title, {"context": context, "qas": list(_questions(paragraph, place))}


def _questions(paragraph: Paragraph, place: Place) -> Iterator[Paragraph]:
    for item in paragraph["qas"]:
        if ELSEWHERE in item["id"]:
            yield item
        elif not item["answers"]:
            for number in range(REPEATS):
                yield item | {"id": f"{item['id']}-{number}"}
        else:
            yield item
            if changed := changed_question(item["question"], place):
                yield {"id": f"{item['id']}-changed", "question": changed, "answers": [], "is_impossible": True}


def word_neighbours(checkpoint: Path) -> dict[str, list[str]]:
    """Return the words of a vocabulary with the `NUM_NEIGHBOURS` most similar ones, less forms of the same word.

    Words have at least four letters, and are no function words. Similarity is the cosine of word embeddings without
    their mean.

    Args:
        checkpoint: checkpoint with a vocabulary of lower-case words.
    """
    vocabulary = load_backend(checkpoint)[0].get_vocab()
    words = sorted(
        word
        for word in vocabulary
        if len(word) >= _SHORTEST_WORD and re.fullmatch("[a-z]+", word) and word not in _FUNCTION_WORDS
    )
    matrix = _word_embeddings(checkpoint, len(vocabulary))
    vectors = (matrix - matrix.mean(0))[[vocabulary[word] for word in words]]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    found = {}
    for number, word in enumerate(words):
        nearest = np.argsort(-(vectors @ vectors[number]), kind="stable")[: 4 * NUM_NEIGHBOURS]
        others = [words[other] for other in nearest if words[other][:_SHARED_START] != word[:_SHARED_START]]
        if others:
            found[word] = others[:NUM_NEIGHBOURS]
    return found


def _word_embeddings(checkpoint: Path, vocab_size: int) -> np.ndarray:
    """Return the matrix of word embeddings, [vocabulary, hidden size], float32."""
    for name, weight in read_weights(checkpoint).items():
        if "embeddings" in name and weight.ndim == 2 and len(weight) == vocab_size:
            return weight.float().numpy()
    raise ValueError(f"no word embeddings of {vocab_size:,} tokens in `{checkpoint}`")


@dataclass(frozen=True, kw_only=True)
class UnanswerableArguments:
    """Add changed questions to a file of questions."""

    questions: Annotated[Path, tyro.conf.Positional]
    """Questions in SQuAD's format."""
    checkpoint: Annotated[Path, tyro.conf.Positional]
    """Pretrained checkpoint, whose word embeddings tell words of the same kind."""
    out: Annotated[Path, tyro.conf.Positional]
    """File to write, in SQuAD's format."""


@command
def main() -> None:
    """Command line."""
    arguments = parse(UnanswerableArguments, "mini.unanswerable", __doc__)
    paragraphs = merge([squad_file(arguments.questions)])
    made = list(with_changed_questions(paragraphs, word_neighbours(arguments.checkpoint)))
    atomic_write(arguments.out, squad_text(made).encode())
    questions = [item for _, paragraph in made for item in paragraph["qas"]]
    unanswerable = sum(not item["answers"] for item in questions)
    print(f"{arguments.out}: {len(questions):,} questions, {unanswerable:,} of them without an answer")


if __name__ == "__main__":
    main()
