"""Words of running text as the training data have them.

A tokenizer divides text at every punctuation mark; people who tag words write `Jean-Luc`, `AT&T`, `1,000` or `St.` as
one word. Which marks belong to a word is learnt from the words that were tagged, so that text is divided as they are.
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
"""Behind an elided word (`l'Italia`), nothing else ends a word that no space follows."""
_MANY_APART = 10
"""A mark between two words was attached to both in the text, or stood alone: the data do not tell. It belongs to words
unless those with it are so many times fewer than pairs of words with it in between."""
_MIN_COUNT = 3
_MIN_OUTER = 10
"""Different words from which on a mark belongs to all words that it stands before, or behind."""
_MARKS_AT_A_TIME = 1024
_MAX_PARTS = 20
"""Words that are known have fewer."""
MAX_JOINED_WORDS = 500
MAX_JOINED_MARKS = 1000


@dataclass(frozen=True)
class JoinedWords:
    """Which marks belong to a word.

    Raises:
        ValueError: for a mark that is written otherwise.
    """

    marks: tuple[str, ...] = ()
    """`a-a` for a mark between letters, `0.0` between digits, `@a` before a word, `a%` behind one, `a.a.` behind
    initials that have it in between."""
    words: tuple[str, ...] = ()
    """Words that begin or end with a mark (`'s`, `st.`), in small letters."""

    def __post_init__(self) -> None:
        for name, values, most in (
            ("joined_marks", self.marks, MAX_JOINED_MARKS),
            ("joined_words", self.words, MAX_JOINED_WORDS),
        ):
            if len(values) > most:
                raise ValueError(f"{name} of tagging must be at most {most}: there are `{len(values)}`")
        odd = next((mark for mark in self.marks if not (_PATTERN.fullmatch(mark) and any(map(is_mark, mark)))), None)
        if odd is not None:
            raise ValueError(f"joined_marks of tagging are written as `a-a`, `0.0`, `@a`, `a%` or `a.a.`: `{odd[:50]}`")

    @cached_property
    def mark_set(self) -> frozenset[str]:
        """The marks, to look them up."""
        return frozenset(self.marks)

    @cached_property
    def word_set(self) -> frozenset[str]:
        """The words, to look them up."""
        return frozenset(self.words)

    def join(
        self, text: str, bounds: np.ndarray, max_chars: int, check: Callable[[], None] = lambda: None
    ) -> np.ndarray:
        """Put the parts of words together.

        Args:
            bounds: [parts, 2] places (start, end) of what a tokenizer takes for words, in their order.
            max_chars: of a word that is put together; what would be longer stays divided.
            check: is called now and then, and may raise to end the work.

        Returns:
            [words, 2] places of the words.
        """
        if len(bounds) < 2 or not (self.marks or self.words):
            return bounds
        goes_on = _Joining(self, text, bounds).found(check)
        words = _words(bounds, goes_on)
        for start, end in words[words[:, 1] - words[:, 0] > max_chars]:
            first, last = np.searchsorted(bounds[:, 0], [start, end])
            goes_on[first:last] = False
        return _words(bounds, goes_on)


def _words(bounds: np.ndarray, goes_on: np.ndarray) -> np.ndarray:
    firsts = np.flatnonzero(~goes_on)
    return np.stack([bounds[firsts, 0], bounds[np.append(firsts[1:], len(bounds)) - 1, 1]], axis=1)


@lru_cache(maxsize=16)
def rules_of(marks: tuple[str, ...], words: tuple[str, ...]) -> JoinedWords:
    """Make the rules of a model once, rather than for each text."""
    return JoinedWords(marks, words)


class _Joining:
    """Looks at each mark of a text, from left to right."""

    def __init__(self, rules: JoinedWords, text: str, bounds: np.ndarray) -> None:
        self._marks, self._words = rules.mark_set, rules.word_set
        self._text, self._bounds = text, bounds
        self._goes_on = np.zeros(len(bounds), bool)

    def found(self, check: Callable[[], None]) -> np.ndarray:
        """[parts] bool: which parts go on with the word of the part before."""
        bounds, last = self._bounds, len(self._bounds) - 1
        attached = bounds[1:, 0] == bounds[:-1, 1]
        before, after = np.append(False, attached), np.append(attached, False)
        candidates = np.flatnonzero((bounds[:, 1] - bounds[:, 0] == 1) & (before | after))
        for first in range(0, len(candidates), _MARKS_AT_A_TIME):
            check()
            some = candidates[first : first + _MARKS_AT_A_TIME]
            begins = np.where(before[some], bounds[some - 1, 0], bounds[some, 0])
            ends = np.where(after[some], bounds[np.minimum(some + 1, last), 1], bounds[some, 1])
            places = np.stack([some, begins, bounds[some, 0], ends], axis=1)
            for index, begin, place, end in places.tolist():
                self._look_at(index, begin, place, end)
        return self._goes_on

    def _look_at(self, index: int, begin: int, place: int, end: int) -> None:
        """See whether a mark belongs to the word before it, and to the one after it.

        Args:
            index: number of its part.
            begin: where the part before it begins, if nothing stands in between.
            place: where it stands.
            end: where the part after it ends, if nothing stands in between.
        """
        text = self._text
        mark = text[place]
        before = _kind(text[place - 1]) if begin < place else ""
        after = _kind(text[place + 1]) if end > place + 1 else ""
        if not (before or after) or not is_mark(mark):
            return
        if after and text[place:end].lower() in self._words:
            joins = (False, True)
        elif before and after:
            kind = "0" if before == after == "0" else "a"
            is_elided = mark in _APOSTROPHES and text[begin : place + 1].lower() in self._words
            is_inside = f"{kind}{mark}{kind}" in self._marks
            joins = (is_elided or is_inside, is_inside and not is_elided)
        elif after:
            joins = (False, f"{mark}a" in self._marks)
        else:
            joins = (f"a{mark}" in self._marks or self._ends_word(index, mark), False)
        if joins[0]:
            self._goes_on[index] = True
        if joins[1]:
            self._goes_on[index + 1] = True

    def _ends_word(self, index: int, mark: str) -> bool:
        """Whether the word that was put together so far is known to end with this mark, or is initials that do."""
        first = index - 1
        while self._goes_on[first] and index - first < _MAX_PARTS:
            first -= 1
        word = self._text[self._bounds[first, 0] : self._bounds[index, 1]].lower()
        return word in self._words or (f"a{mark}a{mark}" in self._marks and _is_initials(word))


@lru_cache(maxsize=4096)
def is_mark(char: str) -> bool:
    """Whether a tokenizer takes a character for a word of its own though spaces are between words: punctuation."""
    category = unicodedata.category(char)
    return category[0] == "P" or (char.isascii() and category[0] == "S")


def word_around(text: str, place: int) -> tuple[int, int]:
    """The word that a place in a text is inside of, as (start, end); both are `place` where it is between words."""
    start = end = place
    if 0 < place < len(text) and _kind(text[place - 1]) and _kind(text[place]):
        while start and _kind(text[start - 1]):
            start -= 1
        while end < len(text) and _kind(text[end]):
            end += 1
    return start, end


@lru_cache(maxsize=65536)
def _kind(char: str) -> str:
    """`0` for a digit, `a` for what else is part of a word that spaces end; empty for all others."""
    if not char or is_mark(char) or char.isspace() or is_unspaced(char):
        return ""
    return "0" if char.isdecimal() else "a"


def learn(sentences: Iterable[Sequence[str]]) -> JoinedWords:
    """Find out which marks belong to words.

    A mark belongs to the words that have it (`a-a`, `@a`) if they are more than those that have it as a word of its own
    beside them. Words that begin or end with a mark and do not follow that rule are listed one by one, if there are
    some of each.

    Args:
        sentences: words, as they were tagged.
    """
    with_mark, apart = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    outer, others = Counter[str](), Counter[str]()
    for sentence in sentences:
        words = [word.lower() for word in sentence]
        for word in words:
            if not word.isalnum():
                _note_word(word, with_mark, outer, others)
        for first, second in pairwise(words):
            if len(first) == 1 and is_mark(first) and _kind(second[:1]):
                apart[f"{first}a"].add(second)
                others[first + second] += 1
            if len(second) == 1 and is_mark(second) and _kind(first[-1:]):
                apart[f"a{second}"].add(first)
                if _is_initials(first + second):
                    apart[f"a{second}a{second}"].add(first)
                others[first + second] += 1
        for first, mark, last in zip(words, words[1:], words[2:], strict=False):
            if len(mark) == 1 and is_mark(mark) and (kinds := _kinds(first[-1:], last[:1])):
                apart[f"{kinds}{mark}{kinds}"].add(f"{first}{mark}{last}")
    commonest = sorted(with_mark, key=lambda mark: (-len(with_mark[mark]), mark))
    marks = {mark for mark in commonest[:MAX_JOINED_MARKS] if _belongs(mark, len(with_mark[mark]), len(apart[mark]))}
    known = [
        word
        for word, count in outer.most_common()
        if count >= _MIN_COUNT and count > others[word] and not {f"{word[0]}a", f"a{word[-1]}"} & marks
    ]
    return JoinedWords(tuple(sorted(marks)), tuple(sorted(known[:MAX_JOINED_WORDS])))


def _is_initials(word: str) -> bool:
    """Whether a word with a mark behind it is short parts with the same mark between them: `U.S.`."""
    found = _INITIALS.fullmatch(word, 0, len(word) - 1)
    return found is not None and found[1] == word[-1]


def _note_word(word: str, with_mark: dict[str, set[str]], outer: Counter[str], others: Counter[str]) -> None:
    for place in range(1, len(word) - 1):
        mark = word[place]
        if is_mark(mark) and (kinds := _kinds(word[place - 1], word[place + 1])):
            with_mark[f"{kinds}{mark}{kinds}"].add(word)
            others[word[place:]] += 1
            others[word[: place + 1]] += 1
    if len(word) > 1 and is_mark(word[0]) and _kind(word[1]) and _kind(word[-1]):
        with_mark[f"{word[0]}a"].add(word)
        outer[word] += 1
    elif len(word) > 1 and is_mark(word[-1]) and _kind(word[-2]) and _kind(word[0]):
        with_mark[f"a{word[-1]}"].add(word)
        outer[word] += 1
        if _is_initials(word):
            with_mark[f"a{word[-1]}a{word[-1]}"].add(word)


def _kinds(before: str, after: str) -> str:
    """Kind of the characters around a mark: `0` for digits, `a` for other parts of words; empty elsewhere."""
    first, last = _kind(before), _kind(after)
    return "" if not (first and last) else "0" if first == last == "0" else "a"


def _belongs(mark: str, num_with: int, num_apart: int) -> bool:
    if len(mark) == 3:
        return num_with * _MANY_APART >= num_apart
    is_outer = len(mark) == 2
    return num_with > num_apart and not (is_outer and (num_with < _MIN_OUTER or _encloses(mark.strip("a"))))


def _encloses(mark: str) -> bool:
    """Whether a mark stands around words: quotes and brackets. That they stand at one is an accident."""
    return mark in "'\"`\u00b4" or unicodedata.category(mark) in ("Ps", "Pe", "Pi", "Pf")
