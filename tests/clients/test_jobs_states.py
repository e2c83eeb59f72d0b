"""States of a job directory: whatever happens to runs, in the end the output is that of an uninterrupted run."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from bertline.jobs import rows as rows_module
from bertline.jobs.directory import JobDirectory, StaleParts, State, Totals, rejects_of
from bertline.jobs.parquet import ParquetWriter
from bertline.jobs.rows import ALL_COLUMNS, Chunk, Rejection
from bertline.jobs.sources import Format, Source, chunks_of
from bertline.jobs.storage import File, FileError, file_of
from bertline.jobs.write import ROW_NUMBER, JsonlWriter, PassThrough, Writer
from bertline.operations import OPERATIONS
from bertline.operations.embed import VECTOR

INPUTS = {
    "first": ["refuse", "refuse", "one", "two", "refuse", "long four", "five"],
    "second": ["refuse", "refuse", "one", "two", "other", "refuse", "long six"],
    "shorter": ["refuse", "refuse", "one", "two"],
}
"""Contents of the input file: chunks of two rows, some rejected, at first all of them, some truncated."""
NEXT = {
    State.NEW: {State.NEW, State.UNFINISHED, State.OTHER_JOB},  # --force begins to remove a folder of another job
    State.UNFINISHED: {State.NEW, State.UNFINISHED},
    State.OTHER_JOB: {State.NEW, State.UNFINISHED, State.OTHER_JOB},
    State.FOREIGN: {State.FOREIGN},
}
"""States that a run may leave behind, by the state that it found."""


class Killed(BaseException):
    """Error that stands for the end of the process."""


@dataclass
class Disk:
    """Counter of the steps that change files; kills the process before one of them."""

    steps_left: int = 10**9

    def step(self) -> None:
        self.steps_left -= 1
        if self.steps_left < 0:  # later steps fail as well: a dead process does not clean up
            raise Killed


DISK = Disk()


@contextmanager
def small_chunks_and_kills() -> Iterator[None]:
    """Make chunks of two rows, and count the steps of File."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows_module, "CHUNK_ROWS", 2)
        patch.setattr("os.fsync", lambda file: None)  # takes long, and the machine does not fail
        for name in ("move", "remove"):
            patch.setattr(File, name, _counted(getattr(File, name)))
        yield


def _counted(method: Callable[..., None]) -> Callable[..., None]:
    def counted(self: File, *arguments: File) -> None:
        DISK.step()
        method(self, *arguments)

    return counted


def directory_of(folder: Path, output: str, option: str) -> JobDirectory:
    """Return the directory of a job; another `option` makes it another job."""
    operation = OPERATIONS["embed"]
    pass_through = PassThrough(ALL_COLUMNS, [VECTOR], [ROW_NUMBER])
    is_jsonl = output.endswith("jsonl")
    writer: Writer = (
        JsonlWriter(operation, pass_through)
        if is_jsonl
        else ParquetWriter(operation, operation.types, pass_through, 2, "float32", {})
    )
    file = file_of(f"{folder}/{output}")
    return JobDirectory(file, writer, {"option": option, "inputs": ["in.txt"]}, rejects_of(file))


def answered(chunk: Chunk, option: str) -> Chunk:
    """Give a chunk the results that a server would give: none for `refuse`; texts with `long` are truncated."""
    texts = [row.fields["text"] for row in chunk.rows]
    chunk.results = [
        Rejection("refused") if text == "refuse" else np.float32([len(text), len(option)]) for text in texts
    ]
    chunk.num_truncated = sum("long" in text for text in texts)
    return chunk


def do_job(folder: Path, output: str, option: str, *, force: bool = False, restart: bool = False) -> Totals:
    """Run a job like `jobs.run`, without a server."""
    directory = directory_of(folder, output, option)
    source = Source(file_of(f"{folder}/in.txt"), Format.text)
    with directory.opened(force=force, restart=restart):
        for chunk in chunks_of(source, 0, ["text"], ["text"]):
            if not directory.has(chunk):
                directory.write(answered(chunk, option))
        return directory.finish()


