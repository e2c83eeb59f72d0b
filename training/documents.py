"""Documents of sentences out of text files.

Reads plain text (blank line between documents; a line is a sentence or a paragraph), JSONL and Parquet (a document a
row, in column `text`), each also packed with gzip or xz.
"""

from __future__ import annotations

import codecs
import gzip
import json
import lzma
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

_ENDS = re.compile(r"(?<=[.!?])(?:[\"')\]”’]*)\s+(?=[\"'(\[“‘]?[A-Z0-9À-Þ])")
_ABBREVIATION = re.compile(
    r"(?:\b(?:[A-Z]|e\.g|i\.e|cf|vs|etc|al|Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|No|Nos|Vol|Fig|Figs|Eq|Sec|Ref|pp|ca|approx|Gen|Col"
    r"|Lt|Capt|Rev|Hon|Inc|Ltd|Co|Jan|Feb|Mar|Apr|Aug|Sept?|Oct|Nov|Dec))\.$"
)

_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


def split_sentences(paragraph: str) -> list[str]:
    """Split at the ends of sentences; common abbreviations and initials do not end one."""
    sentences, start = [], 0
    for match in _ENDS.finditer(paragraph):
        if not _ABBREVIATION.search(paragraph, start, match.start()):
            sentences.append(paragraph[start : match.end()].strip())
            start = match.end()
    sentences.append(paragraph[start:].strip())
    return [sentence for sentence in sentences if sentence]


def read_documents(path: str | Path) -> Iterator[list[str]]:
    """The documents of one file, each a list of sentences; empty ones are left out.

    Raises:
        ValueError: naming the file, and the line where that is to blame.
    """
    path = Path(path)
    kind = Path(path.stem).suffix if path.suffix in (".gz", ".xz") else path.suffix
    if kind == ".parquet":
        texts = _parquet_texts(path)
    elif kind in (".jsonl", ".json"):
        texts = _jsonl_texts(path)
    else:
        texts = _plain_texts(path)
    for text in texts:
        if sentences := [sentence for line in text.split("\n") for sentence in split_sentences(line)]:
            yield sentences


def read_lines(path: str | Path) -> Iterator[str]:
    """The lines of a text file, packed or not, without their ends and without a byte order mark.

    Raises:
        ValueError: naming the file and the line that is not UTF-8, or the file that is missing or damaged.
    """
    try:
        with _open(Path(path)) as file:
            for number, line in enumerate(file, start=1):
                yield _decode(line, path, number)
    except FileNotFoundError:
        raise ValueError(f"no such file: `{path}`") from None
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise ValueError(f"cannot read `{path}`: {error}") from error


def _decode(line: bytes, path: str | Path, number: int) -> str:
    try:
        return (line.removeprefix(codecs.BOM_UTF8) if number == 1 else line).decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"`{path}`, line {number}: not UTF-8 ({error.reason}); convert the file") from error


def parse_json(text: str, place: str) -> Any:
    """The value of a JSON text.

    Args:
        place: file and line, for messages.

    Raises:
        ValueError: naming the place, when it is not JSON, or holds half of a surrogate pair, which is not UTF-8.
    """
    try:
        value = json.loads(text)
        if _SURROGATE_ESCAPE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{place}: half of a surrogate pair ({error.object[error.start]!r}); mend the text") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{place}: broken JSON ({error})") from error
    return value


def find_files(paths: Sequence[str | Path]) -> list[Path]:
    """The files named, and those in the directories named, sorted within each.

    Raises:
        ValueError: naming what does not exist, or the directory without files.
    """
    files = []
    for path in map(Path, paths):
        if not path.exists():
            raise ValueError(f"no such file or directory: `{path}`")
        found = sorted(item for item in path.iterdir() if item.is_file()) if path.is_dir() else [path]
        if not found:
            raise ValueError(f"no files in `{path}`")
        files += found
    return files


def _open(path: Path) -> BinaryIO:
    openers: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open}
    return openers.get(path.suffix, open)(path, "rb")


def _plain_texts(path: Path) -> Iterator[str]:
    lines: list[str] = []
    for line in read_lines(path):
        if line.strip():
            lines.append(line)
        elif lines:
            yield "\n".join(lines)
            lines = []
    if lines:
        yield "\n".join(lines)


def _jsonl_texts(path: Path) -> Iterator[str]:
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        row = parse_json(line, f"`{path}`, line {number}")
        if not isinstance(row, dict) or "text" not in row:
            raise ValueError(f"`{path}`, line {number}: expected a JSON object with key `text`")
        if not isinstance(row["text"], str):
            raise ValueError(f"`{path}`, line {number}: `text` must be a string")
        yield row["text"]


def _parquet_texts(path: Path) -> Iterator[str]:
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
        if "text" not in file.schema_arrow.names:
            raise ValueError(f"`{path}` has no column `text` (columns: {', '.join(file.schema_arrow.names)})")
        for batch in file.iter_batches(columns=["text"], batch_size=256):
            yield from (text for text in batch.column(0).to_pylist() if text)
    except (OSError, pyarrow.ArrowException) as error:
        raise ValueError(f"cannot read `{path}`: {error}") from error
