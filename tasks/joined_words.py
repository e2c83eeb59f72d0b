"""Divide running text into words as in the training data.

A tokenizer splits text at every punctuation mark, but tagged data have words such as `Jean-Luc`, `AT&T`, `1,000` and
`St.`. The rules for marks that belong to words are learnt from the tagged words.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np

from tasks.languages import is_unspaced

_PATTERN = re.compile(r"a[^a0]a|0[^a0]0|[^a0]a|a[^a0]|a([^a0])a\1", re.DOTALL)
_INITIALS = re.compile(r"(?:[^\W\d]{1,2}(\W))(?:[^\W\d]{1,2}\1)*[^\W\d]{1,2}")
_APOSTROPHES = "'\u2019"
"""Apostrophes, the only marks that end a word (an elided one, `l'Italia`) without a following space."""
_MAX_APART_RATIO = 10
"""A mark between two words may have been attached to both in the text, or to none; the data do not show which. It
belongs to words unless pairs of words with it in between are more than this many times as frequent as words with it."""
_MIN_COUNT = 3
"""Occurrences from which on a word that begins or ends with a mark is listed."""
_MIN_OUTER = 10
"""Distinct words from which on a mark belongs to all words before, or after, which it stands."""
_MARKS_PER_CHECK = 1024
_MAX_PARTS = 20
"""Most parts of a word that are looked up in `words`."""
MAX_JOINED_WORDS = 500
MAX_JOINED_MARKS = 1000


@dataclass(frozen=True)
class JoinedWords:
    """Rules for marks that belong to words.

    Raises:
        ValueError: naming a mark in another notation, or a list that is too long.
    """

    marks: tuple[str, ...] = ()
    """Marks: `a-a` between letters, `0.0` between digits, `@a` before a word, `a%` after a word, `a.a.` in and after
    initials."""
    words: tuple[str, ...] = ()
    """Words that begin or end with a mark (`'s`, `st.`), in lower case."""

    def __post_init__(self) -> None:
        for name, values, most in (
            ("joined_marks", self.marks, MAX_JOINED_MARKS),
            ("joined_words", self.words, MAX_JOINED_WORDS),
        ):
            if len(values) > most:
                raise ValueError(f"{name} of tagging can have at most {most} entries, not `{len(values)}`")
        malformed = next(
            (mark for mark in self.marks if not (_PATTERN.fullmatch(mark) and any(map(is_mark, mark)))), None
        )
        if malformed is not None:
            raise ValueError(
                f"joined_marks of tagging are written as `a-a`, `0.0`, `@a`, `a%` or `a.a.`: `{malformed[:50]}`"
            )

    @cached_property
    def mark_set(self) -> frozenset[str]:
        """`marks` as a set."""
        return frozenset(self.marks)

    @cached_property
    def word_set(self) -> frozenset[str]:
        """`words` as a set."""
        return frozenset(self.words)

    def join(
        self, text: str, bounds: np.ndarray, max_chars: int, check: Callable[[], None] = lambda: None
    ) -> np.ndarray:
        """Join the parts of words.

        Args:
            bounds: [parts, 2] (start, end) of the words of a tokenizer, in order.
            max_chars: longest joined word; longer ones stay divided.
            check: called regularly; may raise to end the work.

        Returns:
            [words, 2] (start, end) of the words.
        """
        if len(bounds) < 2 or not (self.marks or self.words):
            return bounds
        continues = _Joiner(self, text, bounds).run(check)
        words = _join(bounds, continues)
        for start, end in words[words[:, 1] - words[:, 0] > max_chars]:
            first, last = np.searchsorted(bounds[:, 0], [start, end])
            continues[first:last] = False
        return _join(bounds, continues)


def _join(bounds: np.ndarray, continues: np.ndarray) -> np.ndarray:
    firsts = np.flatnonzero(~continues)
    return np.stack([bounds[firsts, 0], bounds[np.append(firsts[1:], len(bounds)) - 1, 1]], axis=1)


@lru_cache(maxsize=16)
def joining_rules(marks: tuple[str, ...], words: tuple[str, ...]) -> JoinedWords:
    """Return the rules of a model, from a cache."""
    return JoinedWords(marks, words)


class _Joiner:
    """Applies rules to the marks of one text, from left to right."""

    def __init__(self, rules: JoinedWords, text: str, bounds: np.ndarray) -> None:
        self._marks, self._words = rules.mark_set, rules.word_set
        self._text, self._bounds = text, bounds
        self._continues = np.zeros(len(bounds), bool)

    def run(self, check: Callable[[], None]) -> np.ndarray:
        """Return which parts continue the word of the part before them: [parts] bool."""
        bounds, last = self._bounds, len(self._bounds) - 1
        attached = bounds[1:, 0] == bounds[:-1, 1]
        before, after = np.append(False, attached), np.append(attached, False)
        candidates = np.flatnonzero((bounds[:, 1] - bounds[:, 0] == 1) & (before | after))
        for first in range(0, len(candidates), _MARKS_PER_CHECK):
            check()
            chunk = candidates[first : first + _MARKS_PER_CHECK]
            begins = np.where(before[chunk], bounds[chunk - 1, 0], bounds[chunk, 0])
            ends = np.where(after[chunk], bounds[np.minimum(chunk + 1, last), 1], bounds[chunk, 1])
            rows = np.stack([chunk, begins, bounds[chunk, 0], ends], axis=1)
            for index, begin, position, end in rows.tolist():
                self._join_mark(index, begin, position, end)
        return self._continues

    def _join_mark(self, index: int, begin: int, position: int, end: int) -> None:
        """Decide whether a mark belongs to the word before it, and to the word after it.

        Args:
            index: number of the mark's part.
            begin: start of the part before it if that is adjacent, otherwise `position`.
            position: position of the mark.
            end: end of the part after it if that is adjacent, otherwise the end of the mark.
        """
        text = self._text
        mark = text[position]
        before = _kind(text[position - 1]) if begin < position else ""
        after = _kind(text[position + 1]) if end > position + 1 else ""
        if not (before or after) or not is_mark(mark):
            return
        if after and text[position:end].lower() in self._words:
            joins = (False, True)
        elif before and after:
            kind = "0" if before == after == "0" else "a"
            is_elided = mark in _APOSTROPHES and text[begin : position + 1].lower() in self._words
            is_inside = f"{kind}{mark}{kind}" in self._marks
            joins = (is_elided or is_inside, is_inside and not is_elided)
        elif after:
            joins = (False, f"{mark}a" in self._marks)
        else:
            joins = (f"a{mark}" in self._marks or self._ends_word(index, mark), False)
        if joins[0]:
            self._continues[index] = True
        if joins[1]:
            self._continues[index + 1] = True

    def _ends_word(self, index: int, mark: str) -> bool:
        """Return whether the word joined so far is listed with this mark at its end, or is initials that have it."""
        first = index - 1
        while self._continues[first] and index - first < _MAX_PARTS:
            first -= 1
        word = self._text[self._bounds[first, 0] : self._bounds[index, 1]].lower()
        return word in self._words or (f"a{mark}a{mark}" in self._marks and _is_initials(word))


@lru_cache(maxsize=4096)
def is_mark(char: str) -> bool:
    """Return whether a tokenizer makes a character a word of its own: punctuation and ASCII symbols."""
    category = unicodedata.category(char)
    return category[0] == "P" or (char.isascii() and category[0] == "S")


def word_around(text: str, position: int) -> tuple[int, int]:
    """Return (start, end) of the word that a position is inside of; both are `position` if it is between words."""
    start = end = position
    if 0 < position < len(text) and _kind(text[position - 1]) and _kind(text[position]):
        while start and _kind(text[start - 1]):
            start -= 1
        while end < len(text) and _kind(text[end]):
            end += 1
    return start, end


@lru_cache(maxsize=65536)
def _kind(char: str) -> str:
    """Return `0` for a digit, `a` for any other character of a word, empty for all others."""
    if not char or is_mark(char) or char.isspace() or is_unspaced(char):
        return ""
    return "0" if char.isdecimal() else "a"


def learn_joined_words(sentences: Iterable[Sequence[str]]) -> JoinedWords:
    """Learn which marks belong to words.

    A mark belongs to words (`a-a`, `@a`) if more words have it than have it beside them as a word of its own. Words
    that begin or end with a mark against that rule are listed one by one, if they are frequent.

    Args:
        sentences: words as tagged.
    """
    with_mark, apart = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    outer, divided = Counter[str](), Counter[str]()
    for sentence in sentences:
        words = [word.lower() for word in sentence]
        for word in words:
            if not word.isalnum():
                _count_word(word, with_mark, outer, divided)
        for first, second in pairwise(words):
            if len(first) == 1 and is_mark(first) and _kind(second[:1]):
                apart[f"{first}a"].add(second)
                divided[first + second] += 1
            if len(second) == 1 and is_mark(second) and _kind(first[-1:]):
                apart[f"a{second}"].add(first)
                if _is_initials(first + second):
                    apart[f"a{second}a{second}"].add(first)
                divided[first + second] += 1
        for first, mark, last in zip(words, words[1:], words[2:], strict=False):
            if len(mark) == 1 and is_mark(mark) and (kinds := _kinds(first[-1:], last[:1])):
                apart[f"{kinds}{mark}{kinds}"].add(f"{first}{mark}{last}")
    commonest = sorted(with_mark, key=lambda mark: (-len(with_mark[mark]), mark))
    marks = {mark for mark in commonest[:MAX_JOINED_MARKS] if _belongs(mark, len(with_mark[mark]), len(apart[mark]))}
    known = [
        word
        for word, count in outer.most_common()
        if count >= _MIN_COUNT and count > divided[word] and not {f"{word[0]}a", f"a{word[-1]}"} & marks
    ]
    return JoinedWords(tuple(sorted(marks)), tuple(sorted(known[:MAX_JOINED_WORDS])))


def _is_initials(word: str) -> bool:
    """Return whether a word is short parts with the same mark after each: `U.S.`."""
    found = _INITIALS.fullmatch(word, 0, len(word) - 1)
    return found is not None and found[1] == word[-1]


def _count_word(word: str, with_mark: dict[str, set[str]], outer: Counter[str], divided: Counter[str]) -> None:
    for position in range(1, len(word) - 1):
        mark = word[position]
        if is_mark(mark) and (kinds := _kinds(word[position - 1], word[position + 1])):
            with_mark[f"{kinds}{mark}{kinds}"].add(word)
            divided[word[position:]] += 1
            divided[word[: position + 1]] += 1
    if len(word) > 1 and is_mark(word[0]) and _kind(word[1]) and _kind(word[-1]):
        with_mark[f"{word[0]}a"].add(word)
        outer[word] += 1
    elif len(word) > 1 and is_mark(word[-1]) and _kind(word[-2]) and _kind(word[0]):
        with_mark[f"a{word[-1]}"].add(word)
        outer[word] += 1
        if _is_initials(word):
            with_mark[f"a{word[-1]}a{word[-1]}"].add(word)


def _kinds(before: str, after: str) -> str:
    """Return `0` for a mark between digits, `a` between other characters of words, empty elsewhere."""
    first, last = _kind(before), _kind(after)
    return "" if not (first and last) else "0" if first == last == "0" else "a"


def _belongs(mark: str, num_with: int, num_apart: int) -> bool:
    if len(mark) == 3:
        return num_with * _MAX_APART_RATIO >= num_apart
    is_outer = len(mark) == 2
    return num_with > num_apart and not (is_outer and (num_with < _MIN_OUTER or _encloses(mark.strip("a"))))


def _encloses(mark: str) -> bool:
    """Return whether a mark is a quote or bracket, which encloses words and is part of one only by accident."""
    return mark in "'\"`\u00b4" or unicodedata.category(mark) in ("Ps", "Pe", "Pi", "Pf")