def write_input(folder: Path, content: str) -> None:
    (folder / "in.txt").write_text("".join(f"{text}\n" for text in INPUTS[content]))


def files_of(folder: Path) -> dict[str, bytes]:
    """Return all files but the input and the lock."""
    return {
        str(path.relative_to(folder)): path.read_bytes().replace(str(folder).encode(), b"")
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ("in.txt", "_lock")
    }


@cache
def expected(output: str, option: str, content: str) -> tuple[dict[str, bytes], Totals]:
    """Return the files and totals of an uninterrupted run."""
    folder = Path(tempfile.mkdtemp())
    try:
        write_input(folder, content)
        totals = do_job(folder, output, option)
        return files_of(folder), totals
    finally:
        shutil.rmtree(folder)


class JobDirectoryMachine(RuleBasedStateMachine):
    """State machine of two jobs with the same output: runs are killed, resumed, forced and restarted, with changing
    input."""

    @initialize(output=st.sampled_from(["out.jsonl", "out.parquet", "out/"]))
    def start(self, output: str) -> None:
        """Start with an empty folder."""
        self.patches = small_chunks_and_kills()
        self.patches.__enter__()
        self.folder, self.output, self.content = Path(tempfile.mkdtemp()), output, "first"
        write_input(self.folder, self.content)

    def teardown(self) -> None:
        """End with a run that starts again: it has to give what an uninterrupted run gives."""
        if hasattr(self, "folder"):
            DISK.steps_left = 10**9
            if self.state("a") is not State.FOREIGN:
                totals = do_job(self.folder, self.output, "a", force=True, restart=True)
                assert (files_of(self.folder), totals) == expected(self.output, "a", self.content)
            shutil.rmtree(self.folder)
            self.patches.__exit__(None, None, None)

    def state(self, option: str) -> State:
        """Return the state as a job sees it."""
        return directory_of(self.folder, self.output, option).state()

    @rule(
        option=st.sampled_from(["a", "b"]),
        num_steps=st.one_of(st.just(10**9), st.integers(0, 30)),
        force=st.booleans(),
        restart=st.booleans(),
    )
    def run_job(self, option: str, num_steps: int, force: bool, restart: bool) -> None:
        """Run a job, killed before one of its steps or not."""
        found, before = self.state(option), files_of(self.folder)
        exists = any(not name.startswith(f"{self.output}.") and not name.endswith(".tmp") for name in before)
        is_refused = found is State.NEW and exists and not force
        is_other = found is State.OTHER_JOB and not restart
        DISK.steps_left = num_steps
        outcome: Any
        try:
            outcome = do_job(self.folder, self.output, option, force=force, restart=restart)
        except (FileError, Killed) as error:
            outcome = error
        finally:
            DISK.steps_left = 10**9

        assert self.state(option) in NEXT[found]
        if isinstance(outcome, Killed):
            return
        if is_other or is_refused:
            assert isinstance(outcome, FileError)
            kept = {name: data for name, data in before.items() if is_other or ".job/" not in name}
            assert kept.items() <= files_of(self.folder).items()
        elif isinstance(outcome, StaleParts):
            assert found is State.UNFINISHED
            assert not restart
        else:
            assert outcome == expected(self.output, option, self.content)[1]
            assert files_of(self.folder) == expected(self.output, option, self.content)[0]

    @rule(content=st.sampled_from(sorted(INPUTS)))
    def change_input(self, content: str) -> None:
        """Replace the rows of the input."""
        self.content = content
        write_input(self.folder, content)

    @precondition(lambda self: not self.output.endswith("/"))
    @rule()
    def remove_output(self) -> None:
        """Remove the output, but not the job directory."""
        assume((self.folder / self.output).exists())
        (self.folder / self.output).unlink()

    @rule()
    def add_and_remove_a_foreign_file(self) -> None:
        """Refuse every run, without any change, while a file of someone else is in the directory."""
        place = Path(directory_of(self.folder, self.output, "a").folder.path)
        assume(place.exists())
        (place / "notes").write_text("mine")
        before = files_of(self.folder)
        for force in (False, True):
            for restart in (False, True):
                with pytest.raises(FileError, match="holds files that no job wrote"):
                    do_job(self.folder, self.output, "a", force=force, restart=restart)
        assert files_of(self.folder) == before
        (place / "notes").unlink()

    @invariant()
    def complete_outputs_are_whole(self) -> None:
        """An output file never holds a part of the rows; a folder with _SUCCESS has all parts."""
        if not hasattr(self, "folder"):
            return
        path = self.folder / self.output
        if self.output == "out.jsonl" and path.exists():
            wholes = [expected(self.output, option, content)[0][self.output] for option in "ab" for content in INPUTS]
            assert path.read_bytes() in wholes


