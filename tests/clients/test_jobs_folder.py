"""Existing files that a job may or may not replace, and jobs that are killed in their last steps."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from bertline.jobs.directory import CHUNK_REJECTS, PART, is_job_file, numbered, part_name, rejects_name
from bertline.jobs.storage import File
from bertline.testing import FakeServer
from tests.clients.command import Run, fails, interrupt, succeeds


class Killed(BaseException):
    """Error that stands for the end of the process."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with a file of 1,000 rows; cut chunks of 256."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("bertline.jobs.rows.CHUNK_ROWS", 256)
    (tmp_path / "in.txt").write_text("".join(f"text {number}\n" for number in range(1000)))
    return tmp_path


@pytest.mark.parametrize("options", [[], ["--restart"]])
@pytest.mark.parametrize("named_before", [False, True])
def test_a_resumed_job_replaces_no_file(
    run: Run, server: FakeServer, folder: Path, options: list[str], named_before: bool
) -> None:
    """A resumed job replaces no file at the path of --rejects, whether --rejects named it before or not."""
    rejects = ["--rejects", "notes.txt"]
    interrupt(run, server, "embed", "-i", "in.txt", "-o", "out.jsonl", *(rejects if named_before else []))
    (folder / "notes.txt").write_text("mine")
    before = sorted((folder / "out.jsonl.job").glob("part-*"))
    refused = run("embed", "-i", "in.txt", "-o", "out.jsonl", *rejects, *options)

    assert fails(refused, "already exists: `notes.txt`")
    assert (folder / "notes.txt").read_text() == "mine"
    assert sorted((folder / "out.jsonl.job").glob("part-*")) == before != []
    assert run("embed", "-i", "in.txt", "-o", "out.jsonl", *rejects, "--force").code == 0


@pytest.mark.parametrize("options", [[], ["--restart"]])
def test_a_resumed_job_replaces_its_own_files(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    """A job resumes after a kill between rejected rows and output, also if --rejects names another file."""
    (folder / "in.txt").write_text("text\nrefuse\n")
    move = File.move

    def killed(self: File, target: File) -> None:
        if target.name == "out.jsonl":
            raise Killed
        move(self, target)

    for rejects in ("first.jsonl", "r.jsonl"):
        with monkeypatch.context() as patch:
            patch.setattr(File, "move", killed)
            with pytest.raises(Killed):
                run("embed", "-i", "in.txt", "-o", "out.jsonl", "--rejects", rejects)

    assert (folder / "r.jsonl").exists()
    assert run("embed", "-i", "in.txt", "-o", "out.jsonl", "--rejects", "r.jsonl", *options).code == 3
    assert len((folder / "r.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "output"), [(["-i", "in.txt", "-i", "typo.txt"], "out/"), (["-i", "in.parquet"], "out.jsonl")]
)
def test_parts_outlast_a_mistake_in_the_input(
    run: Run, server: FakeServer, folder: Path, arguments: list[str], output: str
) -> None:
    """Parts and output stay if the input is missing or unreadable."""
    (folder / "in.parquet").write_text("not parquet")
    interrupt(run, server, "embed", "-i", "in.txt", "-o", output)
    if output == "out/":
        run("embed", "-i", "in.txt", "-o", output)
    parts = folder / output if output == "out/" else folder / "out.jsonl.job"
    before = sorted(parts.iterdir())

    assert fails(run("embed", *arguments, "-o", output, "--force", "--restart"), f"cannot read `{arguments[-1]}`: ")
    assert sorted(parts.iterdir()) == before != []


@pytest.mark.parametrize(("model", "code"), [("fake", 0), ("none", 1)])
def test_the_lock_is_closed_before_its_folder_goes(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, model: str, code: int
) -> None:
    """The job closes its lock before it removes the folder, because NFS keeps open files."""
    remove, open_there = File.remove, []

    def removed(self: File) -> None:
        if os.path.isdir(self.path):
            files = (os.path.realpath(path) for path in Path("/proc/self/fd").iterdir())
            open_there.append([path for path in files if path.startswith(self.path)])
        remove(self)

    monkeypatch.setattr(File, "remove", removed)

    assert run("embed", "-i", "in.txt", "-o", "out.jsonl", "--model", model).code == code
    assert open_there == [[]]
    assert not (folder / "out.jsonl.job").exists()


def test_a_file_system_without_locks(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job works with a warning if the file system has no locks."""

    def fail(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("bertline.jobs.directory.fcntl.flock", fail)
    result = run("embed", "-i", "in.txt", "-o", "out.jsonl")
    warning, summary = result.err.splitlines()

    assert warning == "bertline: the file system of `out.jsonl.job` has no locks: do not start a second run there"
    assert succeeds(result._replace(err=summary))


def test_names_of_many_parts_are_in_the_order_of_the_rows() -> None:
    """Parts are sorted by number, also beyond five digits."""
    keys = [(99_999, 0), (99_999, 99_999), (99_999, 100_000), (100_000, 0)]
    parts = [part_name(*key, "0" * 12, ".jsonl") for key in keys]
    rejects = [rejects_name(*key) for key in keys]

    assert list(numbered(reversed(parts), PART)) == keys
    assert [match[0] for match in numbered(reversed(rejects), CHUNK_REJECTS).values()] == rejects
    assert all(is_job_file(name) for name in [*parts, *rejects, f".{parts[0]}.17"])
    assert not any(map(is_job_file, ["part.jsonl", ".hidden", "_rejects.txt", "data-00000.parquet"]))
