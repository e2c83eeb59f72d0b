"""Outputs of a teacher on disk: computed once, chunk by chunk, then memory-mapped.

FOLDER/<digest>/values.f32     rows of numbers, [rows, width] little-endian float32
FOLDER/<digest>/ends.i64       row after the last one of each item
FOLDER/<digest>/outputs.json   what they were made from: digests of teacher and data, settings

The digest is that of `outputs.json`, so that another teacher, other data or other settings have another folder. An
interrupted computation goes on after its last whole chunk.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from tasks.bundle.files import atomic_write, name_in_errors, resumable_directory
from tasks.text.json_files import read_json
from training.command_line.progress_bar import ProgressBar
from training.loop.distributed import World

VALUES_FILE, ENDS_FILE, RECORD_FILE = "values.f32", "ends.i64", "outputs.json"
CHUNK = 2048
"""Items that are computed and written at a time."""
_VALUE, _END = np.dtype("<f4"), np.dtype("<i8")

Compute = Callable[[slice], Sequence[np.ndarray]]
"""Function from a slice of the items to an array [rows, width] for each; rows differ, width does not."""


@dataclass(frozen=True)
class TeacherOutputs:
    """Rows of numbers for each item, memory-mapped."""

    values: np.ndarray
    """[rows, width] float32."""
    ends: np.ndarray
    """[items] int64, the row after the last one of each item."""

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, item: int) -> np.ndarray:
        """Return the rows of an item, [rows, width]."""
        return self.values[self.ends[item - 1] if item else 0 : self.ends[item]]

    @property
    def width(self) -> int:
        """Numbers in a row."""
        return int(self.values.shape[1])


def record_outputs(
    folder: Path,
    made_from: Mapping[str, Any],
    locations: Sequence[str],
    load: Callable[[], Compute],
    world: World,
    *,
    unit: str,
) -> TeacherOutputs:
    """Compute the outputs for all items on the main process, unless an earlier call has done so; map them in all.

    Args:
        folder: folder for the outputs of all teachers.
        made_from: everything that the outputs depend on, as JSON.
        locations: location of each item in the data, for messages.
        load: function that loads the teacher and returns what computes the outputs of some items.
        unit: name of an item, for the progress bar.

    Raises:
        ValueError: if outputs are NaN or infinite, if another process is writing them, or if they are damaged.
        OSError: if they cannot be written; what is there is kept, and the next call goes on.
    """
    path = folder / _digest(made_from)

    def compute_missing() -> None:
        if path.exists():
            return
        with resumable_directory(path, made_from=dict(made_from)) as partial, name_in_errors(path):
            try:
                _compute_missing(partial, locations, load(), unit)
            except KeyboardInterrupt as interrupt:
                interrupt.args = (f"interrupted; the outputs in `{partial}` stay, and the same command goes on",)
                raise
            atomic_write(partial / RECORD_FILE, _record(made_from).encode())

    world.on_main(compute_missing)
    return _read(path, len(locations))


def cached_scores(
    folder: Path, made_from: Mapping[str, Any], score: Callable[[], dict[str, float]]
) -> dict[str, float]:
    """Return scores of a teacher, computed once."""
    path = folder / f"scores-{_digest(made_from)}.json"
    if not path.is_file():
        atomic_write(path, _record({**made_from, "scores": score()}).encode())
    found: dict[str, float] = read_json(path)["scores"]
    return found


def _record(made_from: Mapping[str, Any]) -> str:
    return json.dumps(made_from, indent=2, sort_keys=True) + "\n"


def _digest(made_from: Mapping[str, Any]) -> str:
    """Return the start of the SHA-256 of a record, which names its outputs."""
    return hashlib.sha256(_record(made_from).encode()).hexdigest()[:16]


def _compute_missing(partial: Path, locations: Sequence[str], compute: Compute, unit: str) -> None:
    width = compute(slice(0, 1))[0].shape[1]
    done, num_rows = _drop_half_written(partial, width)
    num_items = len(locations)
    with (
        ProgressBar("teacher", unit=unit, total=num_items, initial=done) as bar,
        (partial / VALUES_FILE).open("ab") as values_file,
        (partial / ENDS_FILE).open("ab") as ends_file,
    ):
        for first in range(done, num_items, CHUNK):
            outputs = [np.asarray(rows, _VALUE) for rows in compute(slice(first, min(first + CHUNK, num_items)))]
            odd = next((number for number, rows in enumerate(outputs) if not np.isfinite(rows).all()), None)
            if odd is not None:
                raise ValueError(f"{locations[first + odd]}: the outputs of the teacher are NaN or infinite")
            ends = num_rows + np.cumsum([len(rows) for rows in outputs])
            _append(values_file, np.concatenate(outputs).reshape(-1, width))
            _append(ends_file, ends.astype(_END))
            num_rows = int(ends[-1])
            bar.update(len(outputs))


def _append(file: IO[bytes], array: np.ndarray) -> None:
    file.write(array.tobytes())
    file.flush()


def _drop_half_written(partial: Path, width: int) -> tuple[int, int]:
    """Cut both files after the last item that is whole in both; return the numbers of items and rows before."""
    values_path, ends_path = partial / VALUES_FILE, partial / ENDS_FILE
    if not (values_path.exists() and ends_path.exists()):
        for path in (values_path, ends_path):
            path.unlink(missing_ok=True)
        return 0, 0
    ends = np.fromfile(ends_path, _END)  # without the bytes of a number that was cut
    whole_rows = values_path.stat().st_size // (width * _VALUE.itemsize)
    done = int(np.searchsorted(ends, whole_rows, side="right"))
    num_rows = int(ends[done - 1]) if done else 0
    os.truncate(ends_path, done * _END.itemsize)
    os.truncate(values_path, num_rows * width * _VALUE.itemsize)
    return done, num_rows


def _read(path: Path, num_items: int) -> TeacherOutputs:
    """Map the files into memory, after a check of their sizes."""
    ends = np.fromfile(path / ENDS_FILE, _END)
    num_rows = int(ends[-1]) if len(ends) else 0
    width, rest = divmod((path / VALUES_FILE).stat().st_size, num_rows * _VALUE.itemsize or 1)
    if len(ends) != num_items or rest or not width:
        raise ValueError(f"the outputs of a teacher in `{path}` are damaged; remove that folder to compute them again")
    return TeacherOutputs(np.memmap(path / VALUES_FILE, _VALUE, "r", shape=(num_rows, width)), ends)
