"""Storage of models: scan of their directory, in threads for work that may never end, as the storage may hang.

The process exits without these threads.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from serving.core.errors import drop_tracebacks, error_line
from tasks.bundle.manifest import MANIFEST_FILE, MAX_MANIFEST_BYTES
from tasks.bundle.model_directory import (
    holds_manifest,
    list_model,
    misplaced_beside,
    model_folders,
    no_models_error,
    version_paths,
)
from tasks.text.json_files import read_regular

T = TypeVar("T")

IDLE_S = 10.0
"""Seconds without any CPU time after which work counts as hanging. Reading, or waiting for a lock, uses some."""
MAX_WAIT_S = 120.0
"""Maximum seconds to wait for work on a path, even if it uses CPU time."""
NUM_READERS = 8
"""Maximum number of threads that read many paths: a remote storage takes milliseconds for each file."""

VersionKey = tuple[str, str]
"""Name and version number."""
Fingerprint = tuple[bytes, tuple[tuple[str, int, int, int], ...]]
"""Fingerprint of a version directory: its manifest, and (name, size, mtime, ctime) of each file. The ctime cannot be
forged. Inode numbers are left out: some file systems change them between scans."""
Versions = dict[VersionKey, tuple[Path, Fingerprint | None]]
"""Versions of one model, lowest first. The fingerprint is None if the directory cannot be read."""


WorkKey = tuple[str, Path]
"""Action and path of some work: at most one thread does the same work on the same path."""


class StorageWork(Generic[T]):
    """Function that runs in a separate thread."""

    def __init__(self, key: WorkKey, future: asyncio.Future[T]) -> None:
        self.key = key
        self.future = future
        """Result. An error that is no `Exception`, such as a panic of Rust code, becomes a RuntimeError."""
        self.path, self.started_s = key[1], time.monotonic()
        """Path that it reads now, and since when."""
        self.hangs = False
        """True once a caller gave up waiting for it."""
        self.clock: int | None = None
        """Clock of the CPU time of the thread; None if it is unknown, as on macOS."""

    async def wait(self) -> bool:
        """Wait until the work has ended or seems to hang. Return whether it has ended."""
        active_s = now_s = time.monotonic()
        used_s = self._used_s()
        while not self.future.done() and now_s - active_s < IDLE_S and now_s - self.started_s < MAX_WAIT_S:
            await asyncio.wait((self.future,), timeout=min(1.0, IDLE_S / 2))
            before_s, used_s, now_s = used_s, self._used_s(), time.monotonic()
            active_s = active_s if used_s == before_s else now_s
        self.hangs = not self.future.done()
        return not self.hangs

    def _used_s(self) -> float:
        """Return the CPU time of the thread, or of the process if that of the thread is unknown."""
        with suppress(OSError):  # the thread has just ended
            return time.process_time() if self.clock is None else time.clock_gettime(self.clock)
        return 0.0


class StorageThreads:
    """Runs functions in threads, at most one at a time for each key. Lives in one event loop."""

    def __init__(self) -> None:
        self._running: dict[WorkKey, StorageWork[Any]] = {}

    def __bool__(self) -> bool:
        """Return whether some work has not ended, even if nobody waits for it any more."""
        return bool(self._running)

    def start(self, key: WorkKey, function: Callable[[], T]) -> StorageWork[T]:
        """Call a function in a new thread. Earlier work of the same key must have ended.

        Raises:
            RuntimeError: when the system has no more threads.
        """
        assert key not in self._running
        loop = asyncio.get_running_loop()
        work: StorageWork[T] = StorageWork(key, loop.create_future())
        # Read the error, if any: asyncio logs errors that nobody has read.
        work.future.add_done_callback(lambda future: future.cancelled() or future.exception())

        def run() -> None:
            if hasattr(time, "pthread_getcpuclockid"):
                work.clock = time.pthread_getcpuclockid(threading.get_ident())
            result, error = _call(function)
            with suppress(RuntimeError):  # the loop was closed in the meantime
                loop.call_soon_threadsafe(end, result, error)

        def end(result: T | None, error: Exception | None) -> None:
            del self._running[work.key]
            if work.future.done():
                return
            if error:
                work.future.set_exception(error)
            else:
                work.future.set_result(cast(T, result))

        self._running[key] = work
        try:
            threading.Thread(target=run, name="storage", daemon=True).start()
        except BaseException:
            del self._running[key]
            raise
        return work

    async def call(self, key: WorkKey, function: Callable[[], T]) -> T:
        """Call a function in a thread and return its result.

        Args:
            key: action and path of the work; the error names the path.
            function: called, unless work with the same key is still running. Then its result is returned.

        Raises:
            TimeoutError: when the work seems to hang, or has hung since an earlier call.
        """
        work: StorageWork[T] = self._running.get(key) or self.start(key, function)
        if not work.hangs and await work.wait():
            return work.future.result()
        raise TimeoutError(f"`{key[1]}` does not answer: its storage hangs")

    async def call_each(
        self, action: str, paths: Sequence[Path], function: Callable[[Path], T]
    ) -> dict[Path, T | BaseException]:
        """Call a function for each path; return the results and errors.

        A few threads do them. Paths that such a thread cannot reach, because it hangs or has hung since an earlier
        call, get separate threads.
        """
        fresh = [path for path in paths if (action, path) not in self._running]
        parts = [fresh[start::NUM_READERS] for start in range(min(NUM_READERS, len(fresh)))]
        found: dict[Path, T | BaseException] = {}
        for done in await asyncio.gather(*(self._call_in_turn(action, part, function) for part in parts)):
            found |= done
        left, calls = [path for path in paths if path not in found], []
        for path in left:
            calls.append(asyncio.ensure_future(self.call((action, path), partial(function, path))))
            await asyncio.sleep(0)  # requests go on: starting a hundred threads takes a tenth of a second
        return found | dict(zip(left, await asyncio.gather(*calls, return_exceptions=True), strict=True))

    async def _call_in_turn(
        self, action: str, paths: Sequence[Path], function: Callable[[Path], T]
    ) -> dict[Path, T | BaseException]:
        """Call a function for one path after the other in a thread, until one hangs; return what was found."""
        key, found, is_stuck = (action, paths[0]), dict[Path, T | BaseException](), False

        def call_all() -> None:
            work = self._running[key]
            for path in paths:
                work.path, work.started_s = path, time.monotonic()
                result, error = _call(partial(function, path))
                if is_stuck:  # nobody waits for this thread any more
                    return
                found[path] = error or cast(T, result)

        work = self.start(key, call_all)
        if is_stuck := not await work.wait():
            del self._running[work.key]
            work.key = action, work.path
            self._running[work.key] = work
        return dict(found)


def _call(function: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """Call a function. Return its result, or an error that a future accepts.

    Expected errors lose their tracebacks, whose frames hold what was loaded. The frames of the callers hold the future:
    this cycle would stay in memory until the garbage collector runs.
    """
    try:
        return function(), None
    except (ValueError, OSError) as error:
        drop_tracebacks(error)
        return None, error
    except StopIteration as error:
        return None, RuntimeError(f"StopIteration: {error}")
    except Exception as error:
        return None, error
    except BaseException as error:
        return None, RuntimeError(f"{type(error).__name__}: {error}")


@dataclass
class DirectoryScan:
    """Result of a scan."""

    directory: Path
    models: dict[str, Versions] = field(default_factory=dict)
    """Model name -> versions; without models whose folders cannot be read."""
    unreadable: dict[Path, str] = field(default_factory=dict)
    """Unreadable model and version folders -> error in one line."""
    misplaced: dict[Path, str] = field(default_factory=dict)
    """Folders that hold a model where none is looked for -> what is wrong, in one line."""

    @property
    def unreadable_models(self) -> dict[str, str]:
        """Names of models whose folders cannot be read -> error."""
        return {path.name: error for path, error in self.unreadable.items() if path.parent == self.directory}

    def error_of(self, path: Path) -> str:
        """Return why a folder cannot be read; empty if it can."""
        return self.unreadable.get(path) or self.unreadable.get(path.parent, "")

    def __contains__(self, key: VersionKey) -> bool:
        return key in self.models.get(key[0], ())


async def scan_directory(directory: Path, threads: StorageThreads) -> DirectoryScan:
    """Find the versions of each model. A folder that hangs hides no other.

    Raises:
        ValueError: when the directory does not exist, holds no model, or is itself a model.
        OSError: when it cannot be read.
        TimeoutError: when its storage does not answer.
    """
    scan = DirectoryScan(directory)

    def list_models() -> tuple[list[Path], dict[Path, str]]:
        return model_folders(directory), misplaced_beside(directory)

    folders, scan.misplaced = await threads.call(("list models", directory), list_models)

    async def read(action: str, paths: Sequence[Path], function: Callable[[Path], T]) -> dict[Path, T]:
        """Return what the function returns for each path, and record which paths cannot be read."""
        found = await threads.call_each(action, paths, function)
        errors = {path: error for path, error in found.items() if isinstance(error, BaseException)}
        scan.unreadable |= {path: error_line(error) for path, error in errors.items()}
        return {path: cast(T, found[path]) for path in paths if path not in errors}

    listed = await read("list versions", folders, list_model)
    versions = {folder: paths for folder, (paths, _) in listed.items()}
    for _, misplaced in listed.values():
        scan.misplaced |= misplaced
    found = await read("fingerprint", [path for paths in versions.values() for path in paths], fingerprint)
    for folder, paths in versions.items():
        present = {path: found.get(path) for path in paths if found.get(path) != _NO_FOLDER}
        if present:
            scan.models[folder.name] = {(folder.name, path.name): (path, item) for path, item in present.items()}
    if not scan.models and not scan.unreadable:
        raise await threads.call(("explain why no model was found", directory), partial(_scan_error, directory))
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
