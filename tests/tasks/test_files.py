"""Files and directories are whole or absent."""

import hashlib
import os
from pathlib import Path

import pytest

from tasks.files import atomic_directory, atomic_write, sha256


def names(path):
    return sorted(item.name for item in path.iterdir())


def test_a_directory_appears_at_the_end(tmp_path):
    """Parents are made; until the end there is nothing at the path, afterwards nothing but it."""
    path = tmp_path / "models" / "demo" / "1"

    with atomic_directory(path) as temporary:
        (temporary / "file").write_text("new")
        assert not path.exists()

    assert (path / "file").read_text() == "new"
    assert names(path.parent) == ["1"]
    assert path.stat().st_mode & 0o777 == 0o755


def fill(path, act, *, replace=False):
    """Make a directory with the file `new`, and do something before it is whole."""
    with atomic_directory(path, replace=replace) as temporary:
        (temporary / "new").write_text("new")
        act()


def fail(error):
    raise error


class Interrupted(BaseException):
    """Like KeyboardInterrupt: not an Exception."""


@pytest.mark.parametrize("error", [ValueError, Interrupted])
def test_an_error_leaves_nothing(tmp_path, error):
    """Neither the directory nor the temporary one, also when the user interrupts."""
    with pytest.raises(error):
        fill(tmp_path / "there", lambda: fail(error))

    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("make", "replace"),
    [(Path.mkdir, False), (Path.touch, True), (lambda path: path.symlink_to("nowhere"), True)],
)
def test_what_stands_there_is_not_touched_by_mistake(tmp_path, make, replace):
    """An existing directory needs `replace`; a file, or a link to nowhere, is never replaced by a directory."""
    path = tmp_path / "there"
    make(path)

    with pytest.raises(ValueError, match=r"already exists: `.*there`; remove it"):
        fill(path, lambda: pytest.fail("work was done for nothing"), replace=replace)

    assert names(tmp_path) == ["there"]


def test_what_appears_meanwhile_is_not_touched(tmp_path):
    """Of two writers at the same path, the later one is told, and the earlier one's directory stays."""
    path = tmp_path / "there"

    with pytest.raises(ValueError, match="already exists"):
        fill(path, path.mkdir)

    assert names(path) == []
    assert names(tmp_path) == ["there"]


@pytest.fixture
def old(tmp_path):
    path = tmp_path / "there"
    path.mkdir()
    (path / "old").write_text("old")
    return path


def test_replace(old):
    """The old directory gives way to the new one as a whole."""
    seen = []

    fill(old, lambda: seen.extend(names(old)), replace=True)

    assert seen == ["old"]
    assert names(old) == ["new"]
    assert names(old.parent) == ["there"]


def test_a_failed_replacement_keeps_the_old(old):
    """As if nothing had been tried."""
    with pytest.raises(ValueError, match="half-way"):
        fill(old, lambda: fail(ValueError("half-way")), replace=True)

    assert (old / "old").read_text() == "old"
    assert names(old.parent) == ["there"]


def test_an_interrupted_replacement_keeps_the_old(old, monkeypatch):
    """Between the two moves that it takes, too."""
    rename = os.rename

    def interrupted(source, target):
        if target == old and source.suffix != ".old":
            raise Interrupted
        rename(source, target)

    monkeypatch.setattr("os.rename", interrupted)

    with pytest.raises(Interrupted):
        fill(old, lambda: None, replace=True)

    assert names(old) == ["old"]
    assert names(old.parent) == ["there"]


def test_a_name_too_long_for_a_temporary_directory_leaves_nothing(tmp_path):
    """The error has the name that was given."""
    with pytest.raises(OSError, match="too long") as error:
        fill(tmp_path / "a" / "b" / ("1" * 250), lambda: None)

    assert error.value.filename == str(tmp_path / "a" / "b" / ("1" * 250))
    assert names(tmp_path) == []


def test_what_a_link_leads_to_is_replaced(old, tmp_path):
    """The link stays."""
    link = tmp_path / "link"
    link.symlink_to(old)

    fill(link, lambda: None, replace=True)

    assert link.is_symlink()
    assert names(old) == ["new"]
    assert names(tmp_path) == ["link", "there"]


def test_atomic_write(tmp_path):
    """A file is made with its parents, and replaced, with nothing left beside it."""
    path = tmp_path / "a" / "file"

    atomic_write(path, b"one")
    atomic_write(path, b"two")

    assert path.read_bytes() == b"two"
    assert names(path.parent) == ["file"]
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_failed_write_keeps_the_old(tmp_path):
    """What is not bytes cannot be written, and leaves file and folder as they were."""
    atomic_write(tmp_path / "file", b"old")

    with pytest.raises(TypeError):
        atomic_write(tmp_path / "file", "text")
    with pytest.raises(IsADirectoryError):
        atomic_write(tmp_path, b"data")

    assert (tmp_path / "file").read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_sha256(tmp_path):
    """The digest of the bytes, hexadecimal."""
    data = bytes(range(256)) * 5000
    (tmp_path / "file").write_bytes(data)

    assert sha256(tmp_path / "file") == hashlib.sha256(data).hexdigest()
