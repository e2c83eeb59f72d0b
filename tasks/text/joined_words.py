"""Divide running text into words as in the training data.

A tokenizer splits text at every punctuation mark, but tagged data have words such as `Jean-Luc`, `AT&T`, `1,000` and
`St.`. The rules for marks that belong to words are learnt from the tagged words.

Example: the training data have the words `Jean-Luc` and `1,000`, and the two words `'s` after names. The rules are the
marks `a-a` and `0,0` and the word `'s`. The tokenizer divides `Anne-Marie's 2,500` into `Anne - Marie ' s 2 , 500`;
joined by the rules, the words are `Anne-Marie`, `'s` and `2,500`.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from tasks.text.languages import is_unspaced

_INITIALS = re.compile(r"(?:[^\W\d]{1,2}(\W))(?:[^\W\d]{1,2}\1)*[^\W\d]{1,2}")
"""Initials without their last mark: parts of one or two letters, with the same mark between all of them. `U.S`, `Ph.D`
and `e.g` match; `U.S-A` does not."""
_APOSTROPHES = "'\u2019"
"""Apostrophes. Only they end a word without a space after them: the elided `l'` of `l'Italia`."""
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
BETWEEN_LETTERS, BETWEEN_DIGITS, START, END, INITIALS = "a{0}a", "0{0}0", "{0}a", "a{0}", "a{0}a{0}"
"""Notations of rules, with a mark in place of `{0}`: the mark belongs to the words that have it there. That is between
two characters that are not both digits (`Jean-Luc`), between two digits (`1,000`), at the start of a word (`@user`), at
its end (`7%`), or after each part of initials (`U.S.`)."""


@dataclass(frozen=True)
class JoinedWords:
    """Rules for marks that belong to words.

    Raises:
        ValueError: naming a malformed mark, or a list that is too long.
    """

    marks: tuple[str, ...] = ()
    """Notations of marks at a position: `a-a`, `0,0`, `@a`, `a%` or `a.a.`."""
    words: tuple[str, ...] = ()
    """Words that begin or end with a mark (`'s`, `st.`), in lower case."""

    def __post_init__(self) -> None:
        for name, values, most in (
            ("joined_marks", self.marks, MAX_JOINED_MARKS),
            ("joined_words", self.words, MAX_JOINED_WORDS),
        ):
            if len(values) > most:
                raise ValueError(f"{name} of tagging can have at most {most} entries, not `{len(values)}`")
        for notation in self.marks:
            mark = next(filter(is_mark, notation), "")
            rules = (BETWEEN_LETTERS, BETWEEN_DIGITS, START, END, INITIALS)
            if not mark or notation not in [rule.format(mark) for rule in rules]:
                raise ValueError(
                    f"joined_marks of tagging are written as `a-a`, `0.0`, `@a`, `a%` or `a.a.`: `{notation[:50]}`"
                )

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


class _Joiner:
    """Applies rules to the marks of one text, from left to right."""

    def __init__(self, rules: JoinedWords, text: str, bounds: np.ndarray) -> None:
        self._marks, self._words = frozenset(rules.marks), frozenset(rules.words)
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
        before = _word_char(text[position - 1]) if begin < position else ""
        after = _word_char(text[position + 1]) if end > position + 1 else ""
        if not (before or after) or not is_mark(mark):
            return
        if after and text[position:end].lower() in self._words:
            joins = (False, True)
        elif before and after:
            is_elided = mark in _APOSTROPHES and text[begin : position + 1].lower() in self._words
            is_inside = _between(before, mark, after) in self._marks
            joins = (is_elided or is_inside, is_inside and not is_elided)
        elif after:
            joins = (False, START.format(mark) in self._marks)
        else:
            joins = (END.format(mark) in self._marks or self._ends_word(index, mark), False)
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
        return word in self._words or (INITIALS.format(mark) in self._marks and _is_initials(word))


@lru_cache(maxsize=4096)
def is_mark(char: str) -> bool:
    """Return whether a tokenizer makes a character a separate word: punctuation and ASCII symbols."""
    category = unicodedata.category(char)
    return category[0] == "P" or (char.isascii() and category[0] == "S")


def word_around(text: str, position: int) -> tuple[int, int]:
    """Return (start, end) of the word that a position is inside of; both are `position` if it is between words."""
    start = end = position
    if 0 < position < len(text) and _word_char(text[position - 1]) and _word_char(text[position]):
        while start and _word_char(text[start - 1]):
            start -= 1
        while end < len(text) and _word_char(text[end]):
            end += 1
    return start, end


@lru_cache(maxsize=65536)
def _word_char(char: str) -> str:
    """Return `0` for a digit and `a` for any other character of a word; empty for marks, spaces, characters without
    word spacing, and no character."""
    if not char or is_mark(char) or char.isspace() or is_unspaced(char):
        return ""
    return "0" if char.isdecimal() else "a"


def learn_joined_words(sentences: Iterable[Sequence[str]]) -> JoinedWords:
    """Learn which marks belong to words.

    A mark belongs to words at a position (`a-a`, `@a`) if more words contain it there than have it next to them as a
    separate word. Words that begin or end with a mark against that rule are listed one by one, if they are frequent.
    """
    with_mark, apart = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    outer, divided = Counter[str](), Counter[str]()
    for sentence in sentences:
        words = [word.lower() for word in sentence]
        for word in words:
            if not word.isalnum():
                _count_word(word, with_mark, outer, divided)
        for first, second in pairwise(words):
            if len(first) == 1 and is_mark(first) and _word_char(second[:1]):
                apart[START.format(first)].add(second)
                divided[first + second] += 1
            if len(second) == 1 and is_mark(second) and _word_char(first[-1:]):
                apart[END.format(second)].add(first)
                if _is_initials(first + second):
                    apart[INITIALS.format(second)].add(first)
                divided[first + second] += 1
        for first, mark, last in zip(words, words[1:], words[2:], strict=False):
            if len(mark) == 1 and is_mark(mark) and (rule := _between(first[-1:], mark, last[:1])):
                apart[rule].add(f"{first}{mark}{last}")
    commonest = sorted(with_mark, key=lambda rule: (-len(with_mark[rule]), rule))
    rules = {rule for rule in commonest[:MAX_JOINED_MARKS] if _belongs(rule, len(with_mark[rule]), len(apart[rule]))}
    listed = [
        word
        for word, count in outer.most_common()
        if count >= _MIN_COUNT and count > divided[word] and not {START.format(word[0]), END.format(word[-1])} & rules
    ]
    return JoinedWords(tuple(sorted(rules)), tuple(sorted(listed[:MAX_JOINED_WORDS])))


def _is_initials(word: str) -> bool:
    """Return whether a word is short parts with the same mark after each: `U.S.`."""
    found = _INITIALS.fullmatch(word, 0, len(word) - 1)
    return found is not None and found[1] == word[-1]


def _count_word(word: str, with_mark: dict[str, set[str]], outer: Counter[str], divided: Counter[str]) -> None:
    """Count the marks of a tagged word.

    Args:
        word: word in lower case.
        with_mark: gets the word for the rule of each of its marks.
        outer: occurrences of words that begin or end with a mark.
        divided: occurrences of a mark together with the text before or after it, counted as if it were a word.
    """
    for place in range(1, len(word) - 1):
        mark = word[place]
        if is_mark(mark) and (rule := _between(word[place - 1], mark, word[place + 1])):
            with_mark[rule].add(word)
            divided[word[place:]] += 1
            divided[word[: place + 1]] += 1
    if len(word) > 1 and is_mark(word[0]) and _word_char(word[1]) and _word_char(word[-1]):
        with_mark[START.format(word[0])].add(word)
        outer[word] += 1
    elif len(word) > 1 and is_mark(word[-1]) and _word_char(word[-2]) and _word_char(word[0]):
        with_mark[END.format(word[-1])].add(word)
        outer[word] += 1
        if _is_initials(word):
            with_mark[INITIALS.format(word[-1])].add(word)


@lru_cache(maxsize=4096)
def _between(before: str, mark: str, after: str) -> str:
    """Return the rule for a mark between two characters; empty if one of them is not in a word."""
    first, last = _word_char(before), _word_char(after)
    rule = BETWEEN_DIGITS if first + last == "00" else BETWEEN_LETTERS
    return rule.format(mark) if first and last else ""


def _belongs(rule: str, num_with: int, num_apart: int) -> bool:
    """Return whether a mark belongs to words, by the number of words that have it, and of words next to it."""
    mark = next(filter(is_mark, rule))
    if rule in (BETWEEN_LETTERS.format(mark), BETWEEN_DIGITS.format(mark)):
        return num_with * _MAX_APART_RATIO >= num_apart
    if rule == INITIALS.format(mark):
        return num_with > num_apart
    # Quotes and brackets enclose words, and are part of one only by accident.
    encloses = mark in "'\"`\u00b4" or unicodedata.category(mark) in ("Ps", "Pe", "Pi", "Pf")
    return num_with > num_apart and num_with >= _MIN_OUTER and not encloses
