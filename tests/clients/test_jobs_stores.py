"""Object stores that raise the errors of their libraries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from bertline.jobs.storage import absolute
from tests.clients.command import Run, fails


class NoCredentials(Exception):
    """Error like botocore's, which is not an OSError."""


class Store(MemoryFileSystem):
    """Store whose method of one name fails."""

    protocol = "store"
    failing = ""
    error: Exception = NoCredentials("Unable to\nlocate credentials")

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return MemoryFileSystem._strip_protocol(path.replace("store://", "memory://"))  # type: ignore[no-any-return]

    def __getattribute__(self, name: str) -> Any:
        if name == Store.failing:
            raise Store.error
        return super().__getattribute__(name)


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Store]]:
    """Return a store with one file, and change to an empty folder."""
    monkeypatch.setattr(Store, "error", Store.error)
    monkeypatch.chdir(tmp_path)
    fsspec.register_implementation("store", Store, clobber=True)
    Store().pipe_file("/jobs/in.txt", b"text\n")
    yield Store
    Store.failing = ""
    Store.store.clear()


@pytest.mark.parametrize(
    ("failing", "arguments", "message"),
    [
        ("info", ["-i", "store://jobs/in.txt"], "cannot read `store://jobs/in.txt`: "),
        ("open", ["-i", "store://jobs/in.txt"], "cannot read `store://jobs/in.txt`: "),
        ("exists", ["-i", "store://jobs/*.txt"], "cannot read `store://jobs/*.txt`: "),
        ("glob", ["-i", "store://jobs/*.txt"], "cannot read `store://jobs/*.txt`: "),
        ("exists", ["text", "-o", "store://jobs/out.jsonl"], "cannot read `store://jobs/out.jsonl"),
        ("isdir", ["text", "-o", "store://jobs/out.jsonl"], "cannot read `store://jobs/out.jsonl"),
        ("open", ["text", "-o", "store://jobs/out.jsonl"], "cannot write `store://jobs/out.jsonl"),
        ("open", ["text", "--rejects", "store://jobs/r.jsonl"], "cannot write `store://jobs/r.jsonl`: "),
    ],
)
def test_a_store_that_fails(run: Run, store: type[Store], failing: str, arguments: list[str], message: str) -> None:
    """The command names the file in one line that ends with the library's message."""
    store.failing = failing
    result = run("embed", *arguments)

    assert fails(result, message)
    assert result.err.endswith(": Unable to locate credentials\n")


@pytest.mark.parametrize(
    ("error", "why"), [(PermissionError("Forbidden"), "Forbidden"), (NoCredentials(), "NoCredentials")]
)
def test_errors_without_a_number_or_a_word(run: Run, store: type[Store], error: Exception, why: str) -> None:
    """An error of a library without a message is named by its class."""
    store.failing, store.error = "open", error

    assert fails(run("embed", "-i", "store://jobs/in.txt"), f"cannot read `store://jobs/in.txt`: {why}")


def test_a_store_that_cannot_be_reached(run: Run, dead_target: str) -> None:
    """The command reports a store that fails when it is named."""
    result = run("embed", "-i", f"ftp://{dead_target}/x.txt")

    assert fails(result, f"cannot use `ftp://{dead_target}/x.txt`: Connection refused")


def test_server_errors_are_not_store_errors(run: Run, store: type[Store], dead_target: str) -> None:
    """An error of the server is not reported as an error of the store of --rejects."""
    result = run("embed", "text", "--rejects", "store://jobs/r.jsonl", "-t", dead_target, "--patience", "0")

    assert fails(result, "no server is available")


def test_whole_paths_keep_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Absolute paths keep links, which may differ on another machine, and URLs stay unchanged."""
    (tmp_path / "release").mkdir()
    (tmp_path / "current").symlink_to("release")
    monkeypatch.chdir(tmp_path)

    assert absolute("current/ca.crt") == f"{tmp_path}/current/ca.crt"
    assert absolute("current/out/") == f"{tmp_path}/current/out/"
    assert absolute("memory://current/out/") == "memory://current/out/"
