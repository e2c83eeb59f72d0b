"""A folder of what is done of a job: one file for each chunk, whole or absent. What is there is not done again.

    vectors.parquet.job/
        _job.json                              what the job does, and in the end where it tells rejected rows
        _schema                                kept columns and their types, of Parquet
        part-00000-00000-1f2e3d4c5b6a.parquet  file, chunk, digest of what was read
        _rejects-00000-00000.jsonl             rows of that chunk that have no result

An output that is a folder is that folder itself. Otherwise the parts become one file in the end, and the folder goes.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from typing import Any, BinaryIO

from bertline.jobs.layout import (
    JOB,
    LOCK,
    SCHEMA,
    SUCCESS,
    WHOLE,
    is_ours,
    is_unfinished,
    part_name,
    parts_in,
    parts_of,
    rejects_in,
    rejects_name,
    rejects_of,
)
from bertline.jobs.pass_through import FILE, ROW_NUMBER
from bertline.jobs.read.rows import Chunk
from bertline.jobs.send import Asked, Rejected
from bertline.jobs.storage import File, FileError, absolute, already_exists, make_folder, open_write, told
from bertline.jobs.write import Parquet, Sink, copy, json_line

_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
"""What file systems say that have none, as some of clusters. A job does without, as in an object store."""


class Changed(FileError):
    """The input, or the model, is another than that of the parts that are there."""


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
    seen: set[tuple[int, int]] = field(default_factory=set)
    """Chunks that this run has come across, by file and number; of a cluster, those of all workers, in the end."""
    _known: dict[tuple[int, int], str] = field(default_factory=dict)
    """Digests by file and chunk, of those that are done."""
    _lock: BinaryIO | None = None
    _is_made: bool = False
    """Whether this run made the folder."""
    _is_begun: bool = False
    """Whether the folder is of this job."""

    @property
    def folder(self) -> File:
        """Where the parts lie."""
        return parts_of(self.output)

    @cached_property
    def _label(self) -> dict[str, Any]:
        """What a file tells of the job: not the names of all inputs, which may be thousands."""
        label = dict(self.about)
        inputs = label.pop("inputs")
        digest = hashlib.sha256(json.dumps(inputs).encode()).hexdigest()
        return {**label, "num_inputs": len(inputs), "inputs_digest": digest}

    @property
    def has_columns(self) -> bool:
        """Whether the columns are settled, where the format has any."""
        return not isinstance(self.sink, Parquet) or self.sink.schema is not None

    @contextmanager
    def opened(self, *, force: bool, restart: bool) -> Iterator[bool]:
        """Begin, or go on with what is there.

        Args:
            force: replace an output, or a file of rejected rows, that exists.
            restart: forget what is there of an unfinished job.

        Yields:
            Whether there is anything to do: a run may have been interrupted in its last steps.

        Raises:
            FileError: when one of these is there, or the folder is of another job or in use.
        """
        try:
            yield self._open(force=force, restart=restart)
        except BaseException as error:
            self._leave(may_go_on=not isinstance(error, Changed))
            raise
        finally:
            if self._lock:
                self._lock.close()

    def _leave(self, *, may_go_on: bool) -> None:
        """Tell of what is done; without any there is nothing to go on with."""
        with suppress(FileError):  # what ended the job is told, and not that a store fails here, too
            if self._is_begun and not parts_in(self.folder.names()):
                self._clear()
            elif self._is_begun and may_go_on:
                print(
                    f"bertline: what is done lies in `{self.folder.url}`: run the same again to go on", file=sys.stderr
                )
            if self._is_made and not set(self.folder.names()) - {LOCK}:
                self._remove()

    def _open(self, *, force: bool, restart: bool) -> bool:
        self._refuse_odd_outputs()
        is_new = not set(self.folder.names()) & {JOB, SUCCESS}
        if not force and is_new and self._output_exists():
            raise already_exists(self.output)
        self._refuse_other_files()
        self._take()
        is_finished = self.folder.within(SUCCESS).exists()
        if is_finished and self._finished(force=force, restart=restart):
            return False
        if not force:
            self._refuse_rejects()
        if is_finished or restart:
            self._clear()
        self._check()
        self._is_begun = True
        self._know()
        return True

    def _finished(self, *, force: bool, restart: bool) -> bool:
        """Whether a run did all of this very job, but for its last steps, which are made up for here."""
        is_moved = self.is_folder or not self.folder.within(WHOLE).exists()
        if not self.is_folder and not restart:
            done = json.loads(self.folder.within(SUCCESS).read())
            is_same = not self._differing(done.get("job", {}))
            if not is_moved and not is_same:
                raise self._of_another(self._differing(done.get("job", {})))
            if is_same and (not is_moved or (self.output.exists() and not force)):
                self.num_rejected = done["rejected"]
                self._move()
                return True
        if is_moved and not force and self._output_exists():
            if not self.is_folder:
                self._remove()
            raise already_exists(self.output)
        return False

    def _refuse_rejects(self) -> None:
        """A file that was named for rejected rows, and is there, has to be one that this job wrote."""
        if self.rejects.url == rejects_of(self.output).url or not self.rejects.exists():
            return
        if self._job().get("rejects") != absolute(self.rejects.url):
            raise already_exists(self.rejects)

    def _clear(self) -> None:
        """Remove what a job made, but for what says that a run is at work."""
        for name in self.folder.names():
            if is_ours(name) and name != LOCK:
                self.folder.within(name).remove()

    def _remove(self) -> None:
        """Remove the folder. NFS would keep the lock in it, under another name, as long as it is open."""
        if self._lock:
            self.folder.within(LOCK).remove()
            self._lock.close()
        self.folder.remove()

    def has(self, chunk: Chunk) -> bool:
        """Whether a chunk is done.

        Raises:
            Changed: when other rows stood there when it was done.
        """
        self.seen.add((chunk.file, chunk.number))
        digest = self._known.get((chunk.file, chunk.number))
        if digest not in (None, chunk.digest):
            raise self._changed(chunk.source.name)
        return digest is not None

    def join_in(self) -> None:
        """Know what others have done that work at the same job."""
        names = self.folder.names()
        self._known |= {key: digest for key, (_, digest) in parts_in(names).items()}
        if isinstance(self.sink, Parquet) and SCHEMA in names:
            self.sink.schema = read_schema(self.folder.within(SCHEMA).read())

    def write(self, asked: Asked) -> None:
        """Write a chunk: first what was rejected, so that a part that is there has all that belongs to it."""
        self.settle(asked)
        chunk, rejected = asked.chunk, rejected_rows(asked)
        name = rejects_name(chunk.file, chunk.number)
        if rejected:
            with self._write(name) as stream:
                stream.writelines(map(json_line, rejected))
        else:
            self.folder.within(name).remove()  # of a run that was killed before it wrote the part
        with self._write(part_name(chunk.file, chunk.number, chunk.digest, self.sink.suffix)) as stream:
            self.sink.write(asked, stream, self._label)
        self._known[chunk.file, chunk.number] = chunk.digest

    def settle(self, asked: Asked) -> None:
        """Reject rows that the format cannot hold; the first ones settle the columns, for all runs and workers."""
        had_columns = self.has_columns
        self.sink.settle(asked)
        if isinstance(self.sink, Parquet) and self.has_columns and not had_columns:
            with self._write(SCHEMA) as stream:
                stream.write(self.sink.schema.serialize().to_pybytes())

    def finish(self) -> None:
        """Make the output of the parts.

        Raises:
            Changed: when there are parts of rows that are gone.
            FileError: when parts are gone.
        """
        names = self.folder.names()
        found = parts_in(names)
        if found.keys() - self.seen:
            raise self._changed("the input")
        if self.seen - found.keys():
            raise FileError(f"parts that were written are not in `{self.folder.url}`; run the same again to write them")
        parts = [self.folder.within(name) for name, _ in found.values()]
        self.num_rejected = self._tell_of_rejects([self.folder.within(name) for name in rejects_in(names)])
        if self.is_folder:
            self._complete(parts)
        else:
            with self._write(WHOLE) as stream:
                self.sink.join(parts, stream, self._label)
        job = {} if self.is_folder else {"job": self.about}
        with self._write(SUCCESS) as stream:
            stream.write(json_line({"rejected": self.num_rejected, **job}))
        if not self.is_folder:
            self._move()

    def _complete(self, parts: list[File]) -> None:
        """Give the same columns to all parts. Those that lack some come before all with rows."""
        if isinstance(self.sink, Parquet):
            for part in takewhile(self.sink.is_empty, parts):
                if self.sink.lacks_columns(part):
                    with self._write(part.name) as stream:
                        self.sink.join([], stream, self._label)

    def _changed(self, what: str) -> Changed:
        return Changed(f"{what} has changed since `{self.folder.url}` was begun; begin anew with --restart")

    def _refuse_odd_outputs(self) -> None:
        if self.is_folder or not self.output.exists():
            return
        if self.output.is_local and not os.path.isfile(self.output.path):
            raise FileError(f"not a regular file: `{self.output.url}`; with / at its end it is a folder of parts")

    def _refuse_other_files(self) -> None:
        if others := sorted(name for name in self.folder.names() if not is_ours(name)):
            raise FileError(
                f"holds files that are of no job: `{self.folder.url}` (`{others[0]}`, for one); choose another output"
            )

    def _output_exists(self) -> bool:
        if self.is_folder:
            return any(name not in (JOB, LOCK) and not is_unfinished(name) for name in self.output.names())
        return self.output.exists()

    def _move(self) -> None:
        if (whole := self.folder.within(WHOLE)).exists():
            whole.move(self.output)
        for name in self.folder.names():
            if name not in (SUCCESS, LOCK):  # which tell until the end what is the matter, and that a run is at work
                self.folder.within(name).remove()
        self._remove()

    def _take(self) -> None:
        """Make the folder, and let no second run write into it."""
        with told(f"cannot write `{self.output.url}`", self.output):
            self._is_made = not self.folder.exists()
            make_folder(self.folder)
            if not self.folder.is_local:
                return
            self._lock = open(os.path.join(self.folder.path, LOCK), "wb")  # noqa: SIM115
            is_taken = self._is_taken(self._lock)
        if is_taken:
            self._is_made = False
            raise FileError(f"another run is at work in `{self.folder.url}`; let it end")

    def _is_taken(self, lock: BinaryIO) -> bool:
        """Whether another run has the lock; it is this one's otherwise, where the file system has any."""
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            print(f"bertline: no file can be locked in `{self.folder.url}`: begin no second run there", file=sys.stderr)
            return False
        return not os.fstat(lock.fileno()).st_nlink  # the other run has just ended, and removed its folder

    def _check(self) -> None:
        """The folder has to be of this very job; only where rejected rows are told may be another place by now."""
        job = self._job()
        if not job:
            self._write_job()
        elif differing := self._differing(job):
            raise self._of_another(differing)

    def _job(self) -> dict[str, Any]:
        """What the job of this folder does; empty before it began."""
        job = self.folder.within(JOB)
        return dict(json.loads(job.read())) if job.exists() else {}

    def _write_job(self, **more: str) -> None:
        with self._write(JOB) as stream:
            stream.write(json.dumps({**self.about, **more}, indent=1).encode())

    def _differing(self, before: Mapping[str, Any]) -> list[str]:
        return [name for name, value in self.about.items() if before.get(name) != json.loads(json.dumps(value))]

    def _of_another(self, differing: list[str]) -> FileError:
        return FileError(
            f"`{self.folder.url}` is of another job ({', '.join(differing)} differ); "
            "run that again to go on with it, or begin anew with --restart"
        )

    def _know(self) -> None:
        for name in filter(is_unfinished, self.folder.names()):
            self.folder.within(name).remove()
        self.join_in()

    def _write(self, name: str) -> Any:
        return open_write(self.folder.within(name), self.folder.within(f".{name}.{os.getpid()}"))

    def _tell_of_rejects(self, files: list[File]) -> int:
        mine = hashlib.sha256(self.folder.path.encode(errors="surrogateescape")).hexdigest()[:8]
        unfinished = self.rejects.beside(f".{mine}.tmp")  # the next run finds it again, if this one is killed
        self._write_job(rejects=absolute(self.rejects.url))  # from now on what lies there is of this job
        if not files:
            self.rejects.remove()
            unfinished.remove()
            return 0
        with open_write(self.rejects, unfinished) as stream:
            return copy(files, stream)


def rejected_rows(asked: Asked) -> list[dict[str, Any]]:
    """What is told of the rows of a chunk that have no result."""
    return [
        {
            "place": asked.chunk.place(row),
            ROW_NUMBER: asked.chunk.row_number(index),
            FILE: asked.chunk.source.path,
            "reason": result.reason,
            "row": row.fields,
        }
        for index, (row, result) in enumerate(zip(asked.chunk.rows, asked.results, strict=True))
        if isinstance(result, Rejected)
    ]


def read_schema(data: bytes) -> Any:
    """An Arrow schema out of its bytes."""
    import pyarrow

    return pyarrow.ipc.read_schema(pyarrow.py_buffer(data))
