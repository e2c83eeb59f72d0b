"""Files wherever they are: on this machine, or in an object store through fsspec."""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import lzma
import os
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, BinaryIO

import fsspec
from fsspec.implementations.local import LocalFileSystem

from bertline.errors import BertlineError

_MAGIC = set("*?[")


class FileError(Exception):
    """A file cannot be used; the message names the file, and the line where one is to blame."""


def already_exists(file: File) -> FileError:
    """What is told of a file that nobody said may be replaced."""
    return FileError(f"already exists: `{file.url}`; choose another file, or replace it with --force")


@dataclass(frozen=True, slots=True)
class File:
    """A file or folder, there or not."""

    system: Any
    """fsspec's file system; None for standard input."""
    path: str
    """In it."""
    url: str
    """As it was given, for messages."""

    @property
    def is_local(self) -> bool:
        """Whether it lies on this machine."""
        return self.system is None or isinstance(self.system, LocalFileSystem)

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rstrip("/").rpartition("/")[2]

    @property
    def suffixes(self) -> tuple[str, str]:
        """That of its content and that of its compression, in lower case: (`.jsonl`, `.gz`) of `a.jsonl.gz`."""
        stem, suffix = os.path.splitext(self.name.lower())
        return (os.path.splitext(stem)[1], suffix) if suffix in COMPRESSIONS else (suffix, "")

    def beside(self, suffix: str) -> File:
        """The file whose path has something more at its end."""
        return File(self.system, self.path.rstrip("/") + suffix, self.url.rstrip("/") + suffix)

    def within(self, name: str) -> File:
        """A file in this folder."""
        return self.beside(f"/{name}")

    def exists(self) -> bool:
        """Whether it is there."""
        with told(f"cannot read `{self.url}`", self):
            return bool(self.system.exists(self.path))

    def is_folder(self) -> bool:
        """Whether it is there, and a folder."""
        with told(f"cannot read `{self.url}`", self):
            return bool(self.system.isdir(self.path))

    def names(self) -> list[str]:
        """Names of what is in this folder by now, whoever wrote it; none if there is no folder."""
        self.system.invalidate_cache()  # stores go by listings of before
        if not self.is_folder():
            return []
        with told(f"cannot read `{self.url}`", self):
            return [str(path).rstrip("/").rpartition("/")[2] for path in self.system.ls(self.path, detail=False)]

    def remove(self) -> None:
        """Remove it with all that is in it; gone already is fine."""
        with told(f"cannot remove `{self.url}`", self), suppress(FileNotFoundError):
            self.system.rm(self.path, recursive=True)

    def read(self) -> bytes:
        """All of it."""
        with told(f"cannot read `{self.url}`", self):
            return bytes(self.system.cat_file(self.path))

    def move(self, target: File) -> None:
        """Give it another path, of which nothing else is left."""
        with told(f"cannot write `{target.url}`", self):
            if self.is_local:
                os.replace(self.path, target.path)
            else:
                self.system.mv(self.path, target.path)


def file_of(url: str) -> File:
    """A path, or the URL of an object store: `s3://bucket/path`.

    Raises:
        FileError: when fsspec does not know that kind of URL, the library for it is missing, or the store refuses.
    """
    system, path = _placed(url)
    if isinstance(system, LocalFileSystem):
        path = os.path.realpath(path)  # a link stays, the file that it names is replaced
    return File(system, path, url)


def absolute(url: str) -> str:
    """The same for a process in another folder, or on another machine, where links may lead elsewhere: a whole path; a
    URL as it is."""
    system, path = _placed(url)
    return path.rstrip("/") + "/" * url.endswith("/") if isinstance(system, LocalFileSystem) else url


def _placed(url: str) -> tuple[Any, str]:
    """The file system of a URL or path, and the place in it."""
    try:
        system, path = fsspec.core.url_to_fs(url)
    except Exception as error:  # of the library: some stores are connected to here
        raise FileError(f"cannot use `{url}`: {_why(error)}") from error
    return system, path


def find_files(patterns: Sequence[str]) -> list[File]:
    """The files that patterns stand for, each pattern's in the order of their names.

    Raises:
        FileError: when a pattern stands for none, or the file that is named is not there.
    """
    return [file for pattern in patterns for file in _matching(pattern)]


def _matching(pattern: str) -> list[File]:
    file = file_of(pattern)
    with told(f"cannot read `{pattern}`", file):
        if not _MAGIC & set(pattern) or file.exists():
            file.system.info(file.path)  # says why, where it is not there
            return [file]
        paths = [path for path in sorted(file.system.glob(pattern.rpartition("://")[2])) if file.system.isfile(path)]
    if not paths:
        raise FileError(f"no file matches `{pattern}`")
    return [File(file.system, path, _url(path, pattern)) for path in paths]


