"""Recorded vectors: Parquet files with columns `text` and `vector`, as `bertline embed` writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.bundle.files import sha256
from training.data.examples import Examples
from training.distillation.outputs import Compute
from training.loop.distributed import World
from training.text.documents import check_file

TEXT, VECTOR = "text", "vector"


@dataclass(frozen=True)
class RecordedVectors:
    """Vectors of texts in Parquet files."""

    paths: tuple[Path, ...]
    sha256: str
    """Digests of the files."""
    texts: Examples
    """Texts with their locations, in the order of the rows."""
    size: int
    """Numbers in a vector."""

    @property
    def digest(self) -> str:
        """Digest of everything that its outputs depend on."""
        return self.sha256

    def record(self) -> dict[str, str]:
        """Return name and digest, for the task card of the student."""
        return {"name": self.name, "sha256": self.sha256, "licence": ""}

    @property
    def name(self) -> str:
        """Names of the files."""
        return ", ".join(path.name for path in self.paths)

    def rows_of(self, texts: Sequence[str], vectors: np.ndarray) -> np.ndarray:
        """Return the row of each text.

        Args:
            vectors: [rows, size], of all rows.

        Raises:
            ValueError: if a text has no vector, or two different ones.
        """
        rows: dict[str, int] = {}
        for row, text in enumerate(self.texts):
            first = rows.setdefault(text, row)
            if first != row and not np.allclose(vectors[first], vectors[row], atol=1e-3):
                raise ValueError(
                    f"{self.texts.locations[row]}: the text has another vector in {self.texts.locations[first]}; give "
                    "the vectors of one model"
                )
        missing = [text for text in texts if text not in rows]
        if missing:
            raise ValueError(
                f"{len(missing):,} of {len(texts):,} training texts have no vector in `{self.name}`, the first: "
                f"`{missing[0][:60]}`; record the vectors of the same texts, whole, or leave out --train"
            )
        return np.array([rows[text] for text in texts])

    def made_from(self) -> dict[str, str]:
        """Return the digest of the files."""
        return {"recorded": self.sha256}

    def vectors(self, texts: Examples, world: World) -> Compute:
        """Return a function from a slice of texts to the vectors of each, [1, size]; it reads the files at once.

        Raises:
            ValueError: as `rows_of`; or naming the row of a vector that is damaged.
        """
        vectors = np.concatenate([_vectors(path, self.size) for path in self.paths])
        rows = self.rows_of(texts, vectors)
        return lambda part: list(vectors[rows[part]][:, None])


def read_recorded_vectors(paths: Sequence[Path]) -> RecordedVectors:
    """Read the texts of Parquet files, and the size of their vectors.

    Raises:
        ValueError: naming the file, and the column or row that is wrong.
    """
    texts, sizes = Examples(), {}
    for path in paths:
        schema = _open_parquet(path).schema_arrow
        for name in (TEXT, VECTOR):
            if name not in schema.names:
                raise ValueError(
                    f"`{path}` has no column `{name}` (columns: {', '.join(schema.names)}); "
                    "`bertline embed -o vectors.parquet` writes `text` and `vector`"
                )
        for number, text in enumerate(_read_column(path, TEXT).to_pylist(), start=1):
            if not isinstance(text, str | None):
                raise ValueError(f"`{path}`, row {number}: `{TEXT}` must be a string: `{text}`")
            if not (text or "").strip():
                raise ValueError(f"`{path}`, row {number}: `{TEXT}` is empty")
            texts.add(f"`{path}`, row {number}", text)
        sizes[path] = _size(path)
        if texts and not sizes[path]:
            raise ValueError(f"`{path}`, row 1: a vector of 0 numbers")
    if not texts:
        raise ValueError(f"no rows in {', '.join(f'`{path}`' for path in paths)}")
    if len({*sizes.values()}) > 1:
        found = ", ".join(f"`{path}` {size}" for path, size in sizes.items())
        raise ValueError(f"vectors of different sizes: {found}; give files of one model")
    digests = "+".join(map(sha256, paths))
    return RecordedVectors(tuple(paths), digests, texts, next(iter(sizes.values())))


def _size(path: Path) -> int:
    """Return the size of the vectors from the first one."""
    field = _open_parquet(path).schema_arrow.field(VECTOR)
    if not isinstance(field.type, pa.FixedSizeListType | pa.ListType | pa.LargeListType) or not pa.types.is_floating(
        field.type.value_type
    ):
        raise ValueError(f"`{path}`: column `{VECTOR}` must hold lists of numbers: {field.type}")
    if isinstance(field.type, pa.FixedSizeListType):
        return int(field.type.list_size)
    first = next((value for value in _read_column(path, VECTOR) if value.is_valid), None)
    return len(first) if first is not None else 0


def _vectors(path: Path, size: int) -> np.ndarray:
    """Return the vectors of a file at length 1, [rows, size] float32."""
    column = _read_column(path, VECTOR).combine_chunks()
    if column.null_count:
        row = column.is_null().index(True).as_py() + 1
        raise ValueError(f"`{path}`, row {row}: `{VECTOR}` is empty; its text was rejected: leave out the row")
    if not isinstance(column.type, pa.FixedSizeListType):
        lengths = column.value_lengths().to_numpy()
        for row in np.flatnonzero(lengths != size)[:1]:
            raise ValueError(f"`{path}`, row {row + 1}: a vector of {lengths[row]} numbers, others have {size}")
    values = column.flatten().to_numpy(zero_copy_only=False).astype(np.float64).reshape(-1, size)
    with np.errstate(over="ignore"):
        norms = np.linalg.norm(values, axis=1)
    for row in np.flatnonzero(~(np.isfinite(norms) & (norms > 0)))[:1]:
        raise ValueError(f"`{path}`, row {row + 1}: the vector is NaN, infinite or 0; leave out the row")
    found: np.ndarray = (values / norms[:, None]).astype(np.float32)
    return found


def _open_parquet(path: Path) -> pq.ParquetFile:
    """Open a file, or raise ValueError naming one that is missing, or no Parquet file."""
    check_file(path)
    try:
        return pq.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise ValueError(f"`{path}` is not a Parquet file: {' '.join(str(error).split())[:100]}") from error


def _read_column(path: Path, column: str) -> pa.ChunkedArray:
    """Read a column, or raise ValueError naming a file that is damaged."""
    try:
        return _open_parquet(path).read(columns=[column]).column(column)
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"`{path}` cannot be read: {' '.join(str(error).split())[:100]}") from error
