"""Tag schemes of entities (`B-LOC I-LOC O`): the entities that tags encode, and decoding under a scheme.

A tag is `O`, a prefix and a type (`B-LOC`), a prefix alone (`B`, where there is one type), or a type alone (`LOC`).
Prefixes mean the same in all schemes: IOB1, IOB2, IOE1, IOE2, IOBES, BILOU, BMES and BMEWO.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from functools import cache, lru_cache

import numpy as np

PREFIXES = {"B": "B", "I": "I", "M": "I", "E": "E", "L": "E", "S": "S", "U": "S", "W": "S"}
"""Prefixes -> prefixes of IOBES (begin, inside, end, single). BMES has `M`, BILOU `L` and `U`, BMEWO `W`."""
ONE_TYPE = "_"
"""Type of entities whose tags have no type, as in seqeval."""


def chunks(tags: Sequence[str], labels: Collection[str] = ()) -> list[tuple[str, int, int]]:
    """Return the entities that tags encode, as (type, first word, last word), in order.

    The rules are those of CoNLL, which fit every scheme: an entity continues with `I` or `E` of the same type, unless
    it ended with `E` or `S`; any other tag starts a new entity. A tag without a prefix counts as `I` of that type.

    Args:
        labels: all labels of the model, which decide whether `B` is a prefix or a type; by default those of `tags`.

    Source: conlleval.pl of the CoNLL-2000 shared task, with `E` and `S` as in seqeval.
    """
    bare = has_bare_prefixes(frozenset(labels or tags))
    found: list[tuple[str, int, int]] = []
    previous = ("O", "")
    for index, tag in enumerate(tags):
        prefix, kind = _split_tag(tag, bare)
        if prefix in "IE" and previous[0] in "BI" and kind == previous[1]:
            found[-1] = (kind, found[-1][1], index)
        elif prefix != "O":
            found.append((kind, index, index))
        previous = (prefix, kind)
    return found


def _split_tag(tag: str, bare: bool) -> tuple[str, str]:
    prefix, dash, kind = tag.partition("-")
    if tag == "O":
        return "O", ""
    return (PREFIXES[prefix], kind or ONE_TYPE) if prefix in PREFIXES and (dash or bare) else ("I", tag)


@lru_cache(maxsize=256)
def has_bare_prefixes(labels: frozenset[str]) -> bool:
    """Return whether labels are the prefixes of one scheme without types, as `B I O`."""
    names = labels - {"O"}
    meanings = [PREFIXES.get(name, "") for name in names]
    return bool(names & {"B", "I"}) and all(meanings) and len(meanings) == len({*meanings})


def has_no_scheme(labels: Collection[str]) -> bool:
    """Return whether no label has a prefix and none is `O`, as with parts of speech."""
    bare = has_bare_prefixes(frozenset(labels))
    return not any(label == "O" or bare or _has_prefix(label) for label in labels)


def to_iob2(tags: Sequence[str], labels: Collection[str] = ()) -> list[str]:
    """Return the IOB2 tags of the same entities."""
    converted = ["O"] * len(tags)
    for kind, first, last in chunks(tags, labels):
        converted[first : last + 1] = [f"B-{kind}", *[f"I-{kind}"] * (last - first)]
    return converted


def _has_prefix(label: str) -> bool:
    return label[:1] in PREFIXES and label[1:2] == "-"


_PREFIX_WORDS = "b|i|e|s|m|l|u|w|beg|begin|beginning|in|inside|mid|middle|end|last|single|singleton|unit|whole"
_OTHER_SPELLING = re.compile(
    rf"(?:{_PREFIX_WORDS})[-_:./|].+|.+[-_:./|](?:{_PREFIX_WORDS})|(?:{_PREFIX_WORDS})", re.IGNORECASE
)
"""A prefix in lower case, written out, followed by another sign than a dash, or after the type."""


_LIKE_PREFIX = re.compile(r"([BIESMLUW])\1*-", re.IGNORECASE)
"""A prefix in lower case or repeated: `b-PER`, `BB-PER`."""


def find_malformed_tag(labels: Collection[str]) -> tuple[str, str] | None:
    """Find a label that does not fit the scheme of the others.

    Returns:
        The label and the reason; None if all labels fit, or no label has a prefix.
    """
    names = sorted({*labels} - {"O"})
    if not names or has_bare_prefixes(frozenset(names)):
        return None
    known = f"known are {', '.join(f'`{prefix}-`' for prefix in PREFIXES)}, and `O` outside of entities"
    prefixed = [name for name in names if _has_prefix(name)]
    others = [name for name in names if not _has_prefix(name)]
    dashed = [name for name in others if "-" in name[1:]]
    are_like = {*dashed} >= {*names} - {"o"} and all(map(_LIKE_PREFIX.match, dashed))
    with_dash = [name for name in dashed if prefixed or are_like or ("O" in labels and name[1] == "-")]
    if with_dash:
        return with_dash[0], f"unknown prefix `{with_dash[0].partition('-')[0]}-` ({known})"
    if prefixed:
        return (others[0], f"no prefix, though `{prefixed[0]}` has one ({known})") if others else None
    if {"B", "I"} <= {*names} and ("O" in labels or len(names) == 3):
        malformed = next((name for name in names if name not in PREFIXES), names[-1])
        return malformed, f"no prefix of the same scheme as `B` and `I` ({known})"
    others = [name for name in names if name != "o" and name not in PREFIXES]
    if {"O", "o"} & {*labels} and others and all(map(_OTHER_SPELLING.fullmatch, others)):
        return others[0], f"a prefix in another spelling than `B-TYPE` ({known})"
    return None


def is_strict(sentences: Iterable[Sequence[str]], labels: Collection[str] = ()) -> bool:
    """Return whether no entity of the sentences begins with `I` or `E`, as in IOB2, IOBES, BILOU and BMES."""
    return all(prefixes[0] in "BS" for prefixes in _entity_prefixes(sentences, labels))


def is_strict_at_ends(sentences: Iterable[Sequence[str]], labels: Collection[str] = ()) -> bool:
    """Return whether no entity of the sentences ends with `B` or `I`, as in IOE2, IOBES, BILOU and BMES."""
    return all(prefixes[-1] in "ES" for prefixes in _entity_prefixes(sentences, labels))


def _entity_prefixes(sentences: Iterable[Sequence[str]], labels: Collection[str]) -> Iterable[list[str]]:
    """Yield the prefixes, in letters of IOBES, of each entity's first and last word."""
    rows = list(sentences)
    known = frozenset(labels or {tag for tags in rows for tag in tags})
    bare = has_bare_prefixes(known)
    for tags in rows:
        for _, first, last in chunks(tags, known):
            yield [_split_tag(tags[index], bare)[0] for index in (first, last)]


