"""Recorded vectors: Parquet files with columns `text` and `vector`, as `bertline embed` writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
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
    digest: str
    """Digests of the files: all that its outputs depend on."""
    texts: Examples
    """Texts with their locations, in the order of the rows."""

    @property
    def name(self) -> str:
        """Names of the files."""
        return ", ".join(path.name for path in self.paths)

    def record(self) -> dict[str, str]:
        """Return name and digest, for the task card of the student."""
        return {"name": self.name, "sha256": self.digest, "licence": ""}

    def made_from(self) -> dict[str, str]:
        """Return the digest of the files."""
        return {"recorded": self.digest}

    def vectors(self, texts: Examples, world: World) -> Compute:
        """Return a function from a slice of texts to the vectors of each, [1, size]; it reads the files at once.

        Raises:
            ValueError: if a text has no vector, or two different ones; naming the row of a vector that is damaged.
        """
        parts = [_read_vectors(path) for path in self.paths]
        if len({part.shape[1] for part in parts}) > 1:
            found = ", ".join(f"`{path}` {part.shape[1]}" for path, part in zip(self.paths, parts, strict=True))
            raise ValueError(f"vectors of different sizes: {found}; give files of one model")
        vectors = np.concatenate(parts)
        row_of: dict[str, int] = {}
        for row, text in enumerate(self.texts):
            first = row_of.setdefault(text, row)
            if first != row and not np.allclose(vectors[first], vectors[row], atol=1e-3):
                raise ValueError(
                    f"{self.texts.locations[row]}: the text has another vector in {self.texts.locations[first]}; give "
                    "the vectors of one model"
                )
        if missing := [text for text in texts if text not in row_of]:
            raise ValueError(
                f"{len(missing):,} of {len(texts):,} training texts have no vector in `{self.name}`, the first: "
                f"`{missing[0][:60]}`; record the vectors of the same texts, whole, or leave out --train"
            )
        rows = np.array([row_of[text] for text in texts])
        return lambda part: list(vectors[rows[part]][:, None])


def read_recorded_vectors(paths: Sequence[Path]) -> RecordedVectors:
    """Read the texts of Parquet files; their vectors are read when they are needed.

    Raises:
        ValueError: naming the file, and the column or row that is wrong.
    """
    texts = Examples()
    for path in paths:
        column = _read_column(path, TEXT)
        if not len(column):
            raise ValueError(f"no rows in `{path}`")
        for number, text in enumerate(column.to_pylist(), start=1):
            if not isinstance(text, str) or not text.strip():
                raise ValueError(f"`{path}`, row {number}: `{TEXT}` is empty, or no text")
            texts.add(f"`{path}`, row {number}", text)
    return RecordedVectors(tuple(paths), "+".join(map(sha256, paths)), texts)


def _read_vectors(path: Path) -> np.ndarray:
    """Return the vectors of a file at length 1, [rows, size] float32."""
    column = _read_column(path, VECTOR).combine_chunks()
    if not isinstance(column.type, pa.FixedSizeListType | pa.ListType | pa.LargeListType):
        raise ValueError(f"`{path}`: column `{VECTOR}` must hold lists of numbers: {column.type}")
    if column.null_count:
        row = column.is_null().index(True).as_py() + 1
        raise ValueError(f"`{path}`, row {row}: `{VECTOR}` is empty; its text was rejected: leave out the row")
    sizes = pc.list_value_length(column).to_numpy()
    size = int(np.median(sizes))
    for row in np.flatnonzero(sizes != size)[:1]:
        raise ValueError(f"`{path}`, row {row + 1}: a vector of {sizes[row]} numbers, others have {size}")
    values = column.flatten().to_numpy(zero_copy_only=False).astype(np.float64).reshape(-1, size)
    with np.errstate(over="ignore"):
        norms = np.linalg.norm(values, axis=1)
    for row in np.flatnonzero(~(np.isfinite(norms) & (norms > 0)))[:1]:
        raise ValueError(f"`{path}`, row {row + 1}: the vector is NaN, infinite or 0; leave out the row")
    found: np.ndarray = (values / norms[:, None]).astype(np.float32)
    return found


def _read_column(path: Path, name: str) -> pa.ChunkedArray:
    """Read a column, or raise ValueError naming a file that is missing, damaged or no Parquet, or lacks the column."""
    check_file(path)
    try:
        file = pq.ParquetFile(path)
        if name in file.schema_arrow.names:
            return file.read(columns=[name]).column(name)
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"`{path}` cannot be read as Parquet: {' '.join(str(error).split())[:100]}") from error
    raise ValueError(
        f"`{path}` has no column `{name}` (columns: {', '.join(file.schema_arrow.names)}); "
        "`bertline embed -o vectors.parquet` writes `text` and `vector`"
    )
