"""Parse a docstring into English sentences and parameters with types and defaults.

    from recipes.demo.docstrings import parse_docstring
    parse_docstring("numpy.mean", numpy.mean.__doc__).sentences

Styles (numpydoc, Google, Sphinx) and sections are left to `docstring_parser`. Here, code, tables and markup are removed
from its parts, and what does not read as an English sentence is dropped.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

import docstring_parser

from training.text.sentences import split_sentences

MIN_WORDS, MAX_WORDS = 4, 80
"""Length of a sentence."""
ANSWER_WORDS = 8
"""Maximum length of a type or default."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """Documented parameter with a type, or several that share one entry."""

    names: tuple[str, ...]
    type: str
    """Type as plain text (`int or None`)."""
    default: str
    """Default as a Python literal; empty if unknown."""
    description: tuple[str, ...]
    """Sentences."""


@dataclass(frozen=True, slots=True)
class Docstring:
    """Content of one docstring."""

    name: str
    """Name of the documented object (`numpy.mean`)."""
    summary: str
    """First sentence of the description; empty if there is none."""
    sentences: list[str]
    parameters: list[Parameter]


_OTHER_SECTIONS = frozenset(("examples", "references", "see_also"))


def parse_docstring(name: str, text: str) -> Docstring:
    """Return sentences and parameters of a docstring; none if it cannot be parsed."""
    try:
        parsed = docstring_parser.parse(text)
    except (docstring_parser.ParseError, IndexError):  # docstring_parser 0.18 raises IndexError on `: :`
        return Docstring(name, "", [], [])
    description = sentences(parsed.description or "")
    found = list(description)
    for section in parsed.meta:
        if not _OTHER_SECTIONS.intersection(section.args[:1]):
            found += sentences(section.description or "")
    parameters = [parameter for entry in parsed.params if (parameter := _parameter(entry))]
    return Docstring(name, description[0] if description else "", found, parameters)


_REMOVED = re.compile(r"(?s:```.*?(?:```|\Z))|^.*\n[-=~^]{3,}$", re.MULTILINE)  # fences, headings
_NOT_PROSE = re.compile(r"\s|>>>|\.\.|[|+=-]{2}")
_BULLET = re.compile(r"^\s*(?:[-*+•]|\d{1,2}[.)])\s+", re.MULTILINE)


def sentences(text: str) -> list[str]:
    """Return the English sentences of a text in reStructuredText or Markdown."""
    return [
        sentence
        for paragraph in paragraphs(text)
        for sentence in split_sentences(strip_markup(paragraph))
        if is_sentence(sentence)
    ]


def paragraphs(text: str) -> Iterator[str]:
    """Yield paragraphs and list items, without fenced or indented blocks, doctests, directives, tables and headings."""
    for block in re.split(r"\n\s*\n", _REMOVED.sub("", text).strip("\n")):
        if not _NOT_PROSE.match(block):
            yield from filter(None, _BULLET.split(block))


_MARKUP = (
    (re.compile(r"\s?\[\w+\]_"), ""),  # [1]_
    (re.compile(r"\[([^\]]+)\]\([^\s()]*\)"), r"\1"),  # [text](address)
    (re.compile(r":[\w:.+-]+:(?=`)"), ""),  # :role:
    (re.compile(r"`+[~!.]?([^`<]+?)(?:\s*<[^`>]*>)?`+_{0,2}"), r"\1"),  # `code`, ``code``, `text <target>`_
    (re.compile(r"(?<![\w*])\*{1,2}(?=[^\s*])([^*]*[^\s*])\*{1,2}(?![\w*])"), r"\1"),  # *emphasis*
)


def strip_markup(text: str) -> str:
    """Return the words of a text without markup: ``code`` -> code, :func:`mean` -> mean."""
    for pattern, replacement in _MARKUP:
        text = pattern.sub(replacement, text)
    return " ".join(text.split())


_CODE = re.compile(r"[\\{}`|<>=@^~$]|::|https?:|www\.|%[(s]|\.\.\.|\*\*|--|\w\[")
_PLAIN_WORD = re.compile(r"[(\"'“‘]*[A-Za-z]+(?:[-'’/][A-Za-z]+)*[.,;:!?)\"'”’]*$")


def is_sentence(text: str) -> bool:
    """Return whether a text reads as an English sentence: mostly plain words, no code, a capital and an end mark."""
    words = text.split()
    if not MIN_WORDS <= len(words) <= MAX_WORDS or not text[0].isupper() or not text.endswith((".", "!", "?", ":")):
        return False
    return sum(bool(_PLAIN_WORD.match(word)) for word in words) >= 0.7 * len(words) and not _CODE.search(text)


_TYPE_END = re.compile(r"[,;(\s]*\b(?:optional|required|defaults?)\b.*")
_DEFAULT = re.compile(r"\bdefaults?(?: to| is)?\s*[:=]?\s*([^\s)]+)")


def _parameter(entry: docstring_parser.DocstringParam) -> Parameter | None:
    names = tuple(name.strip(" *`") for name in entry.arg_name.split(","))
    line = strip_markup(entry.type_name or "")
    default = entry.default or next(iter(_DEFAULT.findall(line)), "")
    found = Parameter(names, _type(line), _literal(strip_markup(default)), tuple(sentences(entry.description or "")))
    return found if found.type and all(map(str.isidentifier, names)) else None


def _type(line: str) -> str:
    """Return the type at the start of `int, optional (default: 1)`; empty if it is long or goes on in the next line."""
    text = _TYPE_END.sub("", line).rstrip(" ,.*")
    is_whole = all(text.count(left) == text.count(right) for left, right in ("{}", "()", "[]"))
    return text if is_whole and len(text.split()) <= ANSWER_WORDS and re.search("[a-z]", text, re.IGNORECASE) else ""


def _literal(text: str) -> str:
    """Return a text that is a short Python literal; empty if it is not one."""
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return ""
    return text if len(text.split()) <= ANSWER_WORDS else ""