def best_tags(
    logits: np.ndarray, labels: Sequence[str], *, strict: bool = True, strict_ends: bool = False
) -> np.ndarray:
    """Return the most probable sequence of tags whose entities begin and end as the scheme requires.

    Args:
        logits: [words, labels].
        strict: no entity begins with `I` or `E`.
        strict_ends: no entity ends with `B` or `I`.

    Returns:
        [words] int64 label numbers; each word's most probable label if no sequence is allowed.

    Source: Viterbi 1967, with equal probabilities for all allowed transitions.
    """
    best = logits.argmax(axis=-1)
    if not (len(best) and (strict or strict_ends)):
        return best
    starts, steps, ends = _forbidden(tuple(labels), strict, strict_ends)
    if not (starts[best[0]] or ends[best[-1]] or steps[best[:-1], best[1:]].any()):
        return best
    sums = np.where(starts, -np.inf, logits[0].astype(np.float64))
    choices = []
    for row in logits[1:]:
        ways = np.where(steps, -np.inf, sums[:, None])
        choices.append(ways.argmax(axis=0))
        sums = ways.max(axis=0) + row
    sums = np.where(ends, -np.inf, sums)
    if np.isneginf(sums).all():
        return best
    path = [int(sums.argmax())]
    for choice in reversed(choices):
        path.append(int(choice[path[-1]]))
    return np.array(path[::-1])


@cache
def _forbidden(labels: tuple[str, ...], strict: bool, strict_ends: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the labels that cannot begin a sentence [labels], follow another [before, after], or end one: bool."""
    bare = has_bare_prefixes(frozenset(labels))
    split = [_split_tag(label, bare) for label in labels]
    continues = np.array([prefix in "IE" for prefix, _ in split])
    is_open = np.array([prefix in "BI" for prefix, _ in split])
    same = np.array([[one[1] == other[1] for other in split] for one in split])
    joined = is_open[:, None] & continues & same
    starts, ends = continues & strict, is_open & strict_ends
    return starts, (starts | ends[:, None]) & ~joined, ends