def _url(path: str, pattern: str) -> str:
    """How a user would have written a path that was found."""
    protocol, mark, _ = pattern.rpartition("://")
    if mark:
        return f"{protocol}{mark}{path.lstrip('/')}"
    return path if pattern.startswith("/") else os.path.relpath(path)


@contextmanager
def told(what: str, file: File) -> Iterator[None]:
    """Turn errors of the system, and those about damaged files, into one that says what could not be done. Libraries
    for object stores raise any."""
    try:
        yield
    except (FileError, BertlineError):  # which say it already
        raise
    except Exception as error:
        if file.is_local and not isinstance(error, (OSError, EOFError, zlib.error, lzma.LZMAError)):
            raise
        raise FileError(f"{what}: {_why(error)}") from error


def _why(error: Exception) -> str:
    missing = os.strerror(errno.ENOENT) if isinstance(error, FileNotFoundError) else ""  # stores say its path alone
    return getattr(error, "strerror", None) or missing or " ".join(str(error).split()) or type(error).__name__


@contextmanager
def open_read(file: File) -> Iterator[tuple[BinaryIO, Callable[[], float]]]:
    """Open a file, decompressed where its name says that it is compressed.

    Yields:
        The stream, and a function that tells which share of the file was read.

    Raises:
        FileError: when it cannot be opened, or is a kind of archive that is not known here.
    """
    with told(f"cannot read `{file.url}`", file):
        _refuse_unreadable(file)
        raw = file.system.open(file.path, "rb")
        size = file.system.size(file.path) or 1
    with raw:
        compression = file.suffixes[1]
        with told(f"cannot read `{file.url}`", file):
            stream = COMPRESSIONS[compression](raw) if compression else raw
        # What is local is buffered as it is.
        plain = stream if compression or file.is_local else io.BufferedReader(stream, 1 << 20)
        yield plain, lambda: min(1.0, raw.tell() / size)


def _zstd(raw: BinaryIO) -> BinaryIO:
    """Arrow's reader: it goes on after the end of a frame, and tells of one that is cut off."""
    import pyarrow

    return io.BufferedReader(pyarrow.CompressedInputStream(raw, "zstd"), 1 << 20)  # type: ignore[return-value]


COMPRESSIONS: dict[str, Callable[[BinaryIO], Any]] = {
    ".gz": lambda raw: gzip.GzipFile(fileobj=raw, mode="rb"),
    ".bz2": bz2.BZ2File,
    ".xz": lzma.LZMAFile,
    ".zst": _zstd,
}
"""How a file is decompressed, by the end of its name."""
_ARCHIVES = (".zip", ".tar", ".tgz", ".7z", ".rar", ".lz4", ".br", ".lzma", ".z", ".sz", ".snappy")


def _refuse_unreadable(file: File) -> None:
    if set(file.suffixes) & set(_ARCHIVES):
        raise FileError(f"cannot read `{file.url}`: unpack it, or compress it as .gz, .bz2, .xz or .zst")
    if file.is_local and file.is_folder():
        raise FileError(f"cannot read `{file.url}`: Is a directory; name the files in it with a pattern in quotes")
    if file.is_local and os.path.exists(file.path) and not os.path.isfile(file.path):
        raise FileError(f"cannot read `{file.url}`: not a regular file; give what is in it as standard input, `-i -`")


@contextmanager
def open_write(file: File, temporary: File | None = None) -> Iterator[BinaryIO]:
    """Write a file that is whole, or as it was before.

    Args:
        temporary: what is written first, in the same file system; beside the file if not given.
    """
    unfinished = temporary or file.beside(f".{uuid.uuid4().hex[:8]}.tmp")
    try:
        with told(f"cannot write `{file.url}`", file), unfinished.system.open(unfinished.path, "wb") as stream:
            yield stream
            stream.flush()
            if file.is_local:
                os.fsync(stream.fileno())
        unfinished.move(file)
    except BaseException:
        with suppress(FileError):  # a store that fails does so here, too
            unfinished.remove()
        raise


def make_folder(folder: File) -> None:
    """Make a folder, not those above it; there already is fine."""
    if not folder.is_local:
        folder.system.makedirs(folder.path, exist_ok=True)
        return
    with suppress(FileExistsError):
        os.mkdir(folder.path)