JobDirectoryMachine.TestCase.settings = settings(max_examples=10, stateful_step_count=8, deadline=None)
TestJobDirectory = JobDirectoryMachine.TestCase


@pytest.mark.slow
def test_long_histories() -> None:
    """Many and longer sequences of runs, crashes and changes keep the rules, too."""
    run_state_machine_as_test(
        JobDirectoryMachine, settings=settings(max_examples=100, stateful_step_count=12, deadline=None)
    )


@pytest.mark.parametrize("exists", [False, True], ids=["new", "replaced"])
@pytest.mark.parametrize("output", ["out.jsonl", "out.parquet", "out/"])
def test_killed_at_every_step(tmp_path: Path, output: str, exists: bool) -> None:
    """A run that is killed before any step, also while it removes an earlier output, resumes without loss."""
    with small_chunks_and_kills():
        wanted, is_killed, num_steps = expected(output, "a", "first"), True, 0
        while is_killed:
            folder = tmp_path / str(num_steps)
            folder.mkdir()
            write_input(folder, "first")
            if exists:
                do_job(folder, output, "a")
            DISK.steps_left, is_killed = num_steps, False
            with suppress(Killed):
                is_killed = True
                do_job(folder, output, "a", force=exists)
                is_killed = False
            DISK.steps_left = 10**9
            if is_killed:
                is_whole = (folder / output).is_file() or (folder / output / "_SUCCESS").exists()
                assert (do_job(folder, output, "a", force=is_whole), files_of(folder)) == wanted[::-1]
            num_steps += 1

    assert num_steps > 8


@pytest.mark.parametrize("content", ["", "null", '{"job": 3}', "\udcff", "[" * 100_000])
@pytest.mark.parametrize("output", ["out.jsonl", "out/"])
def test_damaged_files_of_a_job(tmp_path: Path, output: str, content: str) -> None:
    """A damaged file in the job directory is an error that asks for --restart, which then works."""
    with small_chunks_and_kills():
        wanted = expected(output, "a", "first")
        write_input(tmp_path, "first")
        kill_after_first_part(tmp_path, output)
        directory = directory_of(tmp_path, output, "a").folder
        (Path(directory.path) / "_job.json").write_text(content, errors="surrogateescape")

        with pytest.raises(FileError) as caught:
            do_job(tmp_path, output, "a")
        if content != '{"job": 3}':
            assert str(caught.value) == f"`{directory.within('_job.json').url}` is damaged; start again with --restart"
        assert (do_job(tmp_path, output, "a", restart=True), files_of(tmp_path)) == wanted[::-1]


def kill_after_first_part(folder: Path, output: str) -> None:
    """Write the first part of a job only."""
    directory = directory_of(folder, output, "a")
    source = Source(file_of(f"{folder}/in.txt"), Format.text)
    with suppress(Killed), directory.opened(force=False, restart=False):
        directory.write(answered(next(chunks_of(source, 0, ["text"], ["text"])), "a"))
        raise Killed
