"""Tagged sentences from CoNLL files, also with comments, numbered words, or the columns of Universal Dependencies."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from tasks.tagging import TaggingExample
from tasks.tags import PREFIXES
from training.data.examples import Examples
from training.text.documents import read_lines

MAX_SENTENCE_WORDS = 2000
"""A longer run of lines without an empty one is not CoNLL."""
UD_COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
"""Source: universaldependencies.org/format.html."""

_HEADERS = ("label", "labels", "tag", "tags", "ner", "ner_tags", "upos")
_COMMENT = re.compile(r"#\s*[\w.:-]+ = ")
"""A key and its value; the value may end like a tag."""
_LIKE_COMMENT = re.compile(r"#(?:\s|.*=|.*://|$)")
"""Likely a comment, unless it ends with a tag of other lines."""
_GLOBAL_COLUMNS = re.compile(r"#\s*global\.columns\s*=\s*(.+)")
_NUMBER = re.compile(r"\d+(?:[-.]\d+)*")
_TAG = re.compile(rf"O|[{''.join(PREFIXES)}](?:-.+)?")

Line = tuple[int, str]
"""Number of a line in the file, and its text."""
Row = tuple[int, list[str]]
"""Number of a line in the file, and its cells."""


def is_conll_column(name: str) -> bool:
    """Return whether a name can be a column of a CoNLL file: a number from 0, or one of UD's names."""
    return name.isdecimal() or name.lower() in UD_COLUMNS


def read_conll(path: Path, *, tokens: str | None = None, tags: str | None = None) -> Examples:
    """Read one word a line, with columns split by tabs or spaces and an empty line between sentences.

    Args:
        tokens: column of words; None for UD's `form`, the second column if the first numbers the words, else the first.
        tags: column of tags; None for UD's `upos`, else the last column.

    Raises:
        ValueError: naming file and line of a row without word or tag, or of a column that does not hold words.
    """
    names, sentences = _sentences(path)
    rows = [row for sentence in sentences for row in sentence]
    if not rows:
        return Examples()
    width = len(rows[0][1])
    if odd := next((row for row in rows if len(row[1]) != width), None):
        raise ValueError(
            f"`{path}`, line {odd[0]}: {len(odd[1])} columns, but line {rows[0][0]} has {width}: `{' '.join(odd[1])}`"
        )
    if names and len(names) != width:
        raise ValueError(f"`{path}`: {len(names)} names in `global.columns`, but {width} columns")
    if not names and width == len(UD_COLUMNS) and all(_NUMBER.fullmatch(cells[0]) for _, cells in rows):
        names = UD_COLUMNS
    if "id" in names:  # `1-2` is a range of words, `1.1` a word that is not in the text
        at = names.index("id")
        sentences = [[row for row in sentence if row[1][at].isdecimal()] for sentence in sentences]
    word = _column(path, tokens, names, width) if tokens else _word_column(path, names, sentences)
    default = names.index("upos") if "upos" in names else width - 1
    tag = _column(path, tags, names, width) if tags else default
    words = [row for sentence in sentences for row in sentence]
    if names and names[tag] != "feats" and (bare := next((row for row in words if row[1][tag] == "_"), None)):
        raise ValueError(f"`{path}`, line {bare[0]}: no `{names[tag]}`; name another column with --columns.tags")
    return Examples(
        (
            f"`{path}`, line {sentence[0][0]}",
            TaggingExample(tuple(row[1][word] for row in sentence), tuple(row[1][tag] for row in sentence)),
        )
        for sentence in sentences
        if sentence
    )


def _column(path: Path, name: str, names: Sequence[str], width: int) -> int:
    if name.lower() in names:
        return names.index(name.lower())
    if not name.isdecimal() or int(name) >= width:
        columns = ", ".join(f"`{column}`" for column in names) or f"`0` to `{width - 1}`"
        raise ValueError(f"`{path}`: no column `{name}` (columns: {columns})")
    return int(name)


def _word_column(path: Path, names: Sequence[str], sentences: Sequence[Sequence[Row]]) -> int:
    """Return the first column that holds words."""
    if "form" in names:
        return names.index("form")
    firsts = [[cells[0] for _, cells in sentence] for sentence in sentences]
    longer = [cells for cells in firsts if len(cells) > 1]
    number, (_, *others) = sentences[0][0]
    hint = "name the column of words with --columns.tokens, counted from 0"
    if longer and all(_NUMBER.fullmatch(cell) for cells in firsts for cell in cells):
        if len(others) > 1 and all(map(_counts_up, firsts)):
            return 1
        raise ValueError(f"`{path}`, line {number}: the first column holds numbers, not words; {hint}")
    if len(others) > 1 and sum(map(len, longer)) > 3 and all(len({*cells}) == 1 for cells in longer):
        raise ValueError(f"`{path}`, line {number}: the first column is the same in a whole sentence; {hint}")
    return 0


