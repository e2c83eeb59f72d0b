"""Files and directories that are whole or absent, also after a power cut, and their digests."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tasks.json_files import read_json
from tasks.regular import open_regular

PARTIAL_SUFFIX = ".partial"
MADE_FROM_FILE = "made_from.json"


@contextmanager
def atomic_directory(path: str | Path, *, replace: bool = False) -> Iterator[Path]:
    """A temporary directory beside `path` that becomes `path` at the end, or vanishes on any error.

    Args:
        path: of a link, what it leads to is written.
        replace: put it in the place of an existing directory, which stays as it was until then.

    Raises:
        ValueError: when `path` exists already and `replace` is off.
    """
    path = Path(path)
    check_free(path, replace=replace)
    place = path.resolve()
    with _folders_around(place):
        temporary = _made_beside(place)
        try:
            with naming(path, instead_of=temporary):
                temporary.chmod(0o755)
                yield temporary
                _put_in_place(temporary, place, replace=replace)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


@contextmanager
def _folders_around(path: Path) -> Iterator[None]:
    """Make what is missing; on an error it vanishes again."""
    missing = [folder for folder in path.parents if not folder.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for folder in missing:
            with suppress(OSError):  # another process may have put something there
                folder.rmdir()
        raise


def _made_beside(path: Path) -> Path:
    """A directory of its own."""
    try:
        return Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except OSError as error:
        error.filename = str(path)
        raise


@contextmanager
def resumable_directory(path: str | Path, *, made_from: dict[str, Any], replace: bool = False) -> Iterator[Path]:
    """`<path>.partial`, which becomes `path` at the end and outlives an interruption, to be gone on with.

    Only a ValueError removes it: what it was made from is at fault, and has to change.

    Args:
        made_from: what the content is a function of, as JSON; a directory begun with anything else is not gone on with.
        replace: put it in the place of an existing directory, and begin anew where the partial one does not fit.

    Raises:
        ValueError: when `path` exists already or a partial one was made from something else, and `replace` is off; when
            another process is at it.
    """
    path = Path(path)
    check_free(path, replace=replace)
    place = path.resolve()
    partial = place.with_name(place.name + PARTIAL_SUFFIX)
    partial.mkdir(parents=True, exist_ok=True)
    with locked(partial):
        _begin(partial, made_from, replace=replace)
        try:
            yield partial
        except ValueError:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        _put_in_place(partial, place, replace=replace)
        (place / MADE_FROM_FILE).unlink()


def _begin(partial: Path, made_from: dict[str, Any], *, replace: bool) -> None:
    record = partial / MADE_FROM_FILE
    begun_with = read_json(record) if record.is_file() else None
    if begun_with == made_from:
        for item in partial.glob(".*"):  # half-written by a process that was killed
            item.unlink()
        return
    if begun_with is not None and not replace:
        changed = ", ".join(key for key in begun_with | made_from if begun_with.get(key) != made_from.get(key))
        raise ValueError(
            f"`{partial}` was left unfinished with different {changed}; give what it was begun with, remove it, or "
            "give --replace to begin anew"
        )
    for item in partial.iterdir():
        item.unlink()
    atomic_write(record, json.dumps(made_from, indent=2).encode())


@contextmanager
def locked(directory: Path, lock_file: str = "") -> Iterator[None]:
    """Keep other processes out of a directory. The kernel lets go of the lock when this one ends, however it ends.

    Args:
        lock_file: in the directory, to be locked in its place: NFS locks no directories.

    Raises:
        ValueError: when another process is at it.
    """
    descriptor = os.open(directory / lock_file, os.O_RDWR | os.O_CREAT if lock_file else os.O_RDONLY, 0o644)
    try:
        _lock(descriptor, directory)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, directory: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ValueError(f"another process is writing `{directory}`; wait for it or end it") from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        print(f"warning: no locks where `{directory}` is: start nothing else that writes it", file=sys.stderr)


_NO_LOCKS = (errno.EBADF, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""What file systems without them say; NFS the first, of directories."""


def _put_in_place(temporary: Path, path: Path, *, replace: bool) -> None:
    """One after the other, as there is no call for both: what was there comes back if the new one does not come."""
    check_free(path, replace=replace)
    for item in (temporary, *temporary.rglob("*")):
        if not item.is_symlink() and (item.is_file() or item.is_dir()):
            _sync(item)
    old = temporary.with_name(temporary.name + ".old")
    if path.exists() and old.exists():
        shutil.rmtree(old)  # a process was killed while it removed it
    try:
        if path.exists():
            os.rename(path, old)
        os.rename(temporary, path)
        _sync(path.parent)
    finally:
        if old.exists() and not path.exists():
            os.rename(old, path)
        shutil.rmtree(old, ignore_errors=True)


def check_free(path: Path, *, replace: bool) -> None:
    """Whether a directory can be written, before the work.

    Raises:
        ValueError: when there is one and it is not to be replaced.
    """
    if os.path.lexists(path) and not (replace and path.is_dir()):
        raise ValueError(f"already exists: `{path}`; remove it, choose another, or give --replace")


@contextmanager
def naming(path: Path, *, instead_of: str | Path | None = None) -> Iterator[None]:
    """Let an OSError name the file that is written; that of a full disk names none.

    Args:
        instead_of: a temporary path.
    """
    try:
        yield
    except OSError as error:
        named = str(error.filename or path)
        error.filename = named.replace(str(instead_of), str(path)) if instead_of else named
        raise


def atomic_write(path: str | Path, data: bytes) -> None:
    """Write a file so that it is whole or as it was before."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with naming(path, instead_of=temporary):
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            os.chmod(temporary, 0o644)
            _sync(Path(temporary))
            os.replace(temporary, path)
            _sync(path.parent)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _sync(path: Path) -> None:
    """Wait until a file's content, or a folder's names, are on the disk: a new name may get there sooner than what it
    stands for."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
    finally:
        os.close(descriptor)


_NO_SYNC = (errno.EINVAL, errno.EBADF, errno.ENOSYS, errno.EOPNOTSUPP)
"""What file systems say that cannot, some of folders alone."""


def sha256(path: str | Path) -> str:
    """SHA-256 of a regular file, hexadecimal."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
