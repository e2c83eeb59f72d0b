"""Job directory: one part file a chunk, whole or absent. A chunk that has its part is not sent again.

On disk a job goes through these states; a run may be killed between any two steps:

    new -> unfinished -> joined -> moved -> new          the output is a file
    new -> unfinished -> complete                        the output is a folder

What a run does with the state that it finds is the table ACTIONS.
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
from enum import Enum
from functools import cached_property
from itertools import takewhile
from typing import Any, BinaryIO

from bertline.jobs.layout import (
    JOB,
    LOCK,
    SCHEMA,
    SUCCESS,
    WHOLE,
    is_job_file,
    is_unfinished,
    job_directory_of,
    part_name,
    parts_in,
    rejects_in,
    rejects_name,
    rejects_of,
    truncated_in,
    truncated_name,
)
from bertline.jobs.read.rows import Chunk
from bertline.jobs.send import ChunkResults
from bertline.jobs.storage import File, FileError, absolute, already_exists, file_errors, make_folder, open_write
from bertline.jobs.write import ParquetWriter, Writer, copy, json_line

_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
"""Errors of file systems without locks, such as those of some clusters."""


class StaleParts(FileError):
    """Input or model has changed since the parts were written."""


class State(Enum):
    """State of a job directory, seen from one job."""

    NEW = "no job"
    UNFINISHED = "parts of this job; a run is at work or was interrupted"
    OTHER_JOB = "parts or joined results of another job"
    JOINED = "all results joined in one file, not moved to the output yet"
    MOVED = "output written; only the clean-up is missing"
    OTHER_MOVED = "output of another job written; only the clean-up is missing"
    COMPLETE = "output folder with all parts"
    FOREIGN = "files that no job wrote"


class Action(Enum):
    """First action of a run."""

    START = "remove what earlier runs left, and do all chunks"
    RESUME = "do the chunks that have no part"
    FINISH = "move the joined file to the output and clean up; send nothing"
    REFUSE_EXISTING = "fail: the output exists"
    REFUSE_OTHER = "fail: another job would lose its parts"
    REFUSE_FOREIGN = "fail: files would be lost that no job wrote"


ACTIONS: Mapping[State, tuple[Action, Action, Action, Action]] = {
    # option:            none                   none                    --restart              --restart
    # output exists*:    no                     yes                     no                     yes
    State.NEW: (Action.START, Action.REFUSE_EXISTING, Action.START, Action.REFUSE_EXISTING),
    State.UNFINISHED: (Action.RESUME, Action.RESUME, Action.START, Action.START),
    State.OTHER_JOB: (Action.REFUSE_OTHER, Action.REFUSE_OTHER, Action.START, Action.START),
    State.JOINED: (Action.FINISH, Action.FINISH, Action.START, Action.START),
    State.MOVED: (Action.START, Action.FINISH, Action.START, Action.REFUSE_EXISTING),
    State.OTHER_MOVED: (Action.START, Action.REFUSE_EXISTING, Action.START, Action.REFUSE_EXISTING),
    State.COMPLETE: (Action.START, Action.REFUSE_EXISTING, Action.START, Action.REFUSE_EXISTING),
    State.FOREIGN: (Action.REFUSE_FOREIGN,) * 4,
}
"""First action of a run for each state. (*) With --force, an output that exists counts as absent."""


def action_for(state: State, *, output_exists: bool, force: bool, restart: bool) -> Action:
    """Look up the first action of a run."""
    return ACTIONS[state][2 * restart + (output_exists and not force)]


@dataclass(frozen=True)
class Totals:
    """Counts of a whole job, earlier runs included."""

    num_rows: int
    """Rows of the input, rejected ones included."""
    num_rejected: int
    num_truncated: int

    def to_json(self) -> dict[str, int]:
        """Return the fields of `_SUCCESS`."""
        return {"rows": self.num_rows, "rejected": self.num_rejected, "truncated": self.num_truncated}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Totals:
        """Read the fields of `_SUCCESS`; version 0.1.0 wrote `rejected` only."""
        return cls(values.get("rows", 0), values["rejected"], values.get("truncated", 0))


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
    _digests: dict[tuple[int, int], str] = field(default_factory=dict)
    """Digests of the chunks that have parts, by (file, chunk)."""
    _leftovers: frozenset[str] = frozenset()
    """Names in the directory when it was listed last."""
    _totals: Totals | None = None
    _lock: BinaryIO | None = None
    _is_made: bool = False
    """True if this run made the directory."""
    _is_started: bool = False
    """True if the directory belongs to this job."""

    @property
    def folder(self) -> File:
        """Folder of the parts."""
        return job_directory_of(self.output)

    @property
    def is_folder(self) -> bool:
        """True if the output is a folder of parts."""
        return self.output.url.endswith("/")

    @property
    def totals(self) -> Totals:
        """Counts of the whole job; known at the end."""
        assert self._totals
        return self._totals

    @property
    def has_columns(self) -> bool:
        """True if the columns of the output are known, or its format has none."""
        return not isinstance(self.writer, ParquetWriter) or self.writer.schema is not None

    @cached_property
    def _metadata(self) -> dict[str, Any]:
        """Identity for the metadata of files. A digest replaces the names of the inputs, which may be thousands."""
        metadata = dict(self.identity)
        inputs = metadata.pop("inputs")
        digest = hashlib.sha256(json.dumps(inputs).encode()).hexdigest()
        return {**metadata, "num_inputs": len(inputs), "inputs_digest": digest}

    # ---- states

    def state(self) -> State:
        """Read the state from the files in the directory."""
        names = set(self.folder.names())
        if not all(map(is_job_file, names)):
            return State.FOREIGN
        if SUCCESS in names:
            return self._finished_state(names)
        if JOB not in names:
            return State.NEW
        return State.OTHER_JOB if self._changed_fields(self._found_identity(JOB)) else State.UNFINISHED

    def _finished_state(self, names: set[str]) -> State:
        if self.is_folder:
            return State.COMPLETE
        is_same = not self._changed_fields(self._found_identity(SUCCESS))
        if WHOLE in names:
            return State.JOINED if is_same else State.OTHER_JOB
        return State.MOVED if is_same else State.OTHER_MOVED

    @contextmanager
    def opened(self, *, force: bool, restart: bool) -> Iterator[bool]:
        """Lock the directory, and start or resume the job.

        Args:
            force: replace an output, or a file of rejected rows, that exists.
            restart: discard the parts of an unfinished job.

        Yields:
            False if an earlier run did all but its last steps, which are done then.

        Raises:
            FileError: when something that exists would be lost, or another run is at work.
        """
        try:
            yield self._open(force=force, restart=restart)
        except BaseException as error:
            self._clean_up_after_error(can_resume=not isinstance(error, StaleParts))
            raise
        finally:
            if self._lock:
                self._lock.close()

    def _open(self, *, force: bool, restart: bool) -> bool:
        self._refuse_special_output()
        options = {"force": force, "restart": restart}
        action = self._action(**options)
        if action in (Action.REFUSE_FOREIGN, Action.REFUSE_OTHER):
            self._refuse(action)
        if action is Action.REFUSE_EXISTING and not self.folder.within(SUCCESS).exists():
            self._refuse(action)  # before the directory is made
        self._acquire()
        action = self._action(**options)  # another run may have ended meanwhile
        if action is Action.FINISH:
            self._totals = Totals.from_json(self._read(SUCCESS))
            self._move()
            return False
        if action not in (Action.START, Action.RESUME):
            self._refuse(action)
        if not force:
            self._refuse_existing_rejects()
        if action is Action.START or not parts_in(self.folder.names()):  # columns without parts may be outdated
            self._clear()
            self._write_job()
        self._is_started = True
        self._remove_unfinished()
        self.refresh()
        return True

    def _action(self, *, force: bool, restart: bool) -> Action:
        return action_for(self.state(), output_exists=self._output_exists(), force=force, restart=restart)

    def _refuse(self, action: Action) -> None:
        if action is Action.REFUSE_OTHER:
            name = SUCCESS if self.folder.within(SUCCESS).exists() else JOB
            found = self._found_identity(name)
            if not found:
                raise self._damaged_error(name)
            raise FileError(
                f"`{self.folder.url}` belongs to another job ({', '.join(self._changed_fields(found))} differ); "
                "run that job again to resume it, or start this one with --restart"
            )
        if action is Action.REFUSE_FOREIGN:
            foreign = min(name for name in self.folder.names() if not is_job_file(name))
            raise FileError(
                f"`{self.folder.url}` holds files that no job wrote (`{foreign}`, for example); choose another output"
            )
        if not self.is_folder and self._lock:
            self._remove()  # left by a job that was killed during its clean-up
        raise already_exists(self.output)

    def _refuse_special_output(self) -> None:
        if self.is_folder or not self.output.exists():
            return
        if self.output.is_local and not os.path.isfile(self.output.path):
            raise FileError(f"not a regular file: `{self.output.url}`; end --output with / to write a folder of parts")

    def _refuse_existing_rejects(self) -> None:
        """Refuse a file given with --rejects that exists, unless this job wrote it."""
        if self.rejects.url == rejects_of(self.output).url or not self.rejects.exists():
            return
        job = self._read(JOB) if self.folder.within(JOB).exists() else {}
        if job.get("rejects") != absolute(self.rejects.url):
            raise already_exists(self.rejects)

    def _output_exists(self) -> bool:
        if self.is_folder:
            return any(name not in (JOB, LOCK) and not is_unfinished(name) for name in self.output.names())
        return self.output.exists()

    def _changed_fields(self, before: Mapping[str, Any]) -> list[str]:
        return [name for name, value in self.identity.items() if before.get(name) != json.loads(json.dumps(value))]

    # ---- parts

    def has(self, chunk: Chunk) -> bool:
        """Return True if a chunk has its part.

        Raises:
            StaleParts: when the part was written for other rows.
        """
        key = (chunk.file, chunk.number)
        self.seen[key] = len(chunk.rows)
        if key in self._digests and self._digests[key] != chunk.digest:
            raise self._stale_parts_error(chunk.source.name)
        return key in self._digests

    def refresh(self) -> None:
        """List the parts again, and read the columns: other workers of the job may have written some."""
        self._leftovers = frozenset(self.folder.names())
        self._digests |= {key: digest for key, (_, digest) in parts_in(self._leftovers).items()}
        if isinstance(self.writer, ParquetWriter) and SCHEMA in self._leftovers:
            self.writer.schema = self._read_schema()

    def write(self, results: ChunkResults) -> None:
        """Write the part of a chunk. Its rejected rows come first, so that a part is never there without them."""
        self.prepare(results)
        key = results.chunk.file, results.chunk.number
        self._write_or_remove(rejects_name(*key), b"".join(map(json_line, results.rejected_rows())))
        truncated = json_line({"truncated": results.num_truncated}) if results.num_truncated else b""
        self._write_or_remove(truncated_name(*key), truncated)
        with self._open_write(part_name(*key, results.chunk.digest, self.writer.suffix)) as stream:
            self.writer.write(results, stream, self._metadata)
        self._digests[key] = results.chunk.digest

    def prepare(self, results: ChunkResults) -> None:
        """Reject rows that the format cannot hold. The first results decide on the columns of all parts."""
        had_columns = self.has_columns
        self.writer.prepare(results)
        if isinstance(self.writer, ParquetWriter) and self.has_columns and not had_columns:
            with self._open_write(SCHEMA) as stream:
                stream.write(self.writer.schema.serialize().to_pybytes())

    def _write_or_remove(self, name: str, data: bytes) -> None:
        """Write a file; without data, remove what a run left that was killed before it wrote the part."""
        if data:
            with self._open_write(name) as stream:
                stream.write(data)
        elif name in self._leftovers:
            self.folder.within(name).remove()

    # ---- the end

    def finish(self) -> None:
        """Make the output from the parts.

        Raises:
            StaleParts: when there are parts of rows that no longer exist.
            FileError: when parts are missing.
        """
        names = self.folder.names()
        found = parts_in(names)
        if found.keys() - self.seen.keys():
            raise self._stale_parts_error("the input")
        if self.seen.keys() - found.keys():
            raise FileError(f"parts are missing in `{self.folder.url}`; run the same command again to write them")
        parts = [self.folder.within(name) for name, _ in found.values()]
        truncated = sum(self._num_truncated(name) for name in truncated_in(names))
        rejected = self._write_rejects([self.folder.within(name) for name in rejects_in(names)])
        self._totals = Totals(sum(self.seen.values()), rejected, truncated)
        if self.is_folder:
            self._complete_columns(parts)
        else:
            with self._open_write(WHOLE) as stream:
                self.writer.join(parts, stream, self._metadata)
        self._write_success()
        if not self.is_folder:
            self._move()

    def _write_success(self) -> None:
        job = {} if self.is_folder else {"job": self.identity}
        with self._open_write(SUCCESS) as stream:
            stream.write(json_line({**self.totals.to_json(), **job}))

    def _complete_columns(self, parts: list[File]) -> None:
        """Give all parts the same columns. Parts that lack some come before the first part with rows."""
        if isinstance(self.writer, ParquetWriter):
            for part in takewhile(self.writer.is_empty, parts):
                if self.writer.lacks_columns(part):
                    with self._open_write(part.name) as stream:
                        self.writer.join([], stream, self._metadata)

    def _move(self) -> None:
        """Move the joined file to the output, and remove the directory: _SUCCESS and the lock go last."""
        if (whole := self.folder.within(WHOLE)).exists():
            whole.move(self.output)
        for name in self.folder.names():
            if name not in (SUCCESS, LOCK):
                self.folder.within(name).remove()
        self._remove()

    def _write_rejects(self, files: list[File]) -> int:
        """Join the rejected rows of all chunks; return their number."""
        mark = hashlib.sha256(self.folder.path.encode(errors="surrogateescape")).hexdigest()[:8]
        unfinished = self.rejects.beside(f".{mark}.tmp")  # the next run finds and replaces it if this one is killed
        self._write_job(rejects=absolute(self.rejects.url))  # from now on the file there belongs to this job
        if not files:
            self.rejects.remove()
            unfinished.remove()
            return 0
        with open_write(self.rejects, unfinished) as stream:
            return copy(files, stream)

    def _clean_up_after_error(self, *, can_resume: bool) -> None:
        """Print how to resume; without any part, remove the directory."""
        with suppress(FileError):  # the error that ended the run is reported, not that clean-up fails as well
            if self._is_started and not parts_in(self.folder.names()):
                self._clear()
            elif self._is_started and can_resume:
                print(
                    f"bertline: finished parts are in `{self.folder.url}`: run the same command again to resume",
                    file=sys.stderr,
                )
            if self._is_made and not set(self.folder.names()) - {LOCK}:
                self._remove()

    def _clear(self) -> None:
        """Remove all files of jobs but the lock, in an order that leaves a valid state after each step.

        Parts go before their rejected rows, columns and identity (_job.json). _SUCCESS goes before the results that it
        confirms. After the output was moved, _SUCCESS goes last: until then it shows that the clean-up is not done.
        """
        names = self.folder.names()
        is_moved = not self.is_folder and WHOLE not in names
        parts = {name: 1 for name, _ in parts_in(names).values()}
        order = {SUCCESS: 4 if is_moved else 0, **parts, JOB: 3}
        for name in sorted(names, key=lambda name: order.get(name, 2)):
            if is_job_file(name) and name != LOCK:
                self.folder.within(name).remove()

    def _remove(self) -> None:
        """Remove the directory. The lock is closed first: NFS keeps open files under another name."""
        if self._lock:
            self.folder.within(LOCK).remove()
            self._lock.close()
        self.folder.remove()

    def _remove_unfinished(self) -> None:
        for name in filter(is_unfinished, self.folder.names()):
            self.folder.within(name).remove()

    # ---- files and the lock

    def _stale_parts_error(self, what: str) -> StaleParts:
        return StaleParts(f"{what} has changed since `{self.folder.url}` was started; start again with --restart")

    def _damaged_error(self, name: str) -> FileError:
        return StaleParts(f"`{self.folder.within(name).url}` is damaged; start again with --restart")

    def _read(self, name: str) -> dict[str, Any]:
        """Read a JSON object; empty if the file is damaged."""
        try:
            values = json.loads(self.folder.within(name).read())
        except (ValueError, RecursionError):
            return {}
        return values if isinstance(values, dict) else {}

    def _found_identity(self, name: str) -> dict[str, Any]:
        """Read the identity of the job that wrote _job.json or _SUCCESS; empty if the file is damaged."""
        found = self._read(name)
        identity = found.get("job") if name == SUCCESS else found
        return identity if isinstance(identity, dict) else {}

    def _num_truncated(self, name: str) -> int:
        number = self._read(name).get("truncated")
        if not isinstance(number, int):
            raise self._damaged_error(name)
        return number

    def _read_schema(self) -> Any:
        import pyarrow

        try:
            return pyarrow.ipc.read_schema(pyarrow.py_buffer(self.folder.within(SCHEMA).read()))
        except (OSError, ValueError) as error:
            raise self._damaged_error(SCHEMA) from error

    def _write_job(self, **more: str) -> None:
        with self._open_write(JOB) as stream:
            stream.write(json.dumps({**self.identity, **more}, indent=1).encode())

    def _open_write(self, name: str) -> Any:
        return open_write(self.folder.within(name), self.folder.within(f".{name}.{os.getpid()}"))

    def _acquire(self) -> None:
        """Make the directory, and lock it against a second run."""
        with file_errors(f"cannot write `{self.output.url}`", self.output):
            self._is_made = not self.folder.exists()
            make_folder(self.folder)
            if not self.folder.is_local:
                return
            self._lock = open(os.path.join(self.folder.path, LOCK), "wb")  # noqa: SIM115
            is_locked = self._is_locked(self._lock)
        if is_locked:
            self._is_made = False
            raise FileError(f"another run is at work in `{self.folder.url}`; wait until it ends")

    def _is_locked(self, lock: BinaryIO) -> bool:
        """Lock the file; return True if another run holds the lock."""
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            print(
                f"bertline: the file system of `{self.folder.url}` has no locks: do not start a second run there",
                file=sys.stderr,
            )
            return False
        return not os.fstat(lock.fileno()).st_nlink  # the other run has just ended, and removed its directory
