"""Ranges of files: sent to other machines, which read the text themselves."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from training.text.documents import Block, decompressed, readable, suffix_of


@dataclass(frozen=True, slots=True)
class FileRange:
    """Consecutive documents of a file, by position."""

    path: Path
    first_line: int
    """Number of the first line, or row, in the file, from 1."""
    start: int
    """Offset in the decompressed file in bytes, or in rows of Parquet."""
    length: int
    """Length in the unit of `start`."""
    checksum: int
    """CRC-32 of the text."""

    def documents(self) -> Iterator[list[str]]:
        """Read documents as lists of sentences, without empty ones.

        Raises:
            ValueError: naming a file that cannot be read, or a malformed line.
            ChildProcessError: naming a file that has other text on this machine.
        """
        with readable(self.path):
            content: bytes | list[str]
            if suffix_of(self.path) == ".parquet":
                content = self._rows()
            else:
                with open(self.path, "rb") as raw, decompressed(raw) as file:
                    file.seek(self.start)
                    content = file.read(self.length)
        if _checksum(content) != self.checksum:
            raise ChildProcessError(f"`{self.path}` differs from the file on the machine where the command was started")
        return Block(self.path, self.first_line, content, 0, self.start, self.length).documents()

    def _rows(self) -> list[str]:
        import pyarrow.parquet

        end, first, texts = self.start + self.length, 0, []
        with pyarrow.parquet.ParquetFile(self.path) as file:
            for number in range(file.metadata.num_row_groups):
                last = first + file.metadata.row_group(number).num_rows
                if first < end and self.start < last:
                    column = file.read_row_group(number, columns=["text"]).column(0)
                    texts += column[max(0, self.start - first) : end - first].to_pylist()
                first = last
        return [text for text in texts if text]


def file_ranges(blocks: Sequence[Block]) -> list[FileRange]:
    """Return the ranges of some blocks; consecutive blocks of a file become one range."""
    ranges: list[FileRange] = []
    for block in blocks:
        last = ranges[-1] if ranges else None
        if last and (last.path, last.start + last.length) == (block.path.absolute(), block.start):
            checksum = _checksum(block.content, last.checksum)
            ranges[-1] = replace(last, length=last.length + block.length, checksum=checksum)
        else:
            checksum = _checksum(block.content)
            ranges.append(FileRange(block.path.absolute(), block.first_line, block.start, block.length, checksum))
    return ranges


def _checksum(content: bytes | list[str], so_far: int = 0) -> int:
    for part in map(str.encode, content) if isinstance(content, list) else [content]:
        so_far = zlib.crc32(part, so_far)
    return so_far
