"""Documents of sentences from text files.

Formats: plain text (blank line between documents; a line is a sentence or a paragraph), and JSONL and Parquet (one
document a row, in column `text`); each also compressed with gzip or xz. `read_blocks` cuts a file into blocks of
documents, which is cheap. Splitting a block into sentences is most of the work, and can be done in another process.
"""

from __future__ import annotations

import codecs
import gzip
import itertools
import json
import lzma
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

from training.text.sentences import split_sentences

BLOCK_BYTES = 2**18
MAX_DOCUMENT_BYTES = 2**24
"""Largest document, in bytes of text: each is held in memory as a whole. The Bible has 4 MiB."""

_OPENERS: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open}
_START_BYTES = 8192
"""Bytes at the beginning of a file that show whether it can be read."""
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive documents of a file, not yet split into sentences."""

    path: Path
    first_line: int
    """Number of the first line or row in the file, from 1."""
    content: bytes | list[str] | None
    """Whole lines of plain text or JSONL, or rows of Parquet; None if `documents` reads them from the file."""
    num_file_bytes: int
    """Bytes of the file, compressed or not, read since the block before."""
    start: int
    """Offset in the decompressed file in bytes, or in rows of Parquet."""
    length: int
    """Length in the unit of `start`."""
    checksum: int = 0
    """CRC-32 of the text, if the block has no content."""

    @property
    def num_bytes(self) -> int:
        """Decompressed size in bytes; of Parquet, in characters."""
        return sum(map(len, self.content)) if isinstance(self.content, list) else len(self.content or b"")

    def documents(self) -> Iterator[list[str]]:
        """Yield documents as lists of sentences, without empty ones.

        Raises:
            ValueError: naming the file and the malformed line.
            ChildProcessError: naming a file that has other text on this machine.
        """
        for text in self._texts(self._read() if self.content is None else self.content):
            if sentences := [sentence for line in text.split("\n") for sentence in split_sentences(line)]:
                yield sentences

    def _read(self) -> bytes | list[str]:
        content: bytes | list[str]
        with readable(self.path):
            if _kind(self.path) == "parquet":
                content = _parquet_rows(self.path, self.start, self.start + self.length)
            else:
                with open(self.path, "rb") as raw, decompressed(raw) as file:
                    file.seek(self.start)
                    content = file.read(self.length)
        if checksum(content) != self.checksum:
            raise ChildProcessError(f"`{self.path}` differs from the file on the machine where the command was started")
        return content

    def _texts(self, content: bytes | list[str]) -> Iterator[str]:
        if isinstance(content, list):
            yield from content
            return
        lines = (
            (number, _decode(line, self.path, number))
            for number, line in enumerate(content.split(b"\n"), start=self.first_line)
        )
        if _kind(self.path) == "jsonl":
            yield from (_text_field(line, f"`{self.path}`, line {number}") for number, line in lines if line.strip())
            return
        for is_text, paragraph in itertools.groupby((line for _, line in lines), key=lambda line: bool(line.strip())):
            if is_text:
                yield "\n".join(paragraph)


def checksum(content: bytes | list[str], so_far: int = 0) -> int:
    """Return the CRC-32 of the content of a block."""
    for part in map(str.encode, content) if isinstance(content, list) else [content]:
        so_far = zlib.crc32(part, so_far)
    return so_far


def _text_field(line: str, location: str) -> str:
    row = parse_json(line, location)
    if not isinstance(row, dict) or not isinstance(row.get("text"), str):
        raise ValueError(f"{location}: expected a JSON object with a string `text`")
    return str(row["text"])


def read_documents(path: str | Path) -> Iterator[list[str]]:
    """Yield the documents of a file as lists of sentences, without empty ones.

    Raises:
        ValueError: naming the file, and the line if one is malformed.
    """
    for block in read_blocks(Path(path)):
        yield from block.documents()


def read_blocks(path: Path, block_bytes: int = BLOCK_BYTES) -> Iterator[Block]:
    """Cut a file into blocks of whole documents.

    Args:
        block_bytes: size of a block; it ends with the document that reaches this size.

    Raises:
        ValueError: naming a file that is missing or damaged, or a document larger than `MAX_DOCUMENT_BYTES`.
    """
    with readable(path):
        yield from _parquet_blocks(path) if _kind(path) == "parquet" else _line_blocks(path, block_bytes)


def read_lines(path: str | Path) -> Iterator[str]:
    """Yield the lines of a text file, compressed or not, without line ends and byte order mark.

    Raises:
        ValueError: naming a file that is missing or damaged, or a line that has a NUL or is not UTF-8.
    """
    with readable(Path(path)), open(path, "rb") as raw, decompressed(raw) as file:
        for number, line in enumerate(file, start=1):
            if b"\0" in line:
                raise ValueError(f"`{path}`, line {number}: a NUL byte; the file is damaged, or UTF-16: convert it")
            yield _decode(line, path, number)


def _decode(line: bytes, path: str | Path, number: int) -> str:
    try:
        return (line.removeprefix(codecs.BOM_UTF8) if number == 1 else line).decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"`{path}`, line {number}: not UTF-8 ({error.reason}); convert the file") from error


def parse_json(text: str, location: str) -> Any:
    """Parse a JSON text.

    Args:
        location: file and line, for messages.

    Raises:
        ValueError: if the text is not JSON, or has half of a surrogate pair, which is not UTF-8.
    """
    try:
        value = json.loads(text)
        if _SURROGATE_ESCAPE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{location}: half of a surrogate pair ({error.object[error.start]!r}); fix the text"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{location}: broken JSON ({error})") from error
    return value


def find_files(paths: Sequence[str | Path]) -> list[Path]:
    """Return the given files, and all files below the given directories, sorted; hidden ones are skipped.

    Raises:
        ValueError: naming a path that does not exist or is a pipe, a directory without files, or a table.
    """
    files = []
    for path in map(Path, paths):
        if not path.exists():
            raise ValueError(f"no such file or directory: `{path}`")
        if not (path.is_file() or path.is_dir()):
            raise ValueError(f"`{path}` is a pipe or device, but text is read more than once; write it to a file")
        found = [path]
        if path.is_dir():
            below = [item.relative_to(path) for item in sorted(path.rglob("*")) if item.is_file()]
            found = [path / item for item in below if not any(part.startswith(".") for part in item.parts)]
        if not found:
            raise ValueError(f"no files in `{path}`")
        files += found
    if table := next((path for path in files if suffix_of(path) in (".tsv", ".csv")), None):
        raise ValueError(
            f"`{table}` is a table, not running text; write its texts to a .txt file with a blank line between "
            "documents, or to JSONL or Parquet with a column `text`"
        )
    return files


def suffix_of(path: Path) -> str:
    """Return the suffix of a file in lower case, without .gz or .xz; .jsonl for .ndjson."""
    name = path.stem if path.suffix.lower() in _OPENERS else path.name
    suffix = Path(name).suffix.lower()
    return ".jsonl" if suffix == ".ndjson" else suffix


def _kind(path: Path) -> str:
    return {".parquet": "parquet", ".jsonl": "jsonl", ".json": "jsonl"}.get(suffix_of(path), "plain")


def check_file(path: Path) -> None:
    """Raise ValueError if a path is no file."""
    if path.is_dir():
        raise ValueError(f"`{path}` is a directory; give its files")
    if not path.is_file():
        raise ValueError(f"no such file: `{path}`")


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn errors of reading a file into a ValueError that names it."""
    try:
        yield
    except FileNotFoundError:
        raise ValueError(f"no such file: `{path}`") from None
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise ValueError(f"cannot read `{path}`: {getattr(error, 'strerror', None) or error}") from error


