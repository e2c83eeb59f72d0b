"""Schemes of tags for runs of words (`B-LOC I-LOC O`): what tags spell, and the likeliest tags that spell something."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np


def chunks(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """The entities that tags spell, as (type, first word, last word), in order.

    Tags are `O` or a prefix and a type, as `B-LOC`. By the rules of CoNLL, so that IOB1, IOB2 and IOBES are all read:
    an entity goes on with `I` or `E` of its own type, unless it ended with `E` or `S`; any other tag starts a new one.
    A tag without a prefix is read as `I` of that type.

    Source: conlleval.pl of the CoNLL-2000 shared task, with `E` and `S` as in seqeval.
    """
    found: list[tuple[str, int, int]] = []
    previous = ("O", "")
    for index, tag in enumerate(tags):
        prefix, kind = _split_tag(tag)
        if prefix in "IE" and previous[0] in "BI" and kind == previous[1]:
            found[-1] = (kind, found[-1][1], index)
        elif prefix != "O":
            found.append((kind, index, index))
        previous = (prefix, kind)
    return found


def _split_tag(tag: str) -> tuple[str, str]:
    prefix, dash, kind = tag.partition("-")
    if tag == "O":
        return "O", ""
    return (prefix, kind) if dash and prefix in ("B", "I", "E", "S") else ("I", tag)


def is_strict(sentences: Iterable[Sequence[str]]) -> bool:
    """Whether no entity of some tagged sentences begins with `I` or `E`: so it is in IOB2 and IOBES."""
    return all(_split_tag(tags[first])[0] in "BS" for tags in sentences for _, first, _ in chunks(tags))


def best_tags(logits: np.ndarray, labels: Sequence[str]) -> np.ndarray:
    """The likeliest sequence of tags in which `I` and `E` only go on with an entity.

    Args:
        logits: [words, labels]; what is added to all of a word's makes no difference.

    Returns:
        [words] int64, numbers of labels.

    Source: Viterbi 1967, with all steps that are allowed equally likely.
    """
    best = logits.argmax(axis=-1)
    starts, steps = _forbidden(tuple(labels))
    if not len(best) or not (starts[best[0]] or steps[best[:-1], best[1:]].any()):
        return best
    sums = np.where(starts, -np.inf, logits[0].astype(np.float64))
    choices = []
    for row in logits[1:]:
        ways = np.where(steps, -np.inf, sums[:, None])
        choices.append(ways.argmax(axis=0))
        sums = ways.max(axis=0) + row
    path = [int(sums.argmax())]
    for choice in reversed(choices):
        path.append(int(choice[path[-1]]))
    return np.array(path[::-1])


@cache
def _forbidden(labels: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Which labels begin no sentence [labels], and which do not follow which [before, after]; bool."""
    split = [_split_tag(label) for label in labels]
    goes_on = np.array([prefix in "IE" for prefix, _ in split])
    open_before = [[one[0] in "BI" and one[1] == other[1] for other in split] for one in split]
    return goes_on, goes_on & ~np.array(open_before)
