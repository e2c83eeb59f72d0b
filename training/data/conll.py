"""Tagged sentences from CoNLL files, also with comments, numbered words, or the columns of Universal Dependencies."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

from tasks.tagging import TaggingExample
from tasks.tags import PREFIXES
from training.data.examples import BadRows, Examples, RowError
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
    odd = [(number, cells) for number, cells in rows if len(cells) != width]
    if odd:
        problem = f"columns, but line {rows[0][0]} has {width}"
        errors = (
            RowError(f"`{path}`, line {number}", f"{len(cells)} {problem}", " ".join(cells)) for number, cells in odd
        )
        raise ValueError(str(BadRows(errors)))
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
    if not tokens and _holds_tags(words, word) and not _holds_tags(words, tag):
        hint = f"if column {tag} has the words, give --columns.tokens {tag} --columns.tags {word}"
        raise ValueError(
            f"`{path}`, line {words[0][0]}: column {word}, of words, holds tags: `{words[0][1][word]}`; {hint}"
        )
    examples = Examples(
        (
            f"`{path}`, line {sentence[0][0]}",
            TaggingExample(tuple(row[1][word] for row in sentence), tuple(row[1][tag] for row in sentence)),
        )
        for sentence in sentences
        if sentence
    )
    others = [number for number in range(width) if number not in (word, tag) and _holds_tags(words, number)]
    if others and not tags:
        columns = ", ".join(f"`{number}`" for number in others)
        examples.notes.append(
            f"`{path}`: tags are those of column `{tag}`; others with tags: {columns} (--columns.tags {others[0]})"
        )
    return examples


def _holds_tags(rows: Sequence[Row], column: int) -> bool:
    """Return whether a column holds tags of entities."""
    cells = {row[1][column] for row in rows}
    return len(cells) > 1 and all(map(_TAG.fullmatch, cells))


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
    plain = [_cells(line) for group in groups for _, line in group if not line.startswith("#")]
    tags, widths = {cells[-1] for cells in plain}, {len(cells) for cells in plain}
    names: Sequence[str] = ()
    sentences, bad = [], BadRows()
    for group in groups:
        sentence: list[Row] = []
        for number, line in group:
            cells, location = _cells(line), f"`{path}`, line {number}"
            if line.startswith("#") and not sentence:  # comments stand before the first word
                if found := _GLOBAL_COLUMNS.match(line):
                    names = tuple(name.lower() for name in found[1].split())
                if _is_comment(line, tags, widths, location):
                    continue
            if len(cells) < 2 or not cells[0] or " " in cells[-1]:
                bad.add(RowError(location, "expected a word and a tag", line))
            sentence.append((number, cells))
        if sentence:
            sentences.append(sentence)
    if bad:
        raise ValueError(str(bad))
    return names, sentences


def _groups(path: Path) -> Iterator[list[tuple[int, str]]]:
    """Yield runs of numbered lines that are not empty, without document marks, and without blanks at their ends."""
    group: list[tuple[int, str]] = []
    for number, whole_line in enumerate(read_lines(path), start=1):
        line = whole_line.rstrip(" \t")
        cells = _cells(line)
        if not line or cells[0] == "-DOCSTART-":
            if group:
                yield group
            group = []
            continue
        if number == 1 and line[0] != "#" and cells[-1].lower() in _HEADERS:
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


def _is_comment(line: str, tags: AbstractSet[str], widths: AbstractSet[int], location: str) -> bool:
    """Return whether a line that begins with `#` is a comment, not the word `#` or a hashtag.

    Args:
        tags: last cells of the lines that surely hold words.
        widths: numbers of cells of these lines.

    Raises:
        ValueError: if it may be either.
    """
    if _GLOBAL_COLUMNS.match(line) or _COMMENT.match(line):
        return True
    cells = _cells(line)
    if len(cells) < 2 or len(cells) not in (widths or {len(cells)}):
        return True
    if cells[-1] in tags or _TAG.fullmatch(cells[-1]) or cells == ["#", "#"]:
        return False
    if _LIKE_COMMENT.match(line):
        return True
    raise ValueError(f"{location}: a comment, or a word with a tag that no other line has? `{line}`")
