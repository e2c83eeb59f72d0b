"""Files and directories that are whole or absent, and their digests."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_directory(path: str | Path, *, replace: bool = False) -> Iterator[Path]:
    """A temporary directory beside `path` that becomes `path` at the end, or vanishes on any error.

    Args:
        replace: put it in the place of an existing directory, which stays as it was until then.

    Raises:
        ValueError: when `path` exists already and `replace` is off.
    """
    path = Path(path)
    check_free(path, replace=replace)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        temporary.chmod(0o755)
        yield temporary
        check_free(path, replace=replace)
        if path.exists():
            old = temporary.with_name(temporary.name + ".old")
            os.rename(path, old)
            os.rename(temporary, path)
            shutil.rmtree(old, ignore_errors=True)
        else:
            os.rename(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def check_free(path: Path, *, replace: bool) -> None:
    """Whether a directory can be written, before the work.

    Raises:
        ValueError: when there is one and it is not to be replaced.
    """
    if path.exists() and not (replace and path.is_dir()):
        raise ValueError(f"already exists: `{path}`; remove it, choose another, or give --replace")


def atomic_write(path: str | Path, data: bytes) -> None:
    """Write a file so that it is whole or as it was before."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def sha256(path: str | Path) -> str:
    """SHA-256 of a file, hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
