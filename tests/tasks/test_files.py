"""Files and directories that are either complete or absent."""

import os
from pathlib import Path

import pytest

from tasks.bundle.files import atomic_directory, atomic_write, locked, resumable_directory


def names(path):
    return sorted(item.name for item in path.iterdir())


def test_a_directory_appears_at_the_end(tmp_path):
    """The directory appears only when it is complete, with its parents and without leftovers."""
    path = tmp_path / "models" / "demo" / "1"

    with atomic_directory(path) as temporary:
        (temporary / "file").write_text("new")
        assert not path.exists()

    assert (path / "file").read_text() == "new"
    assert names(path.parent) == ["1"]
    assert path.stat().st_mode & 0o777 == 0o755


def fill(path, act, *, replace=False):
    """Write a directory with the file `new`, and call `act` before it is complete."""
    with atomic_directory(path, replace=replace) as temporary:
        (temporary / "new").write_text("new")
        act()


def fail(error):
    raise error


class Interrupted(BaseException):
    """Exception that, like KeyboardInterrupt, is not an `Exception`."""


@pytest.mark.parametrize("error", [ValueError, Interrupted])
def test_an_error_leaves_nothing(tmp_path, error):
    """An error or interrupt leaves neither the directory nor a temporary one, nor a parent that was made for it."""
    with pytest.raises(error):
        fill(tmp_path / "models" / "there", lambda: fail(error))

    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("make_path", "replace"),
    [(Path.mkdir, False), (Path.touch, True), (lambda path: path.symlink_to("nowhere"), True)],
)
def test_existing_paths_are_not_overwritten(tmp_path, make_path, replace):
    """An existing directory needs `replace`; a file or a broken link is never replaced by a directory."""
    path = tmp_path / "there"
    make_path(path)

    with pytest.raises(ValueError, match=r"already exists: `.*there`; remove it"):
        fill(path, lambda: pytest.fail("work was done for nothing"), replace=replace)

    assert names(tmp_path) == ["there"]


@pytest.fixture
def old(tmp_path):
    path = tmp_path / "there"
    path.mkdir()
    (path / "old").write_text("old")
    return path


def test_replace(old):
    """A replacement swaps the whole directory."""
    seen = []

    fill(old, lambda: seen.extend(names(old)), replace=True)

    assert seen == ["old"]
    assert names(old) == ["new"]
    assert names(old.parent) == ["there"]


def test_an_interrupted_replacement_keeps_the_old(old, monkeypatch):
    """An interrupt between the two renames of a replacement restores the old directory."""
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


def test_atomic_write(tmp_path):
    """A file is written with its parents, replaced, and leaves no temporary files next to it."""
    path = tmp_path / "a" / "file"

    atomic_write(path, b"one")
    atomic_write(path, b"two")

    assert path.read_bytes() == b"two"
    assert names(path.parent) == ["file"]
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_failed_write_keeps_the_old(tmp_path):
    """A failed write keeps the old file and folder."""
    atomic_write(tmp_path / "file", b"old")

    with pytest.raises(TypeError):
        atomic_write(tmp_path / "file", "text")
    with pytest.raises(IsADirectoryError):
        atomic_write(tmp_path, b"data")

    assert (tmp_path / "file").read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def write_parts(path, *parts, made_from="text", replace=True, act=lambda: None):
    """Write parts into a resumable directory and call `act` before it is complete; return the earlier contents."""
    with resumable_directory(path, made_from={"data": made_from}, replace=replace) as partial:
        done = names(partial)
        for part in parts:
            (partial / part).write_text(made_from)
        act()
    return done


def test_a_directory_is_resumed(tmp_path):
    """A resumed directory has the parts that were finished before, and temporary parts are removed at the end."""
    path = tmp_path / "there"
    with pytest.raises(Interrupted):
        write_parts(path, "1", ".2.half", act=lambda: fail(Interrupted))

    assert not path.exists()
    assert "1" in write_parts(path, "2")
    assert names(path) == ["1", "2"]
    assert names(tmp_path) == ["there"]


