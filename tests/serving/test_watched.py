import logging
import os

import pytest

from serving import watched
from serving.watched import TOKENS, Watched, failing


@pytest.fixture
def path(tmp_path, monkeypatch):
    """A file that is looked at each time."""
    monkeypatch.setattr(watched, "CHECK_S", 0)
    path = tmp_path / "file"
    path.write_text("old")
    return path


def test_what_could_not_be_read_is_read_once_it_can_be(path, caplog):
    """Who mends the permissions of a file changes nothing in it; until then the error is logged once."""
    denied = False

    def read():
        if denied:
            raise PermissionError(13, "Permission denied", str(path))
        return path.read_text()

    files = Watched(TOKENS, [path], read)
    path.write_text("newer")
    denied = True
    assert [files.current() for _ in range(3)] == ["old"] * 3
    assert files.is_failing
    assert failing()[TOKENS]
    denied = False

    assert files.current() == "newer"
    assert not files.is_failing
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert errors == [f"what was read before stays in use: cannot read `{path}`: permission denied"]


def test_a_file_of_the_same_size_and_time_is_read_again(path):
    """Tools that copy files keep their times."""
    files, before = Watched(TOKENS, [path], path.read_text), path.stat()
    path.write_text("new")
    while path.stat().st_ctime_ns == before.st_ctime_ns:  # the clock of a file system is coarse
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns

    assert files.current() == "new"