def decompressed(raw: BinaryIO) -> BinaryIO:
    """Return the decompressed text of a file.

    Raises:
        ValueError: if it is UTF-16 or UTF-32, or if carriage returns alone end its lines but the last.
    """
    opener = _OPENERS.get(Path(raw.name).suffix.lower())
    stream: Any = opener(raw) if opener else raw
    start = stream.peek(_START_BYTES)[:_START_BYTES]
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in start[:4]:
        raise ValueError(
            f"`{raw.name}` begins as UTF-16 or UTF-32, or with a NUL byte; convert text: "
            "iconv -f UTF-16 -t UTF-8 old.txt > new.txt"
        )
    lines = start.strip(b"\r\n")
    if b"\r" in lines and b"\n" not in lines:
        raise ValueError(
            f"carriage returns end the lines of `{raw.name}`; convert it: tr '\\r' '\\n' < old.txt > new.txt"
        )
    return cast(BinaryIO, stream)


def _line_blocks(path: Path, block_bytes: int) -> Iterator[Block]:
    is_plain = _kind(path) == "plain"
    lines: list[bytes] = []
    first_line, start, size, document_size, position = 1, 0, 0, 0, 0
    with open(path, "rb") as raw, decompressed(raw) as file:
        for line in iter(partial(file.readline, MAX_DOCUMENT_BYTES + 1), b""):
            lines.append(line)
            size += len(line)
            document_size += len(line)
            if document_size > MAX_DOCUMENT_BYTES:
                hint = "put a blank line between documents" if is_plain else "give each document a separate line"
                raise ValueError(
                    f"`{path}`, line {first_line + len(lines) - 1}: a document of more than "
                    f"{MAX_DOCUMENT_BYTES / 2**20:.0f} MiB; {hint}"
                )
            if not is_plain or not line.decode(errors="replace").strip():
                document_size = 0
                if size >= block_bytes:
                    yield Block(path, first_line, b"".join(lines), raw.tell() - position, start, size)
                    first_line, start, size, position, lines = first_line + len(lines), start + size, 0, raw.tell(), []
        yield Block(path, first_line, b"".join(lines), raw.tell() - position, start, size)


def _parquet_blocks(path: Path) -> Iterator[Block]:
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
        if "text" not in file.schema_arrow.names:
            raise ValueError(f"`{path}` has no column `text` (columns: {', '.join(file.schema_arrow.names)})")
        file_size, first_row, position = path.stat().st_size, 1, 0
        for batch in file.iter_batches(columns=["text"], batch_size=256):
            last_row = first_row + len(batch)
            reached = file_size * (last_row - 1) // file.metadata.num_rows
            texts = [text for text in batch.column(0).to_pylist() if text]
            if any(not isinstance(text, str) for text in texts):
                raise ValueError(f"`{path}`: column `text` must hold strings")
            if large := [text for text in texts if len(text) > MAX_DOCUMENT_BYTES]:
                raise ValueError(f"`{path}`: a row of {len(large[0]):,} characters, more than {MAX_DOCUMENT_BYTES:,}")
            yield Block(path, first_row, texts, reached - position, first_row - 1, len(batch))
            first_row, position = last_row, reached
    except pyarrow.ArrowException as error:
        raise ValueError(f"cannot read `{path}`: {error}") from error


def _parquet_rows(path: Path, start: int, end: int) -> list[str]:
    """Return the texts of the rows [start, end)."""
    import pyarrow.parquet

    first, texts = 0, []
    with pyarrow.parquet.ParquetFile(path) as file:
        for number in range(file.metadata.num_row_groups):
            last = first + file.metadata.row_group(number).num_rows
            if first < end and start < last:
                column = file.read_row_group(number, columns=["text"]).column(0)
                texts += column[max(0, start - first) : end - first].to_pylist()
            first = last
    return [text for text in texts if text]
