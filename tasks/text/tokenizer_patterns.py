"""Refuse tokenizers that take far longer than a text is long, by their patterns (regular expressions) or words.

The patterns are tried: a text that takes long repeats what a pattern names, and ends with something else. Short texts
come first, and only the slowest of them are tried at greater lengths, since a try holds the interpreter lock.
"""

from __future__ import annotations

import functools
import json
import math
import re
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import tokenizers

from tasks.text.tokenizer_files import panics_as_errors

MAX_WORD_CHARS = 1000
"""Limit of WordPiece's `max_input_chars_per_word`, usually 100. The time of a word grows with its length to the third
power: 0.1 s for 1,000 characters."""
FIXED_S, CHAR_S = 0.01, 10e-6
"""Maximum CPU time of a text, and of each character in it. Usual patterns take up to 1 us a character; one whose time
grows with the square of the length takes 50 us in the longest text."""

_LENGTHS = ((256, 8), (768, 4), (2304, 2), (8192, 0))
"""Lengths of the texts to try, and how many of the slowest ones are tried at the next length."""
_NESTED_LENGTHS = ((8, 400), *((length, 50) for length in range(12, 65, 4)))
"""Lengths to try first if a repetition is repeated: each character may double the time."""
_MAX_CHARACTERS, _MAX_LITERALS = 12, 8
_SAMPLES = "\0aA1 \t\r\n.'_é\u0301\u4e00\u0627🙂\xa0"
"""Characters of common classes."""
_ESCAPES = {r"\n": "\n", r"\r": "\r", r"\t": "\t"}
_PART = re.compile(
    r"(?P<class>\\[pP]\{[^}]*\}|\\[dDhHsSwWNORX]|\[(?:\\.|\[[^\]]*\]|[^\]\\])+\]|\.)"
    r"|(?P<repeat>[*+?]|\{\d*,?\d*\})"
    r"|(?P<other>\\[AbBGzZ]|\(\?(?:[imxaWDSPy-]*[:)]|<?[=!]|>|~|<\w+>)|[|()^$])"
    r"|\\?(?P<literal>.)",
    re.DOTALL,
)
"""Parts of a pattern in Oniguruma's syntax."""


def check_time(backend: tokenizers.Tokenizer, path: Path) -> None:
    """Refuse a tokenizer that takes far longer than a text is long.

    Raises:
        ValueError: naming its file, and the pattern or setting.
    """
    most = getattr(backend.model, "max_input_chars_per_word", 0)
    if most > MAX_WORD_CHARS:
        raise ValueError(f"`{path}` has max_input_chars_per_word `{most}`; at most {MAX_WORD_CHARS} are allowed")
    for component in (backend.normalizer, backend.pre_tokenizer):
        for pattern in _patterns(json.loads(component.__getstate__()) if component is not None else None):
            if text := find_slow_text(pattern):
                shown = pattern[:80].replace("\n", r"\n")
                raise ValueError(
                    f"`{path}` has the pattern `{shown}`, which takes too long on texts like {text[:8]!r}...; change "
                    "repetitions that several parts of it can match, or that match a long text in vain"
                )


def _patterns(definition: Any) -> Iterator[str]:
    """Yield the patterns in the definition of a component."""
    if isinstance(definition, dict):
        if isinstance(pattern := definition.get("Regex"), str):
            yield pattern
        definition = list(definition.values())
    if isinstance(definition, list):
        for item in definition:
            yield from _patterns(item)


@functools.lru_cache
def find_slow_text(pattern: str) -> str:
    """Return a text on which a pattern takes too long; empty if none is found."""
    classes, literals, is_nested = _read(pattern)
    repeated = _characters(classes, pattern) + literals
    rest = "".join(repeated)  # the library gives up early on a text without a character that every match has
    endings = ["", *(item + rest for item in repeated)]
    replace = tokenizers.normalizers.Replace(tokenizers.Regex(pattern), "")
    if not is_nested:
        return _try(replace, _LENGTHS, [""], repeated, endings)
    repeated += [first + second for first, second in product(repeated, repeated)]
    short = _try(replace, _NESTED_LENGTHS, ["", *literals], repeated, endings)
    return short or _try(replace, _LENGTHS, [""], repeated, endings)


def _try(replace: Any, lengths: tuple[tuple[int, int], ...], *parts: list[str]) -> str:
    """Try all texts of a start, a repeated part and an ending; return the first that takes too long, or nothing."""
    probes = list(product(*parts))
    for length, num_kept in lengths:
        timed = []
        for probe in probes:
            start, repeated, ending = probe
            text = start + repeated * (length // len(repeated)) + ending
            seconds, limit_s = _cpu_s(replace, text), FIXED_S + CHAR_S * len(text)
            if seconds > limit_s and (seconds > 1 or _cpu_s(replace, text) > limit_s):  # twice: Python may have paused
                return text
            timed.append((seconds, probe))
        probes = [probe for _, probe in sorted(timed, reverse=True)[:num_kept]]
    return ""


def _cpu_s(replace: Any, text: str) -> float:
    """Return the CPU time that this thread takes for a text; inf if the library gives up."""
    started_s = time.thread_time()
    try:
        with panics_as_errors():
            replace.normalize_str(text)
    except ValueError:
        return math.inf
    return time.thread_time() - started_s


def _read(pattern: str) -> tuple[list[str], list[str], bool]:
    """Return the classes of a pattern, its runs of literals, and whether it repeats a group or a repetition."""
    classes, literals, run, is_nested, before = dict[str, None](), dict[str, None](), "", False, ""
    for part in _PART.finditer(pattern):
        if part["literal"]:
            run += _ESCAPES.get(part[0], part["literal"])
        else:
            if part["repeat"]:
                is_possessive = part[0] == "+" and before in ("*", "+", "?")
                is_nested |= part[0] != "?" and not is_possessive and (before == ")" or before[:1] in tuple("*+?{"))
                literals[run[-1:]] = None
                run = run[:-1]
            elif part["class"]:
                classes[part[0]] = None
            literals[run] = None
            run = ""
        before = part[0]
    literals[run] = None
    return list(classes), [item for item in literals if item][:_MAX_LITERALS], is_nested


def _characters(classes: list[str], pattern: str) -> list[str]:
    """Return a character for each combination of classes."""
    candidates = "".join(dict.fromkeys(_SAMPLES + pattern))
    outside = [_without(item, candidates) for item in classes]
    known: dict[tuple[bool, ...], str] = {}
    for char in candidates:
        known.setdefault(tuple(char in item for item in outside), char)
    return list(known.values())[:_MAX_CHARACTERS]


def _without(pattern: str, text: str) -> str:
    try:
        return str(tokenizers.normalizers.Replace(tokenizers.Regex(pattern), "").normalize_str(text))
    except Exception:  # tokenizers raises bare Exception
        return text
