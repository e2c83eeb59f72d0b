"""Look at a directory of models: which versions it holds, and which folders cannot be read or do not answer."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from serving.core.errors import error_line
from serving.core.storage_threads import StorageThreads
from tasks.manifest import MANIFEST_FILE, MAX_MANIFEST_BYTES
from tasks.model_directory import model_folders, no_models, version_paths
from tasks.regular import read_regular

Key = tuple[str, str]
"""Name and version."""
Content = tuple[bytes, tuple[tuple[str, int, int, int], ...]]
"""Fingerprint of a directory: its manifest; name, size, mtime and ctime of each file (no program can set the ctime).
Inode numbers are left out: on some file systems they change from look to look."""
Versions = dict[Key, tuple[Path, Content | None]]
"""Versions of one model, lowest first; the content is None where it cannot be seen."""


@dataclass
class Found:
    """Result of a look."""

    directory: Path
    models: dict[str, Versions] = field(default_factory=dict)
    """By name; without those whose folders cannot be read."""
    unreadable: dict[Path, str] = field(default_factory=dict)
    """Folders of models and of versions that cannot be read, and why."""

    @property
    def unreadable_models(self) -> dict[str, str]:
        """Names of models whose folders cannot be read, and why."""
        return {path.name: error for path, error in self.unreadable.items() if path.parent == self.directory}

    def why(self, path: Path) -> str:
        """Why a folder cannot be read; empty where it can."""
        return self.unreadable.get(path) or self.unreadable.get(path.parent, "")

    def add(self, folder: Path, versions: list[tuple[Path, Content | None]]) -> None:
        """Record the versions in the folder of a model, if there are any."""
        if kept := {(folder.name, path.name): (path, item) for path, item in versions if item is not _NO_FOLDER}:
            self.models[folder.name] = kept

    def __contains__(self, key: Key) -> bool:
        return key in self.models.get(key[0], ())


async def look(directory: Path, threads: StorageThreads) -> Found:
    """Find the versions of each model. One thread looks at the whole directory, which is quick. While that thread
    hangs, each folder gets a thread of its own, so that a folder that hangs does not hide the others.

    Raises:
        ValueError, OSError: when there is no directory of models, or nothing in it, or it does not answer.
    """
    try:
        found = await threads.call(("all of", directory), partial(_look_at_all, directory))
    except TimeoutError:
        folders = await threads.call(directory, partial(model_folders, directory))
        found = Found(directory)
        await asyncio.gather(*(_look_into(folder, found, threads) for folder in folders))
    if not found.models and not found.unreadable:
        raise no_models(directory)
    return found


def _look_at_all(directory: Path) -> Found:
    found = Found(directory)
    for folder in model_folders(directory):
        try:
            paths = version_paths(folder)
        except Exception as error:
            found.unreadable[folder] = error_line(error)
        else:
            found.add(folder, [(path, _content_or_trouble(path, found)) for path in paths])
    return found


def _content_or_trouble(path: Path, found: Found) -> Content | None:
    try:
        return content(path)
    except Exception as error:
        found.unreadable[path] = error_line(error)
        return None


async def _look_into(folder: Path, found: Found, threads: StorageThreads) -> None:
    try:
        paths = await threads.call(folder, partial(version_paths, folder))
    except Exception as error:
        found.unreadable[folder] = error_line(error)
        return
    contents = await asyncio.gather(*(_content_of(path, found, threads) for path in paths))
    found.add(folder, list(zip(paths, contents, strict=True)))


async def _content_of(path: Path, found: Found, threads: StorageThreads) -> Content | None:
    try:
        return await threads.call(path, partial(content, path))
    except Exception as error:
        found.unreadable[path] = error_line(error)
        return None


_NO_FOLDER: Content = b"", (("", 0, 0, 0),)
"""Content of a file, or of a link to a file or to nowhere: these are no versions."""


def content(path: Path) -> Content:
    """Return the fingerprint of a folder. Parts that cannot be read are empty: loading tells why."""
    if not path.is_dir():
        return _NO_FOLDER
    manifest = b""
    with suppress(OSError, ValueError):
        manifest = read_regular(path / MANIFEST_FILE, MAX_MANIFEST_BYTES)
    return manifest, tuple(sorted(_files(path)))


def _files(path: Path) -> Iterator[tuple[str, int, int, int]]:
    with suppress(OSError), os.scandir(path) as items:
        for item in items:
            with suppress(OSError):  # a link to nowhere
                status = item.stat()
                yield item.name, status.st_size, status.st_mtime_ns, status.st_ctime_ns
