"""Where the text of a shard stands: what is sent to another machine in the place of the text."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from training.text.documents import Block, readable, suffix_of, unpacked


@dataclass(frozen=True, slots=True)
class Place:
    """Consecutive documents of a file, to be read where they are needed."""

    path: Path
    first_line: int
    """Number of the first line, or row, in the file, from 1."""
    start: int
    """Bytes of the file when unpacked, or rows of Parquet."""
    length: int
    """In the unit of `start`."""
    checksum: int
    """CRC-32 of the text."""

    def documents(self) -> Iterator[list[str]]:
        """The documents, each a list of sentences; empty ones are left out.

        Raises:
            ValueError: naming the file that cannot be read, and the line that is not as it should be.
            ChildProcessError: naming the file that holds other text here.
        """
        with readable(self.path):
            content = self._rows() if suffix_of(self.path) == ".parquet" else self._lines()
        if _checksum(content) != self.checksum:
            raise ChildProcessError(f"`{self.path}` has other text here than where the command was started")
        return Block(self.path, self.first_line, content, 0, self.start, self.length).documents()

    def _lines(self) -> bytes:
        with open(self.path, "rb") as raw, unpacked(raw) as file:
            file.seek(self.start)
            return file.read(self.length)

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


def places_of(chunk: Sequence[Block]) -> list[Place]:
    """Where the blocks of a chunk stand, one place for those that follow each other in a file."""
    places: list[Place] = []
    for block in chunk:
        last = places[-1] if places else None
        if last and (last.path, last.start + last.length) == (block.path.absolute(), block.start):
            checksum = _checksum(block.content, last.checksum)
            places[-1] = replace(last, length=last.length + block.length, checksum=checksum)
        else:
            checksum = _checksum(block.content)
            places.append(Place(block.path.absolute(), block.first_line, block.start, block.length, checksum))
    return places


def _checksum(content: bytes | list[str], so_far: int = 0) -> int:
    parts = (text.encode("utf-8", "surrogatepass") for text in content) if isinstance(content, list) else [content]
    for part in parts:
        so_far = zlib.crc32(part, so_far)
    return so_far