def test_finished_work_survives_a_failure_at_its_end(old, monkeypatch):
    """If the final rename fails, the old directory stays, and a later call puts the finished one in place."""
    monkeypatch.setattr("os.rename", lambda source, target: fail(OSError("full")))
    with pytest.raises(OSError, match="full"):
        write_parts(old, "1")
    monkeypatch.undo()

    assert names(old) == ["old"]
    assert "1" in write_parts(old)
    assert names(old) == ["1"]
    assert names(old.parent) == ["there"]


def test_finished_work_survives_another_writer(tmp_path):
    """If another writer creates the path first, the finished parts stay in the partial directory."""
    path = tmp_path / "there"
    with pytest.raises(ValueError, match="already exists"):
        write_parts(path, "1", act=path.mkdir, replace=False)

    assert "1" in names(tmp_path / "there.partial")
    assert names(path) == []


def test_only_a_value_error_removes_the_partial_directory(tmp_path):
    """A ValueError removes the partial directory, because its inputs must change."""
    with pytest.raises(ValueError, match="bad"):
        write_parts(tmp_path / "there", "1", act=lambda: fail(ValueError("bad")))

    assert names(tmp_path) == []


def test_a_partial_directory_with_other_inputs(tmp_path):
    """A partial directory with other inputs is refused, or removed with `replace`."""
    path = tmp_path / "there"
    with pytest.raises(Interrupted):
        write_parts(path, "1", made_from="other", act=lambda: fail(Interrupted))

    with pytest.raises(ValueError, match=r"`.*there.partial` is unfinished and was started with different data"):
        write_parts(path, replace=False)
    assert "1" not in write_parts(path, "2")
    assert names(path) == ["2"]


def test_a_link_to_a_directory_is_resumed_at_its_target(old, tmp_path):
    """Repeated replacements through a link replace its target."""
    link = tmp_path / "link"
    link.symlink_to(old)
    for number in ("1", "2"):
        write_parts(link, number)
        assert names(old) == [number]

    assert link.is_symlink()
    assert names(tmp_path) == ["link", "there"]


def test_leftovers_of_a_killed_process_are_removed(old):
    """The next write removes directories that a killed process left."""
    leftover = old.with_name("there.partial.old")
    leftover.mkdir()
    (leftover / "older").touch()

    write_parts(old, "1")

    assert names(old) == ["1"]
    assert names(old.parent) == ["there"]


def test_one_process_at_a_time(tmp_path):
    """A second process gets an error immediately, and the work of the first one is not touched."""
    path = tmp_path / "there"
    with resumable_directory(path, made_from={"data": "text"}) as partial:
        (partial / "1").touch()
        with pytest.raises(ValueError, match=r"another process is writing `.*there.partial`; wait for it or end it"):
            write_parts(path)

    assert names(path) == ["1"]
    with locked(path, "lock"), pytest.raises(ValueError, match="another process"), locked(path, "lock"):
        pass


def test_content_is_on_the_disk_before_its_name(tmp_path, monkeypatch):
    """Contents are synced before the rename, so that after a power cut a file is complete or absent."""
    log = []
    sync, rename, replace = os.fsync, os.rename, os.replace
    monkeypatch.setattr("os.fsync", lambda file: (log.append(os.readlink(f"/proc/self/fd/{file}")), sync(file)))
    monkeypatch.setattr("os.rename", lambda *paths: (log.append("rename"), rename(*paths)))
    monkeypatch.setattr("os.replace", lambda *paths: (log.append("rename"), replace(*paths)))

    atomic_write(tmp_path / "file", b"data")
    file, *others = log

    assert file.startswith(f"{tmp_path}/.file.")
    assert others == ["rename", str(tmp_path)]

    log.clear()
    fill(tmp_path / "there", lambda: None)
    before, after = log[: log.index("rename")], log[log.index("rename") + 1 :]
    assert {Path(path).name for path in before} >= {"new"}
    assert after == [str(tmp_path)]
