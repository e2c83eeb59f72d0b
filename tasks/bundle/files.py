"""Atomic writing of files and directories: whole or absent, also after a power cut. Locks and digests."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tasks.text.json_files import open_regular, read_json

PARTIAL_SUFFIX = ".partial"
MADE_FROM_FILE = "made_from.json"


@contextmanager
def atomic_directory(path: str | Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield a temporary directory next to `path`; rename it to `path` at the end, or remove it on any error.

    Args:
        path: links are followed.
        replace: replace an existing directory, which stays as it is until the end.

    Raises:
        ValueError: when `path` exists already and `replace` is off.
    """
    path = Path(path)
    check_output_path(path, replace=replace)
    target = path.resolve()
    missing = [folder for folder in target.parents if not folder.exists()]
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with name_in_errors(path, instead_of=temporary):
            temporary.mkdir()
            temporary.chmod(0o755)
            yield temporary
            _rename_into_place(temporary, target, replace=replace)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        for folder in missing:
            with suppress(OSError):  # another process may have written into it
                folder.rmdir()
        raise


@contextmanager
def resumable_directory(path: str | Path, *, made_from: dict[str, Any], replace: bool = False) -> Iterator[Path]:
    """Yield `<path>.partial`; rename it to `path` at the end. After an interruption, the next call resumes it.

    A ValueError removes it, since its inputs are wrong and have to change.

    Args:
        made_from: all inputs of the content, as JSON. A partial directory with other inputs is not resumed.
        replace: replace an existing directory, and start again if the partial one has other inputs.

    Raises:
        ValueError: when `path` exists or a partial directory has other inputs, and `replace` is off; when another
            process is writing it.
    """
    path = Path(path)
    check_output_path(path, replace=replace)
    target = path.resolve()
    partial = target.with_name(target.name + PARTIAL_SUFFIX)
    partial.mkdir(parents=True, exist_ok=True)
    with locked(partial):
        record = partial / MADE_FROM_FILE
        before = read_json(record) if record.is_file() else None
        if before == made_from:
            for item in partial.glob(".*"):  # left half-written by a killed process
                item.unlink()
        elif before is not None and not replace:
            changed = ", ".join(key for key in before | made_from if before.get(key) != made_from.get(key))
            raise ValueError(
                f"`{partial}` is unfinished and was started with different {changed}; give the same as before to "
                "resume it, or --replace to start again"
            )
        else:
            for item in partial.iterdir():
                item.unlink()
            atomic_write(record, json.dumps(made_from, indent=2).encode())
        try:
            yield partial
        except ValueError:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        _rename_into_place(partial, target, replace=replace)
        (target / MADE_FROM_FILE).unlink()


@contextmanager
def locked(directory: Path, lock_file: str = "") -> Iterator[None]:
    """Lock a directory against other processes. The kernel releases the lock when this process ends in any way.

    Args:
        lock_file: file in the directory to lock instead of it, since NFS cannot lock directories.

    Raises:
        ValueError: when another process holds the lock.
    """
    descriptor = os.open(directory / lock_file, os.O_RDWR | os.O_CREAT if lock_file else os.O_RDONLY, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"another process is writing `{directory}`; wait for it or end it") from None
        except OSError as error:
            if error.errno not in _LOCKS_UNSUPPORTED:
                raise
            print(
                f"warning: the file system of `{directory}` has no locks; do not start another process that writes it",
                file=sys.stderr,
            )
        yield
    finally:
        os.close(descriptor)


_LOCKS_UNSUPPORTED = (errno.EBADF, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""Errors of file systems without locks; EBADF is NFS's for directories."""


def _rename_into_place(temporary: Path, path: Path, *, replace: bool) -> None:
    """Rename the old directory away, then the new one into its place; on an error, rename the old one back."""
    check_output_path(path, replace=replace)
    for item in (temporary, *temporary.rglob("*")):
        if not item.is_symlink() and (item.is_file() or item.is_dir()):
            _sync(item)
    old = temporary.with_name(temporary.name + ".old")
    if path.exists() and old.exists():
        shutil.rmtree(old)  # left by a process that was killed while removing it
    try:
        if path.exists():
            os.rename(path, old)
        os.rename(temporary, path)
        _sync(path.parent)
    finally:
        if old.exists() and not path.exists():
            os.rename(old, path)
        shutil.rmtree(old, ignore_errors=True)


def check_output_path(path: Path, *, replace: bool) -> None:
    """Raise ValueError, before any work, if a directory exists and is not to be replaced."""
    if os.path.lexists(path) and not (replace and path.is_dir()):
        raise ValueError(f"already exists: `{path}`; remove it, choose another path, or give --replace")


@contextmanager
def name_in_errors(path: Path, *, instead_of: str | Path | None = None) -> Iterator[None]:
    """Set the file name of an OSError raised inside; a full disk, for example, names no file.

    Args:
        instead_of: temporary path to replace by `path`.
    """
    try:
        yield
    except OSError as error:
        named = str(error.filename or path)
        error.filename = named.replace(str(instead_of), str(path)) if instead_of else named
        raise


def atomic_write(path: str | Path, data: bytes) -> None:
    """Write a file that is complete or, after an error, as before."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with name_in_errors(path, instead_of=temporary):
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
    """Wait until the content of a file, or the names in a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _SYNC_UNSUPPORTED:
            raise
    finally:
        os.close(descriptor)


_SYNC_UNSUPPORTED = (errno.EINVAL, errno.EBADF, errno.ENOSYS, errno.EOPNOTSUPP)
"""Errors of file systems that cannot sync, or cannot sync folders."""


def sha256(path: str | Path) -> str:
    """Return the SHA-256 of a regular file, hexadecimal."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
