import os
import threading

import pytest

from serving.core import credentials
from serving.core.credentials import TOKENS, FileWatcher, failing, read_tokens
from tests.serving.reliability import errors_of, wait_until


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    return path


def test_unreadable_file_is_read_when_readable(path, caplog):
    """An unreadable file is logged once, and read when its permissions are corrected."""
    denied = False

    def read():
        if denied:
            raise PermissionError(13, "Permission denied", str(path))
        return path.read_text()

    files = FileWatcher(TOKENS, [path], read)
    path.write_text("newer")
    denied = True
    for _ in range(3):
        files.check()
        assert files.current() == "old"
    assert files.is_failing
    assert failing()[TOKENS]
    denied = False
    files.check()

    assert files.current() == "newer"
    assert not files.is_failing
    assert errors_of(caplog) == [
        f"cannot reload, the content read before stays in use: cannot read `{path}`: permission denied"
    ]


def test_a_file_of_the_same_size_and_time_is_read_again(path):
    """A replaced file is read again, also with the same size and modification time."""
    files, before = FileWatcher(TOKENS, [path], path.read_text), path.stat()
    path.write_text("new")
    while path.stat().st_ctime_ns == before.st_ctime_ns:  # file system clocks are coarse
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    files.check()

    assert files.current() == "new"


def test_storage_that_hangs(tmp_path, monkeypatch):
    """While storage hangs, the earlier content is used without waiting, and the file soon counts as failing."""
    monkeypatch.setattr(credentials, "CHECK_S", 0.01)
    monkeypatch.setattr(credentials, "HUNG_S", 0.2)
    path, hangs, release = tmp_path / "file", threading.Event(), threading.Event()

    def read():
        if hangs.is_set():
            release.wait(10)
        return path.read_text()

    path.write_text("old")
    files = FileWatcher(TOKENS, [path], read)
    hangs.set()
    path.write_text("newer")

    assert not files.is_failing
    wait_until(lambda: files.is_failing, "it does not count as failing", limit_s=5)
    assert files.current() == "old"
    release.set()
    wait_until(lambda: files.current() == "newer", "it was not read again", limit_s=5)
    assert not files.is_failing


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), lambda path: enlarge(path)])
def test_special_files_are_refused(tmp_path, make):
    """A pipe, a device and an endless file are refused, at start and later, without waiting for them."""
    path = tmp_path / "tokens"
    path.write_text("token\n")
    files = FileWatcher(TOKENS, [path], lambda: read_tokens(path))
    path.unlink()
    make(path)
    files.check()

    assert len(files.current()) == 1
    assert files.is_failing
    with pytest.raises(ValueError, match="tokens"):
        read_tokens(path)


def enlarge(path):
    with path.open("wb") as file:
        file.truncate(2**40)


def test_unused_watcher_ends(path, monkeypatch):
    """The thread of a watcher ends when the watcher is garbage collected."""
    monkeypatch.setattr(credentials, "CHECK_S", 0.01)
    before = set(threading.enumerate())
    files = FileWatcher(TOKENS, [path], path.read_text)
    (thread,) = [thread for thread in set(threading.enumerate()) - before if thread.name == "file-watcher"]
    del files
    wait_until(lambda: not thread.is_alive(), "the thread has not ended", limit_s=5)
