"""Job directory: one part file a chunk, whole or absent; at the end the parts become the output.

    vectors.parquet                            output
    vectors.parquet.rejects.jsonl              rejected rows
    vectors.npy.description.json               model, space and options of an .npy file; Parquet has them as metadata
    vectors.parquet.job/                       job directory, removed at the end
        _job.json                              identity of the job; at the end also the file of rejected rows
        _lock                                  locked while a run works here
        part-00000-00000-1f2e3d4c5b6a.parquet  results of a chunk: file, chunk, digest of the rows
        _rejects-00000-00000.jsonl             number of truncated rows of that chunk, then its rejected rows, if any
        _SUCCESS                               an output folder is complete, with its totals

An output that is a folder (`vectors/`) is its own job directory, and stays.

A chunk is planned, then done (it has its part, and is not sent again), then joined. A run may be killed between any two
steps: as long as there is _job.json without _SUCCESS, the next run does the chunks without part and joins all of them.
_job.json goes first once the output is written, and last when a job starts again.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, BinaryIO

from bertline.jobs.rows import Chunk
from bertline.jobs.storage import (
    File,
    FileError,
    absolute,
    already_exists,
    file_errors,
    open_read,
    open_write,
)
from bertline.jobs.write import Writer, copy, json_line, print_error

JOB, SUCCESS, LOCK, REJECTS = "_job.json", "_SUCCESS", "_lock", "_rejects.jsonl"
PART = re.compile(r"part-(\d{5,})-(\d{5,})-([0-9a-f]{12})\.\w+")
CHUNK_REJECTS = re.compile(r"_rejects-(\d{5,})-(\d{5,})\.jsonl")
_UNFINISHED = re.compile(r"\.(part-|_).*\.\d+")
"""Files that a run was killed in writing."""


class StaleParts(FileError):
    """Input or model has changed since the parts were written."""


class State(Enum):
    """State of a job directory, seen from one job."""

    NEW = "no job, a complete folder, or leftovers"
    UNFINISHED = "this job; a run is at work or was interrupted"
    OTHER_JOB = "another job, unfinished; only --restart discards its parts"
    FOREIGN = "files that no job wrote; no run may touch them"


@dataclass(frozen=True)
class Totals:
    """Counts of a whole job, earlier runs included."""

    num_rows: int
    """Rows of the input, rejected ones included."""
    num_rejected: int
    num_truncated: int


# ---- names


def part_name(file: int, chunk: int, digest: str, suffix: str) -> str:
    """Return the name of a chunk's results."""
    return f"part-{file:05}-{chunk:05}-{digest}{suffix}"


def rejects_name(file: int, chunk: int) -> str:
    """Return the name of a chunk's rejected rows."""
    return f"_rejects-{file:05}-{chunk:05}.jsonl"


def numbered(names: Iterable[str], pattern: re.Pattern[str]) -> dict[tuple[int, int], re.Match[str]]:
    """Return the names of a pattern by (file, chunk), in the order of the rows: as text, 100000 comes before 99999."""
    found = {(int(match[1]), int(match[2])): match for name in names if (match := pattern.fullmatch(name))}
    return {key: found[key] for key in sorted(found)}


def is_job_file(name: str) -> bool:
    """Return True if a job wrote this file."""
    is_numbered = any(pattern.fullmatch(name) for pattern in (PART, CHUNK_REJECTS, _UNFINISHED))
    return is_numbered or name in {JOB, SUCCESS, LOCK, REJECTS}


def job_directory_of(output: File) -> File:
    """Return the job directory of an output."""
    return output if output.is_folder else output.beside(".job")


def rejects_of(output: File) -> File:
    """Return the default file of an output's rejected rows."""
    return output.within(REJECTS) if output.is_folder else output.beside(".rejects.jsonl")


