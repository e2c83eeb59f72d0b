"""Scan of a directory of models: its versions, and the folders that cannot be read or do not answer."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from serving.core.errors import error_line
from serving.core.storage_threads import StorageThreads, WorkKey
from tasks.manifest import MANIFEST_FILE, MAX_MANIFEST_BYTES
from tasks.model_directory import holds_manifest, model_folders, no_models_error, version_paths
from tasks.regular import read_regular

VersionKey = tuple[str, str]
"""Name and version number."""
Fingerprint = tuple[bytes, tuple[tuple[str, int, int, int], ...]]
"""Fingerprint of a version directory: its manifest, and (name, size, mtime, ctime) of each file. The ctime cannot be
forged. Inode numbers are left out: some file systems change them between scans."""
Versions = dict[VersionKey, tuple[Path, Fingerprint | None]]
"""Versions of one model, lowest first. The fingerprint is None if the directory cannot be read."""


@dataclass
class DirectoryScan:
    """Result of a scan."""

    directory: Path
    models: dict[str, Versions] = field(default_factory=dict)
    """Model name -> versions; without models whose folders cannot be read."""
    unreadable: dict[Path, str] = field(default_factory=dict)
    """Unreadable model and version folders -> error in one line."""

    @property
    def unreadable_models(self) -> dict[str, str]:
        """Names of models whose folders cannot be read -> error."""
        return {path.name: error for path, error in self.unreadable.items() if path.parent == self.directory}

    def error_of(self, path: Path) -> str:
        """Return why a folder cannot be read; empty if it can."""
        return self.unreadable.get(path) or self.unreadable.get(path.parent, "")

    def add(self, folder: Path, versions: list[tuple[Path, Fingerprint | None]]) -> None:
        """Record the versions of a model; nothing if there are none."""
        if kept := {(folder.name, path.name): (path, item) for path, item in versions if item is not _NO_FOLDER}:
            self.models[folder.name] = kept

    def __contains__(self, key: VersionKey) -> bool:
        return key in self.models.get(key[0], ())


async def scan_directory(directory: Path, threads: StorageThreads) -> DirectoryScan:
    """Find the versions of each model.

    One thread scans the whole directory, which is fast. While that thread hangs, each folder is scanned in a thread of
    its own, so that one hanging folder does not hide the others.

    Raises:
        ValueError: when the directory does not exist, holds no model, or is itself a model.
        OSError: when it cannot be read.
        TimeoutError: when its storage does not answer.
    """
    try:
        scan = await threads.call(WorkKey("scan", directory), partial(_scan_all, directory))
    except TimeoutError:
        folders = await threads.call(WorkKey("list models", directory), partial(model_folders, directory))
        scan = DirectoryScan(directory)
        await asyncio.gather(*(_scan_model(folder, scan, threads) for folder in folders))
    if not scan.models and not scan.unreadable:
        raise await threads.call(WorkKey("explain why no model was found", directory), partial(_scan_error, directory))
    return scan


def _scan_error(directory: Path) -> ValueError:
    """Return the error for a directory without models, which may be a model itself."""
    path = directory if directory.name else directory.resolve()
    if holds_manifest(path):
        return ValueError(
            f"`{directory}` is one version of a model; serve the folder of its model: `{path.parent.parent}`"
        )
    if any(map(holds_manifest, version_paths(path))):
        return ValueError(f"`{directory}` is one model; serve its parent: `{path.parent}`")
    return no_models_error(directory)


def _scan_all(directory: Path) -> DirectoryScan:
    scan = DirectoryScan(directory)
    for folder in model_folders(directory):
        try:
            paths = version_paths(folder)
        except Exception as error:
            scan.unreadable[folder] = error_line(error)
        else:
            scan.add(folder, [(path, _fingerprint_or_none(path, scan)) for path in paths])
    return scan


def _fingerprint_or_none(path: Path, scan: DirectoryScan) -> Fingerprint | None:
    try:
        return fingerprint(path)
    except Exception as error:
        scan.unreadable[path] = error_line(error)
        return None


async def _scan_model(folder: Path, scan: DirectoryScan, threads: StorageThreads) -> None:
    try:
        paths = await threads.call(WorkKey("list versions", folder), partial(version_paths, folder))
    except Exception as error:
        scan.unreadable[folder] = error_line(error)
        return
    fingerprints = await asyncio.gather(*(_scan_version(path, scan, threads) for path in paths))
    scan.add(folder, list(zip(paths, fingerprints, strict=True)))


async def _scan_version(path: Path, scan: DirectoryScan, threads: StorageThreads) -> Fingerprint | None:
    try:
        return await threads.call(WorkKey("fingerprint", path), partial(fingerprint, path))
    except Exception as error:
        scan.unreadable[path] = error_line(error)
        return None


_NO_FOLDER: Fingerprint = b"", (("", 0, 0, 0),)
"""Fingerprint of files, links to files and broken links: these are no versions."""


def fingerprint(path: Path) -> Fingerprint:
    """Return the fingerprint of a folder. Unreadable parts are empty: loading reports their errors."""
    if not path.is_dir():
        return _NO_FOLDER
    manifest = b""
    with suppress(OSError, ValueError):
        manifest = read_regular(path / MANIFEST_FILE, MAX_MANIFEST_BYTES)
    return manifest, tuple(sorted(_files(path)))


def _files(path: Path) -> Iterator[tuple[str, int, int, int]]:
    with suppress(OSError), os.scandir(path) as items:
        for item in items:
            with suppress(OSError):  # a broken link
                status = item.stat()
                yield item.name, status.st_size, status.st_mtime_ns, status.st_ctime_ns
