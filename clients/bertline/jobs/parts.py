"""A folder of what is done of a job: one file for each chunk, whole or absent. What is there is not done again.

    vectors.parquet.job/
        _job.json                              what the job does
        _schema                                kept columns and their types, of Parquet
        part-00000-00000-1f2e3d4c5b6a.parquet  file, chunk, digest of what was read
        _rejects-00000-00000.jsonl             rows of that chunk that have no result

An output that is a folder is that folder itself. Otherwise the parts become one file in the end, and the folder goes.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from bertline.jobs.asking import Asked, Rejected
from bertline.jobs.chunks import Chunk
from bertline.jobs.sinks import Parquet, Sink, copy, json_line
from bertline.jobs.storage import File, FileError, make_folder, open_write, told

_PART = re.compile(r"part-(\d{5})-(\d{5})-([0-9a-f]{12})\.\w+")
JOB, SCHEMA, SUCCESS, WHOLE = "_job.json", "_schema", "_SUCCESS", "_whole"


def rejects_of(output: File) -> File:
    """Where the rejected rows of an output are told, unless another file is named."""
    return output.within("_rejects.jsonl") if output.url.endswith("/") else output.beside(".rejects.jsonl")


@dataclass
class Parts:
    """The job folder of an output."""

    output: File
    is_folder: bool
    """Whether the output is to be a folder of parts."""
    sink: Sink
    about: Mapping[str, Any]
    """What the job does; only a run that does the same may go on with it."""
    rejects: File
    """Where to tell of rejected rows in the end."""
    num_rejected: int = 0
    """Rows without a result, in all runs; known in the end."""
    _known: dict[tuple[int, int], str] = field(default_factory=dict)
    """Digests by file and chunk, of those that are done."""
    _seen: set[tuple[int, int]] = field(default_factory=set)
    """Those that this run has come across."""
    _lock: BinaryIO | None = None

    @property
    def folder(self) -> File:
        """Where the parts lie."""
        return self.output if self.is_folder else self.output.beside(".job")

    @contextmanager
    def opened(self, *, force: bool, restart: bool) -> Iterator[bool]:
        """Begin, or go on with what is there.

        Args:
            force: replace an output that exists.
            restart: forget what is there of an unfinished job.

        Yields:
            Whether there is anything to do: a run may have been interrupted in its last steps.

        Raises:
            FileError: when the output is there, or the folder is of another job or in use.
        """
        try:
            yield self._open(force=force, restart=restart)
        except BaseException:
            if self._known:
                print(
                    f"bertline: what is done lies in `{self.folder.url}`: run the same again to go on", file=sys.stderr
                )
            elif self._lock:  # there is nothing to go on with
                self.folder.remove()
            raise
        finally:
            if self._lock:
                self._lock.close()

    def _open(self, *, force: bool, restart: bool) -> bool:
        self._refuse_odd_outputs()
        unfinished = self.folder.within(JOB).exists() and not self.folder.within(SUCCESS).exists()
        if self._was_finished():
            return False
        if not force and not unfinished and self._output_exists():
            raise FileError(f"already exists: `{self.output.url}`; choose another file, or replace it with --force")
        if self.folder.within(JOB).exists() and (restart or (self.is_folder and force and not unfinished)):
            self.folder.remove()
        with told(f"cannot write `{self.output.url}`"):
            make_folder(self.folder)
        self._take()
        self._check()
        self._know()
        return True

    def has(self, chunk: Chunk) -> bool:
        """Whether a chunk is done.

        Raises:
            FileError: when other rows stood there when it was done.
        """
        self._seen.add((chunk.file, chunk.number))
        digest = self._known.get((chunk.file, chunk.number))
        if digest not in (None, chunk.digest):
            raise self._changed(chunk.source.name)
        return digest is not None

    def join_in(self) -> None:
        """Know what others have done that work at the same job."""
        for name in self.folder.names():
            if found := _PART.fullmatch(name):
                self._known[int(found[1]), int(found[2])] = found[3]
        if isinstance(self.sink, Parquet) and (stored := self.folder.within(SCHEMA)).exists():
            self.sink.schema = read_schema(stored.read())

    def write(self, asked: Asked) -> None:
        """Write a chunk: first what was rejected, so that a part that is there has all that belongs to it."""
        self.settle(asked)
        chunk, rejected = asked.chunk, rejected_rows(asked)
        name = f"_rejects-{chunk.file:05}-{chunk.number:05}.jsonl"
        if rejected:
            with self._write(name) as stream:
                stream.writelines(map(json_line, rejected))
        else:
            self.folder.within(name).remove()  # of a run that was killed before it wrote the part
        with self._write(f"part-{chunk.file:05}-{chunk.number:05}-{chunk.digest}{self.sink.suffix}") as stream:
            self.sink.write(asked, stream)
        self._known[chunk.file, chunk.number] = chunk.digest

    def settle(self, asked: Asked) -> None:
        """Reject rows that the format cannot hold; the first ones settle the columns, for all runs and workers."""
        has_schema = isinstance(self.sink, Parquet) and self.sink.schema is not None
        self.sink.settle(asked)
        if isinstance(self.sink, Parquet) and not has_schema:
            with self._write(SCHEMA) as stream:
                stream.write(self.sink.schema.serialize().to_pybytes())

    def finish(self) -> None:
        """Make the output of the parts.

        Raises:
            FileError: when there are parts of rows that are gone.
        """
        if self._seen and self._known.keys() - self._seen:
            raise self._changed("the input")
        names = sorted(self.folder.names())
        self.num_rejected = self._tell_of_rejects(
            [self.folder.within(name) for name in names if name.startswith("_rejects-")]
        )
        if not self.is_folder:
            with open_write(self.folder.within(WHOLE)) as stream:
                self.sink.join(
                    [self.folder.within(name) for name in names if _PART.fullmatch(name)], stream, self.about
                )
        with self._write(SUCCESS) as stream:
            stream.write(json_line({"rejected": self.num_rejected}))
        if not self.is_folder:
            self._move()

    def _changed(self, what: str) -> FileError:
        return FileError(f"{what} has changed since `{self.folder.url}` was begun; begin anew with --restart")

    def _refuse_odd_outputs(self) -> None:
        if self.is_folder or not self.output.exists():
            return
        if self.output.is_local and not os.path.isfile(self.output.path):
            raise FileError(f"not a regular file: `{self.output.url}`; with / at its end it is a folder of parts")

    def _output_exists(self) -> bool:
        return bool(set(self.output.names()) - {JOB}) if self.is_folder else self.output.exists()

    def _was_finished(self) -> bool:
        """Whether a run was interrupted after all its work, and only the last steps are left."""
        if self.is_folder or not (done := self.folder.within(SUCCESS)).exists():
            return False
        self.num_rejected = json.loads(done.read())["rejected"]
        self._move()
        return True

    def _move(self) -> None:
        if (whole := self.folder.within(WHOLE)).exists():
            whole.move(self.output)
        for name in self.folder.names():
            if name != SUCCESS:  # which tells until the end what is the matter
                self.folder.within(name).remove()
        self.folder.remove()

    def _take(self) -> None:
        """Let no second run write into the folder."""
        if not self.folder.is_local:
            return
        lock = open(os.path.join(self.folder.path, "_lock"), "wb")  # noqa: SIM115
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            raise FileError(f"another run is at work in `{self.folder.url}`; let it end") from error
        self._lock = lock

    def _check(self) -> None:
        """The folder has to be of this very job."""
        job = self.folder.within(JOB)
        if not job.exists():
            if self.is_folder and set(self.folder.names()) - {"_lock"}:
                raise FileError(f"not empty, and no unfinished job: `{self.output.url}`; choose another folder")
            with open_write(job) as stream:
                stream.write(json.dumps(self.about, indent=1).encode())
            return
        before = json.loads(job.read())
        if changed := [name for name, value in self.about.items() if before.get(name) != json.loads(json.dumps(value))]:
            raise FileError(
                f"`{self.folder.url}` is of another job ({', '.join(changed)} differ); "
                "run that again to go on with it, or begin anew with --restart"
            )

    def _know(self) -> None:
        for name in self.folder.names():
            if name.startswith("."):  # of a run that was killed as it wrote
                self.folder.within(name).remove()
        self.join_in()

    def _write(self, name: str) -> Any:
        return open_write(self.folder.within(name), self.folder.within(f".{name}.{os.getpid()}"))

    def _tell_of_rejects(self, files: list[File]) -> int:
        if not files:
            self.rejects.remove()
            return 0
        with open_write(self.rejects) as stream:
            copy(files, stream)
        return self.rejects.read().count(b"\n")


def rejected_rows(asked: Asked) -> list[dict[str, Any]]:
    """What is told of the rows of a chunk that have no result."""
    return [
        {"place": asked.chunk.place(row), "reason": result.reason, "row": row.fields}
        for row, result in zip(asked.chunk.rows, asked.results, strict=True)
        if isinstance(result, Rejected)
    ]


def read_schema(data: bytes) -> Any:
    """An Arrow schema out of its bytes."""
    import pyarrow

    return pyarrow.ipc.read_schema(pyarrow.py_buffer(data))