@dataclass
class JobDirectory:
    """Parts of one output."""

    output: File
    writer: Writer
    identity: Mapping[str, Any]
    """Everything that the output depends on. Only runs with the same identity resume the job."""
    rejects: File
    """File for the rejected rows of all chunks, written at the end."""
    seen: dict[tuple[int, int], int] = field(default_factory=dict)
    """Number of rows of each (file, chunk) that this run has read; on a cluster, at the end, of all workers."""
    _names: frozenset[str] = frozenset()
    """Names in the directory when it was listed last."""
    _digests: dict[tuple[int, int], str] = field(default_factory=dict)
    """Digests of the chunks that had parts then, by (file, chunk)."""
    _lock: BinaryIO | None = None

    def __post_init__(self) -> None:
        self.identity = json.loads(json.dumps(self.identity))  # as it is read back

    @property
    def folder(self) -> File:
        """Folder of the parts."""
        return job_directory_of(self.output)

    # ---- the start

    def state(self) -> State:
        """Read the state from the files in the directory."""
        names = self.folder.names()
        if not all(map(is_job_file, names)):
            return State.FOREIGN
        if SUCCESS in names or JOB not in names:
            return State.NEW
        return State.OTHER_JOB if self._changed_fields(self._read_job()) else State.UNFINISHED

    @contextmanager
    def opened(self, *, force: bool, restart: bool) -> Iterator[None]:
        """Lock the directory, and start or resume the job.

        Args:
            force: replace an output, or a file of rejected rows, that exists.
            restart: discard the parts of an unfinished job.

        Raises:
            FileError: when something that exists would be lost, or another run is at work.
        """
        if self.state() is State.FOREIGN:
            foreign = min(name for name in self.folder.names() if not is_job_file(name))
            raise FileError(
                f"`{self.folder.url}` holds files that no job wrote (`{foreign}`, for example); choose another output"
            )
        with self._locked(), self._removed_if_empty():
            is_resumed = self._is_resumed(force=force, restart=restart)
            try:
                self._start(is_resumed=is_resumed)
                yield
            except BaseException as error:
                with suppress(FileError):  # the error that ended the run is reported, not that clean-up fails as well
                    if not numbered(self.folder.names(), PART):
                        self._clear()
                    elif not isinstance(error, StaleParts):
                        print_error(f"finished parts are in `{self.folder.url}`: run the same command again to resume")
                raise

    def _is_resumed(self, *, force: bool, restart: bool) -> bool:
        """Return whether the job goes on.

        Raises:
            FileError: when something that exists would be lost.
        """
        state, job = self.state(), self._read_job()
        if state is State.NEW and not force and self._has_output():
            raise already_exists(self.output)
        if state is State.OTHER_JOB and not restart:
            if not job:
                raise StaleParts(f"`{self.folder.within(JOB).url}` is damaged; start again with --restart")
            raise FileError(
                f"`{self.folder.url}` belongs to another job ({', '.join(self._changed_fields(job))} differ); "
                "run that job again to resume it, or start this one with --restart"
            )
        is_own = self._has_default_rejects or job.get("rejects") == absolute(self.rejects.url)
        if not (force or is_own) and self.rejects.exists():
            raise already_exists(self.rejects)
        return state is State.UNFINISHED and not restart

    def _start(self, *, is_resumed: bool) -> None:
        if not is_resumed or not numbered(self.folder.names(), PART):  # rejected rows without a part may be outdated
            self._clear()
            self._write_job()
        for name in filter(_UNFINISHED.fullmatch, self.folder.names()):
            self.folder.within(name).remove()
        self.refresh()

    def _has_output(self) -> bool:
        if self.output.is_folder:
            return any(name != LOCK and not _UNFINISHED.fullmatch(name) for name in self.folder.names())
        return self.output.exists()

    @property
    def _has_default_rejects(self) -> bool:
        return self.rejects.url == rejects_of(self.output).url

    def _changed_fields(self, job: Mapping[str, Any]) -> list[str]:
        return [name for name, value in self.identity.items() if job.get(name) != value]

    # ---- parts

    def has(self, chunk: Chunk) -> bool:
        """Return True if a chunk has its part.

        Raises:
            StaleParts: when the part was written for other rows.
        """
        key = (chunk.file, chunk.number)
        self.seen[key] = len(chunk.rows)
        if key in self._digests and self._digests[key] != chunk.digest:
            raise self._stale_parts_error(chunk.name)
        return key in self._digests

    def refresh(self) -> None:
        """List the parts again: other workers of the job may have written some."""
        self._names = frozenset(self.folder.names())
        self._digests = {key: match[3] for key, match in numbered(self._names, PART).items()}

    def write(self, chunk: Chunk) -> None:
        """Write the part of a chunk. Its rejected rows come first, so that a part is never there without them."""
        key = chunk.file, chunk.number
        with self._open_write(part_name(*key, chunk.digest, self.writer.suffix)) as stream:
            self.writer.write(chunk, stream)
            rejected = chunk.rejected_rows()
            if rejected or chunk.num_truncated:
                with self._open_write(rejects_name(*key)) as rejects:
                    rejects.writelines(map(json_line, [{"truncated": chunk.num_truncated}, *rejected]))
            elif rejects_name(*key) in self._names:  # left by a run that was killed before it wrote the part
                self.folder.within(rejects_name(*key)).remove()

    # ---- the end

    def finish(self) -> Totals:
        """Make the output from the parts, and return the counts.

        Raises:
            StaleParts: when there are parts of rows that no longer exist.
            FileError: when parts are missing.
        """
        names = self.folder.names()
        found = numbered(names, PART)
        if found.keys() - self.seen.keys():
            raise self._stale_parts_error("the input")
        if self.seen.keys() - found.keys():
            raise FileError(f"parts are missing in `{self.folder.url}`; run the same command again to write them")
        parts = [self.folder.within(match[0]) for match in found.values()]
        rejects = numbered(names, CHUNK_REJECTS)
        chunk_rejects = [self.folder.within(match[0]) for key, match in rejects.items() if key in found]
        totals = Totals(sum(self.seen.values()), *self._join_rejects(chunk_rejects))
        unsettled = self.writer.settle(parts)
        if not self.output.is_folder:
            with open_write(self.output, self._temporary("_whole")) as stream:
                self.writer.join(parts, stream)
            if self.writer.description:
                with open_write(self.output.beside(".description.json"), self._temporary("_description")) as stream:
                    stream.write(json_line(self.writer.description))
            self.folder.within(JOB).remove()
            self._clear()
            self._remove()
            return totals
        for part in unsettled:
            with self._open_write(part.name) as stream:
                self.writer.join([part], stream)
        counts = {"rows": totals.num_rows, "rejected": totals.num_rejected, "truncated": totals.num_truncated}
        with self._open_write(SUCCESS) as stream:
            stream.write(json_line(counts))
        return totals

    def _join_rejects(self, files: Sequence[File]) -> tuple[int, int]:
        """Join the rejected rows of all chunks; return the numbers of rejected and of truncated rows."""
        self._write_job(rejects=absolute(self.rejects.url))  # from now on the file there belongs to this job
        temporary = self._temporary(REJECTS) if self._has_default_rejects else None  # else another file system, perhaps
        num_rejected = num_truncated = 0
        with open_write(self.rejects, temporary) as stream:
            for file in files:
                with open_read(file) as (read, _):
                    num_truncated += json.loads(read.readline())["truncated"]
                    num_rejected += copy(read, stream)
        if not num_rejected:
            self.rejects.remove()
        return num_rejected, num_truncated

    def _clear(self) -> None:
        """Remove all files of jobs but the lock, in an order that leaves a valid state after each step: _SUCCESS before
        the parts that it confirms, parts before their rejected rows and identity."""
        order = {SUCCESS: 0, JOB: 3}
        names = self.folder.names()
        for name in sorted(names, key=lambda name: order.get(name, 1 if PART.fullmatch(name) else 2)):
            if is_job_file(name) and name != LOCK:
                self.folder.within(name).remove()

    def _remove(self) -> None:
        """Remove the directory. The lock is closed first: NFS keeps open files under another name."""
        if self._lock:
            self.folder.within(LOCK).remove()
            self._lock.close()
        self.folder.remove()

    # ---- files and the lock

    def _stale_parts_error(self, what: str) -> StaleParts:
        return StaleParts(f"{what} has changed since `{self.folder.url}` was started; start again with --restart")

    def _read_job(self) -> dict[str, Any]:
        """Read _job.json; empty if it is missing or damaged."""
        file = self.folder.within(JOB)
        try:
            job = json.loads(file.read()) if file.exists() else {}
        except (ValueError, RecursionError):
            return {}
        return job if isinstance(job, dict) else {}

    def _write_job(self, **more: str) -> None:
        with self._open_write(JOB) as stream:
            stream.write(json.dumps({**self.identity, **more}, indent=1).encode())

    def _open_write(self, name: str) -> Any:
        return open_write(self.folder.within(name), self._temporary(name))

    def _temporary(self, name: str) -> File:
        return self.folder.within(f".{name}.{os.getpid()}")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Make the directory, and lock it against a second run."""
        with file_errors(f"cannot write `{self.output.url}`", self.output):
            if self.folder.is_local:
                with suppress(FileExistsError):
                    os.mkdir(self.folder.path)  # but not its parents
                self._lock = open(os.path.join(self.folder.path, LOCK), "wb")  # noqa: SIM115
            else:
                self.folder.system.makedirs(self.folder.path, exist_ok=True)
        with self._lock or nullcontext():
            if self._lock and not self._is_free(self._lock):
                raise FileError(f"another run is at work in `{self.folder.url}`; wait until it ends")
            yield

    def _is_free(self, lock: BinaryIO) -> bool:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            print_error(f"the file system of `{self.folder.url}` has no locks: do not start a second run there")
            return True
        return bool(os.fstat(lock.fileno()).st_nlink)  # else a run that has just ended removed it

    @contextmanager
    def _removed_if_empty(self) -> Iterator[None]:
        """After an error, remove a directory without files, or with leftovers of a run that was killed at its end."""
        try:
            yield
        except BaseException:
            with suppress(FileError):
                names = set(self.folder.names())
                if not names - {LOCK} or (JOB not in names and not self.output.is_folder):
                    self._remove()
            raise