def _counts_up(cells: Sequence[str]) -> bool:
    return cells[0].isdecimal() and list(cells) == [str(int(cells[0]) + index) for index in range(len(cells))]


def _sentences(path: Path) -> tuple[Sequence[str], list[list[Row]]]:
    """Return the names of columns, if a comment has them, and the rows of each sentence."""
    groups = list(_groups(path))
    plain = [line for group in groups for _, line in group if not line.startswith("#")]
    all_end_blank = all(line[-1] in " \t" for line in plain)
    whole = [line.rstrip(" \t") for line in plain if all_end_blank or line[-1] not in " \t"]
    style = _Style(path, {_cells(line)[-1] for line in whole}, {len(_cells(line)) for line in whole}, all_end_blank)
    names: Sequence[str] = ()
    sentences = []
    for group in groups:
        sentence: list[Row] = []
        for number, line in group:
            if found := _GLOBAL_COLUMNS.match(line):
                names = tuple(name.lower() for name in found[1].split())
            if not style.is_comment(number, line, is_first=not sentence):
                sentence.append((number, style.row(number, line)))
        if sentence:
            sentences.append(sentence)
    return names, sentences


def _groups(path: Path) -> Iterator[list[Line]]:
    """Yield runs of lines that are not empty, without document marks."""
    group: list[Line] = []
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip(" \t") or _cells(line)[0] == "-DOCSTART-":
            if group:
                yield group
            group = []
            continue
        if number == 1 and line[0] != "#" and _cells(line.rstrip(" \t"))[-1].lower() in _HEADERS:
            raise ValueError(f"`{path}`, line 1: a header, which CoNLL does not have: `{line}`")
        if len(group) == MAX_SENTENCE_WORDS:
            raise ValueError(
                f"`{path}`, line {number}: {MAX_SENTENCE_WORDS:,} lines without an empty one; CoNLL has a word "
                "and a tag a line and an empty line after each sentence (name tables .jsonl or .parquet)"
            )
        group.append((number, line))
    if group:
        yield group


def _cells(line: str) -> list[str]:
    return [cell.strip(" ") for cell in line.split("\t")] if "\t" in line else re.split(" +", line)


class _Style:
    """Style of a file: tells comments from the word `#`, and a space at the end of a line from an empty tag.

    Args:
        tags: last cells of the lines that surely hold words.
        widths: numbers of cells of these lines.
        all_end_blank: True if all these lines end with a space or tab.
    """

    def __init__(self, path: Path, tags: set[str], widths: set[int], all_end_blank: bool) -> None:
        self._path = path
        self._tags = tags
        self._widths = widths
        self._all_end_blank = all_end_blank

    def is_comment(self, number: int, line: str, *, is_first: bool) -> bool:
        """Return whether a line is a comment; comments stand before the first word of a sentence.

        Raises:
            ValueError: if it may be either.
        """
        if not line.startswith("#"):
            return False
        if _GLOBAL_COLUMNS.match(line) or (is_first and _COMMENT.match(line)):
            return True
        cells = _cells(line.rstrip(" \t"))
        fits = len(cells) > 1 and len(cells) in (self._widths or {len(cells)})
        if not is_first or (fits and (self._is_tag(cells[-1]) or cells == ["#", "#"])):
            return False
        if fits and not _LIKE_COMMENT.match(line):
            raise ValueError(
                f"`{self._path}`, line {number}: a comment, or a word with a tag that no other line has? `{line}`"
            )
        return True

    def row(self, number: int, line: str) -> list[str]:
        """Return the cells of a word's line.

        Raises:
            ValueError: if the word or the tag is missing.
        """
        cells = _cells(line.rstrip(" \t"))
        if line[-1] in " \t" and not self._all_end_blank and not self._is_tag(cells[-1]):
            cells = []  # an empty tag
        if len(cells) < 2 or not cells[0] or not cells[-1].strip() or " " in cells[-1]:
            raise ValueError(f"`{self._path}`, line {number}: expected a word and a tag: `{line}`")
        return cells

    def _is_tag(self, cell: str) -> bool:
        return cell in self._tags or bool(_TAG.fullmatch(cell))
