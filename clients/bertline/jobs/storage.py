"""Files on this machine, or in an object store through fsspec."""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import lzma
import os
import re
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, BinaryIO

import fsspec
from fsspec.implementations.local import LocalFileSystem

from bertline.errors import BertlineError


class FileError(Exception):
    """Error of a file; the message is one line that names the file, and the line in it if there is one."""


def already_exists(file: File) -> FileError:
    """Return the error for an output that exists."""
    return FileError(f"already exists: `{file.url}`; choose another file, or replace it with --force")


@dataclass(frozen=True, slots=True)
class File:
    """Path of a file or folder, which may not exist."""

    system: Any
    """File system of fsspec; None for standard input."""
    path: str
    """Path in the file system."""
    url: str
    """Path or URL as the user gave it, for messages."""

    @property
    def is_local(self) -> bool:
        """True if it is on this machine."""
        return self.system is None or isinstance(self.system, LocalFileSystem)

    @property
    def is_folder(self) -> bool:
        """True if the user named a folder, with / at the end."""
        return self.url.endswith("/")

    @property
    def name(self) -> str:
        """Last part of the path."""
        return self.path.rstrip("/").rpartition("/")[2]

    @property
    def suffixes(self) -> tuple[str, str]:
        """Suffixes of content and compression in lower case: (`.jsonl`, `.gz`) for `a.jsonl.gz`."""
        stem, suffix = os.path.splitext(self.name.lower())
        return (os.path.splitext(stem)[1], suffix) if suffix in COMPRESSIONS else (suffix, "")

    def beside(self, suffix: str) -> File:
        """Return the file whose path ends with one more suffix."""
        return File(self.system, self.path.rstrip("/") + suffix, self.url.rstrip("/") + suffix)

    def within(self, name: str) -> File:
        """Return a file in this folder."""
        return self.beside(f"/{name}")

    def is_directory(self) -> bool:
        """Return True if it exists and is a folder."""
        with file_errors(f"cannot read `{self.url}`", self):
            return bool(self.system.isdir(self.path))

    def is_special(self) -> bool:
        """Return True if it exists and is not a regular file."""
        with file_errors(f"cannot read `{self.url}`", self):
            return bool(self.system.exists(self.path)) and not self.system.isfile(self.path)

    def exists(self) -> bool:
        """Return True if it exists."""
        with file_errors(f"cannot read `{self.url}`", self):
            return bool(self.system.exists(self.path))

    def names(self) -> list[str]:
        """List the names in this folder, without cached listings; empty if it does not exist."""
        with file_errors(f"cannot read `{self.url}`", self):
            self.system.invalidate_cache()  # object stores cache listings
            if not self.system.isdir(self.path):
                return []
            return [str(path).rstrip("/").rpartition("/")[2] for path in self.system.ls(self.path, detail=False)]

    def remove(self) -> None:
        """Remove it with its content, if it exists."""
        with file_errors(f"cannot remove `{self.url}`", self), suppress(FileNotFoundError):
            self.system.rm(self.path, recursive=True)

    def read(self) -> bytes:
        """Return the content."""
        with file_errors(f"cannot read `{self.url}`", self):
            return bytes(self.system.cat_file(self.path))

    def move(self, target: File) -> None:
        """Rename it; replaces the target."""
        with file_errors(f"cannot write `{target.url}`", self):
            if self.is_local:
                os.replace(self.path, target.path)
            else:
                self.system.mv(self.path, target.path)


def file_of(url: str) -> File:
    """Parse a path, or the URL of an object store: `s3://bucket/path`.

    Raises:
        FileError: when fsspec does not know this kind of URL, its library is missing, or the store refuses.
    """
    try:
        system, path = fsspec.core.url_to_fs(url)
    except Exception as error:  # of any library: some stores connect here
        raise FileError(f"cannot use `{url}`: {_reason_of(error)}") from error
    if isinstance(system, LocalFileSystem):
        path = os.path.realpath(path)  # a write replaces the file that a link points to, not the link
    return File(system, path, url)


def absolute(url: str) -> str:
    """Return an absolute path, for a process in another folder. Links stay, as they may differ on another machine; URLs
    stay as they are."""
    system, path = fsspec.core.url_to_fs(url)
    return path.rstrip("/") + "/" * url.endswith("/") if isinstance(system, LocalFileSystem) else url


def is_in(file: File, folder: File) -> bool:
    """Return True if a file is the folder, or lies in it. Links are followed."""

    def place(item: File) -> str:
        return os.path.realpath(item.path) if item.is_local else item.path.rstrip("/")

    return file.system.protocol == folder.system.protocol and f"{place(file)}/".startswith(f"{place(folder)}/")


