"""Scripts without spaces between words: detection, and splitting into characters for scores."""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Collection
from functools import cache

HAN = (
    "\u2e80-\u2fdf\u3005\u3007\u3021-\u3029\u3038-\u303b\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff"  # rare
)
"""Chinese characters, as ranges of a regular expression."""
KANA = "\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f\U0001aff0-\U0001b16f"
"""Hiragana and Katakana, as ranges of a regular expression."""
UNSPACED = (
    f"{HAN}{KANA}"
    "\u3100-\u312f\u31a0-\u31bf"  # Bopomofo
    "\u0e00-\u0e7f\u0e80-\u0eff"  # Thai, Lao
    "\u0f00-\u0fff"  # Tibetan
    "\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f"  # Burmese
    "\u1780-\u17ff\u19e0-\u19ff"  # Khmer
    "\u1950-\u19df\u1a20-\u1aaf\uaa80-\uaadf"  # Tai Le, New Tai Lue, Tai Tham, Tai Viet
    "\u1b00-\u1b7f\ua980-\ua9df"  # Balinese, Javanese
)
"""Characters of scripts without spaces, as ranges of a regular expression."""

_CHARACTER = re.compile(f"[{UNSPACED}]")
_TOKEN = re.compile(rf"[{UNSPACED}]|[^\s{UNSPACED}]+")

MIN_LETTERS = 0.25
"""Least fraction of a text's letters. SQuAD's contexts with Chinese names have at most 0.06; 847 of CMRC's 848 more."""
MIN_TEXTS = 0.01
"""Least fraction of a data set's texts, so that one stray text does not change how all are scored."""


def written_without_spaces(texts: Collection[str]) -> bool:
    """Return whether a data set, or at least `MIN_TEXTS` of it, is in scripts without spaces between words."""
    found = sum(map(_is_mostly_unspaced, texts))
    return found > 0 and found >= MIN_TEXTS * len(texts)


def _is_mostly_unspaced(text: str) -> bool:
    count = len(_CHARACTER.findall(text))
    return count > 0 and count >= MIN_LETTERS * sum(map(str.isalpha, text))


def is_unspaced(char: str) -> bool:
    """Return whether a character is of a script without spaces."""
    return _CHARACTER.match(char) is not None


def split_characters(text: str) -> list[str]:
    """Split lower-cased text into characters of scripts without spaces, and words of others; drop punctuation.

    Source: `mixed_segmentation` of the evaluation script of CMRC 2018, which covers Chinese characters and 34 marks of
    Chinese punctuation only.
    """
    return _TOKEN.findall("".join(char for char in text.lower() if not _is_dropped(char)))


@cache
def _is_dropped(char: str) -> bool:
    """Return whether a character is punctuation, an ASCII symbol in either width, or invisible."""
    narrow = unicodedata.normalize("NFKC", char) if "\uff00" < char < "\uff5f" else char
    category = unicodedata.category(char)
    return category[0] == "P" or category == "Cf" or narrow in string.punctuation