def find_files(patterns: Sequence[str]) -> list[File]:
    """Return the files that match patterns, and those in folders. The files of one pattern are sorted by name.

    As other programs do, it passes over names in a folder that begin with `_` or `.`: marks and unfinished files.

    Raises:
        FileError: when nothing matches a pattern, or a file does not exist.
    """
    found = []
    for pattern in patterns:
        file = file_of(pattern)
        with file_errors(f"cannot read `{pattern}`", file):
            if not set("*?[") & set(pattern) or file.exists():
                is_folder = file.system.info(file.path)["type"] == "directory"  # raises if it does not exist
                files = _files_in(file) if is_folder else [file]
            else:
                files = _matching(file.system, pattern)
        if not files:
            raise FileError(f"no file matches `{pattern}`")
        found += files
    return found


def _files_in(folder: File) -> list[File]:
    root = folder.path.rstrip("/")
    names = [path[len(root) :] for path in sorted(folder.system.find(root))]
    return [folder.beside(name) for name in names if not re.search("/[._]", name)]


def _matching(system: Any, pattern: str) -> list[File]:
    protocol, mark, glob = pattern.rpartition("://")
    files = []
    for path in filter(system.isfile, sorted(system.glob(glob))):
        local = path if pattern.startswith("/") else os.path.relpath(path)  # named as the user would write it
        files.append(File(system, path, f"{protocol}{mark}{path.lstrip('/')}" if mark else local))
    return files


@contextmanager
def file_errors(what: str, file: File) -> Iterator[None]:
    """Turn errors of the system, and errors about damaged files, into a FileError that begins with `what`.

    Libraries for object stores raise errors of any class.
    """
    try:
        yield
    except (FileError, BertlineError):  # complete messages already
        raise
    except Exception as error:
        if file.is_local and not isinstance(error, (OSError, EOFError, zlib.error, lzma.LZMAError)):
            raise
        raise FileError(f"{what}: {_reason_of(error)}") from error


def _reason_of(error: Exception) -> str:
    # Some stores give only the path.
    missing = os.strerror(errno.ENOENT) if isinstance(error, FileNotFoundError) else ""
    return getattr(error, "strerror", None) or missing or " ".join(str(error).split()) or type(error).__name__


@contextmanager
def open_read(file: File) -> Iterator[tuple[BinaryIO, Callable[[], float]]]:
    """Open a file, and decompress it if its suffix is that of a compression.

    Yields:
        The stream, and a function that returns the fraction of the file that was read.

    Raises:
        FileError: when it cannot be opened, or is an archive.
    """
    with file_errors(f"cannot read `{file.url}`", file):
        if set(file.suffixes) & set(_ARCHIVES):
            hint = "unpack the archive, or compress the file as .gz, .bz2, .xz or .zst"
            raise FileError(f"cannot read `{file.url}`: {hint}")
        if file.is_local and file.is_special():
            raise FileError(f"cannot read `{file.url}`: not a regular file; pipe its content to standard input, `-i -`")
        raw = file.system.open(file.path, "rb")
        size = file.system.size(file.path) or 1
    with raw:
        compression = file.suffixes[1]
        with file_errors(f"cannot read `{file.url}`", file):
            stream = COMPRESSIONS[compression](raw) if compression else raw
        # Local files are buffered already.
        plain = stream if compression or file.is_local else io.BufferedReader(stream, 1 << 20)
        yield plain, lambda: min(1.0, raw.tell() / size)


def _zstd(raw: BinaryIO) -> BinaryIO:
    """Use Arrow's reader: it reads several frames, and fails when one is cut off."""
    import pyarrow

    return io.BufferedReader(pyarrow.CompressedInputStream(raw, "zstd"), 1 << 20)  # type: ignore[return-value]


COMPRESSIONS: dict[str, Callable[[BinaryIO], Any]] = {
    ".gz": lambda raw: gzip.GzipFile(fileobj=raw, mode="rb"),
    ".bz2": bz2.BZ2File,
    ".xz": lzma.LZMAFile,
    ".zst": _zstd,
}
"""Decompression by suffix."""
_ARCHIVES = (".zip", ".tar", ".tgz", ".7z", ".rar", ".lz4", ".br", ".lzma", ".z", ".sz", ".snappy")


@contextmanager
def open_write(file: File, temporary: File | None = None) -> Iterator[BinaryIO]:
    """Write a file atomically: after an error it is unchanged.

    Args:
        temporary: file to write first, in the same file system; None for one next to the file.
    """
    unfinished = temporary or file.beside(f".{uuid.uuid4().hex[:8]}.tmp")
    try:
        with file_errors(f"cannot write `{file.url}`", file), unfinished.system.open(unfinished.path, "wb") as stream:
            yield stream
            stream.flush()
            if file.is_local:
                os.fsync(stream.fileno())
        unfinished.move(file)
    except BaseException:
        with suppress(FileError):  # a store that failed may fail here, too
            unfinished.remove()
        raise
