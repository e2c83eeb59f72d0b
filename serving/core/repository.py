"""Directory of models that is polled: new versions are loaded, replaced versions swapped, removed versions unloaded.

A request keeps the model that it started with. A model is freed when its last request ends.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from serving.core.errors import error_line, shorten
from serving.core.metrics import Metrics
from serving.core.models import Model, Models, State, Version
from serving.core.storage import (
    DirectoryScan,
    Fingerprint,
    StorageThreads,
    StorageWork,
    VersionKey,
    Versions,
    fingerprint,
    scan_directory,
)

logger = logging.getLogger(__name__)

RETRY_S, MAX_RETRY_S = 2.0, 60.0
"""First and maximum delay before a version is loaded again after a storage error; the delay doubles each time."""
ABSENT_S = 0.2
"""Seconds until a second scan if a directory is missing: one that is being replaced is absent for a moment."""


@dataclass
class _VersionSlot:
    """Mutable state of one version directory."""

    path: Path
    fingerprint: Fingerprint | None = None
    """Fingerprint of the content of the last load, successful or not."""
    model: Model | None = None
    error: str = ""
    is_reported: bool = True
    """True if the error is visible to clients. A first error is held back: the directory may still be written to."""
    loading: StorageWork[Model] | None = None
    """Load that has not ended, even if no scan waits for it."""
    is_overdue: bool = False
    """True if the scan that started the load has stopped waiting for it."""
    retry_s: float = math.inf
    """Monotonic time of the next load after a storage error; inf if there was none."""
    delay_s: float = 0.0
    """Seconds from the last storage error to `retry_s`."""

    def version(self) -> Version:
        error = self.error if self.is_reported else ""
        return Version(self.path.parent.name, self.path.name, self.model, error)


class Repository:
    """Versions in a directory of models. Belongs to one event loop; `models` and `states` are thread-safe."""

    def __init__(
        self,
        directory: Path,
        load: Callable[..., Model],
        metrics: Metrics,
        publish: Callable[[Models], None],
        *,
        max_versions: int | None = None,
        defaults: Mapping[str, str] | None = None,
    ) -> None:
        """Create the repository; `load` reads the directory.

        Args:
            directory: directory of `<name>/<version>`.
            load: loads a version, like `load_model` with only `loaded`; called in threads.
            metrics: counts loads.
            publish: called with the new snapshot after every change.
            max_versions: maximum number of versions of each model, the highest that can be loaded; None for all.
            defaults: as for `Models`.
        """
        self.models = Models([])
        self._defaults = defaults or {}
        self._num_scans = 0
        """Number of complete refreshes."""
        self._since: dict[str, int] = {}
        """Name of each loaded model -> number of the refreshes before it was first loaded."""
        self._spaces: dict[str, str] = {}
        """Name, and name/version, of each model that was ever loaded -> space of its vectors."""
        self._directory = directory
        self._load_model = load
        self._metrics = metrics
        self._publish = publish
        self._max_versions = max_versions
        self._slots: dict[VersionKey, _VersionSlot] = {}
        self._unloaded: list[tuple[VersionKey, weakref.ref[Model]]] = []
        self._scan_requested = asyncio.Event()
        self._last_error = ""
        self._reported: set[Path] = set()
        """Models in wrong places that the log has named."""
        self._scan = DirectoryScan(directory)
        """Result of the last scan. Models that it could not read have the versions of the scan before."""
        self._threads = StorageThreads()
        self._polls = False
        self._scan_due_s: float | None = None
        """Monotonic time at which a complete scan became due; None while none is due."""

    @property
    def is_busy(self) -> bool:
        """True while a thread scans the directory or loads a model, even if nothing waits for it."""
        return bool(self._threads)

    @property
    def scan_age_s(self) -> float:
        """Seconds since the last complete scan. Without polling: seconds since a requested scan that has not ended;
        0 if there is none."""
        return 0.0 if self._scan_due_s is None else time.monotonic() - self._scan_due_s

    def states(self) -> dict[VersionKey, State]:
        """Return the states of all versions, including removed ones that still have requests."""
        unloading = {key: State.UNLOADING for key, model in list(self._unloaded) if model() is not None}
        return unloading | {(item.name, item.version): item.state for item in self.models.versions}

    async def load(self, *, parallel: int, strict: bool) -> None:
        """Scan the directory and load all models. Wait for slow loads only if nothing else can be served or `strict`.

        Args:
            parallel: number of models to load at the same time.
            strict: raise an error if any version cannot be loaded.

        Raises:
            ValueError: when no model can be served, or with `strict` when one cannot. The message names the errors.
            TimeoutError: when storage hangs.
            OSError: when the directory cannot be read.
        """
        await self.refresh(parallel=parallel)
        while loads := {slot.loading.future for slot in self._slots.values() if slot.loading}:
            if not strict and self.models.names:
                break
            await asyncio.wait(loads, return_when=asyncio.FIRST_COMPLETED)
        unreadable = self._scan.unreadable_models.values()
        errors = [*unreadable, *(item.error for item in self.models.versions if item.error)]
        if errors and (strict or not self.models.names):
            problem = "a model cannot be loaded, and --strict is set" if self.models.names else "no model can be loaded"
            raise (TimeoutError if self.is_busy else ValueError)(f"{problem}: {'; '.join(errors)}")

    def request_scan(self) -> None:
        """Make `watch` scan the directory immediately."""
        self._scan_requested.set()

    async def watch(self, poll_s: float) -> None:
        """Refresh until cancelled.

        Args:
            poll_s: seconds between scans; 0 to scan only after `request_scan`.
        """
        self._polls = poll_s > 0
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._scan_requested.wait(), poll_s or None)
            is_requested = self._scan_requested.is_set()
            self._scan_requested.clear()
            try:
                await self.refresh(patient=not is_requested)
                self._last_error = ""
            except (ValueError, OSError) as error:
                if (line := error_line(error)) != self._last_error:  # later scans repeat it
                    logger.error("%s; loaded models keep serving", line)
                self._last_error = line
            except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
                raise
            except BaseException:  # the watcher must not end: new models would never be found
                logger.exception("scanning the models failed; the next scan tries again")

    async def refresh(self, *, patient: bool = False, parallel: int = 1) -> None:
        """Scan the directory, load new versions, then unload removed ones.

        Args:
            patient: report a load error only if the directory is unchanged at the next scan (it may still be written
                to), and do not load a failed version again until it changes.
            parallel: number of models to load at the same time.

        Raises:
            ValueError, OSError: when there is no directory of models or no model in it; nothing changes then.
        """
        scan = await self._scan_directory()
        limit = asyncio.Semaphore(parallel)
        refreshing = (self._refresh(versions, patient, limit) for versions in scan.models.values())
        kept: set[VersionKey] = set()
        for name, found in zip(scan.models, await asyncio.gather(*refreshing, return_exceptions=True), strict=True):
            if isinstance(found, Exception):  # must not affect other models
                logger.error("refreshing the versions of `%s` failed; the next scan tries again", name, exc_info=found)
                kept.update(key for key in self._slots if key[0] == name)
            elif isinstance(found, BaseException):
                raise found
            else:
                kept |= found
        for key in self._slots.keys() - kept:
            if not self._stays(key, kept):
                logger.info("unloading %s/%s", *key)
                self._unload(key, self._slots.pop(key).model)
        self._publish_changes()
        self._num_scans += 1

    async def _scan_directory(self) -> DirectoryScan:
        """Scan the directory; unreadable models keep the versions of the scan before."""
        self._scan_due_s = self._scan_due_s or time.monotonic()
        scan = await scan_directory(self._directory, self._threads)
        if any(key not in scan and not scan.error_of(self._directory / key[0]) for key in self._slots):
            await asyncio.sleep(ABSENT_S)
            scan = await scan_directory(self._directory, self._threads)
        before, self._scan = self._scan, scan
        for path, error in scan.unreadable.items():
            if error != before.unreadable.get(path):
                logger.error("%s; loaded versions of `%s` keep serving", error, path.relative_to(self._directory))
        lasting = scan.misplaced.keys() & (before if self._num_scans else scan).misplaced.keys()  # not being copied
        for path in sorted(lasting - self._reported):
            logger.warning("%s", scan.misplaced[path])
        self._reported = lasting
        for path in before.unreadable.keys() - scan.unreadable.keys():
            logger.info("`%s` can be read again", path)
        for name in scan.unreadable_models:
            scan.models[name] = before.models.get(name, {})
        if not scan.unreadable:
            self._scan_due_s = time.monotonic() if self._polls else None
        return scan

    async def _refresh(self, versions: Versions, patient: bool, limit: asyncio.Semaphore) -> set[VersionKey]:
        """Load the new versions of a model, highest first; return the versions to keep."""
        kept: set[VersionKey] = set()
        num_ready = 0
        for key, (path, found) in reversed(versions.items()):
            if num_ready == self._max_versions:
                break
            kept.add(key)
            slot = self._slots.setdefault(key, _VersionSlot(path))
            is_new = slot.fingerprint != found
            if found is None:
                slot.error = slot.error or ("" if slot.model else self._scan.error_of(path))
            elif not slot.loading and (is_new or (slot.error and (not patient or time.monotonic() >= slot.retry_s))):
                async with limit:
                    await self._load(key, slot, found)
            if not slot.is_reported and not (is_new and patient):
                self._report(key, slot)
            num_ready += slot.model is not None
        return kept

    def _stays(self, key: VersionKey, kept: set[VersionKey]) -> bool:
        """Return whether a removed version stays for now: its load, or the load of its replacement, has not ended."""
        others = [self._slots[other] for other in kept if other[0] == key[0]]
        is_replaced = any(slot.model for slot in others) or not any(slot.loading for slot in others)
        return bool(self._slots[key].loading) or not is_replaced

    async def _load(self, key: VersionKey, slot: _VersionSlot, found: Fingerprint) -> None:
        if slot.fingerprint != found and not slot.model:  # the error belongs to the content before
            slot.error, slot.is_reported, slot.delay_s = "", True, 0.0
        self._publish_changes()
        self._metrics.version_seen(*key)
        started_s = time.perf_counter()
        load = partial(self._load_unchanged, slot.path, slot.model, found)
        slot.is_overdue, slot.retry_s = False, math.inf
        slot.loading = call = self._threads.start(("load", slot.path), load)
        slot.fingerprint = found
        call.future.add_done_callback(partial(self._loaded, key, slot, started_s))
        slot.is_overdue = not await call.wait()
        if slot.is_overdue:
            logger.warning(
                "loading %s/%s has not ended after %.0f s: its storage or graph hangs or is slow; others go on loading",
                *key,
                time.perf_counter() - started_s,
            )

    def _loaded(self, key: VersionKey, slot: _VersionSlot, started_s: float, future: asyncio.Future[Model]) -> None:
        slot.loading = None
        if future.cancelled():
            return
        before, is_known = slot.error, False
        if not (error := future.exception()):
            slot.delay_s = 0.0
            self._serve(key, slot, future.result(), time.perf_counter() - started_s)
        elif isinstance(error, (ValueError, OSError)):
            slot.error = shorten(error_line(error))
        else:
            logger.error("loading %s/%s failed", *key, exc_info=error)
            slot.error = shorten(f"unexpected {type(error).__name__}; the server's log has the traceback")
        if isinstance(error, OSError):
            slot.delay_s = min(max(RETRY_S, 2 * slot.delay_s), MAX_RETRY_S)
            slot.retry_s = time.monotonic() + slot.delay_s
            is_known = slot.is_reported and slot.error == before
        slot.is_reported = is_known or not slot.error
        if not slot.is_reported and slot.is_overdue:  # no scan waits that would report it
            self._report(key, slot)
        self._publish_changes()

    def _serve(self, key: VersionKey, slot: _VersionSlot, model: Model, seconds: float) -> None:
        """Replace the model of a version."""
        before, slot.model, slot.error = slot.model, model, ""
        if model is not before:
            self._unload(key, before)
            self._metrics.model_loaded(model, seconds)
            logger.info("loaded %s in %.2f s", model, seconds)
            self._warn_of_another(model)

    def _warn_of_another(self, model: Model) -> None:
        """Say which model answers requests without a name if the first one of its task was there before."""
        task, own = model.task.name, model.manifest.name
        others = [item.manifest.name for item in self.models.highest if item.task.name == task]
        if self._num_scans and others and own not in self.models.names and task not in self._defaults:
            name = min(others, key=lambda item: self._since[item])
            logger.warning(
                "another model for the task `%s`: `%s`; requests without a name still get `%s`, until a restart: set "
                "--default-model %s=%s",
                *(task, own, name, task, name),
            )

    def _load_unchanged(self, path: Path, loaded: Model | None, found: Fingerprint) -> Model:
        """Load a directory; raise an error if it changes during the load, as its files might not match."""
        model = self._load_model(path, loaded=loaded)
        if fingerprint(path) != found:
            raise ValueError(f"`{path}` was written to while it was loaded; write it elsewhere and rename it")
        return model

    def _report(self, key: VersionKey, slot: _VersionSlot) -> None:
        slot.is_reported = True
        self._metrics.model_failed(*key)
        outcome = "the model loaded before keeps serving" if slot.model else "it is not served"
        logger.error("cannot load %s/%s, %s: %s", *key, outcome, slot.error)
        self._publish_changes()

    def _unload(self, key: VersionKey, model: Model | None) -> None:
        if model:
            self._unloaded = [(item, reference) for item, reference in self._unloaded if reference() is not None]
            self._unloaded.append((key, weakref.ref(model)))
            self._metrics.model_unloaded(model)

    def _publish_changes(self) -> None:
        """Publish the versions if they changed."""
        versions = [slot.version() for slot in self._slots.values()]
        loaded = {item.name for item in versions if item.model}
        self._since = {name: self._since.get(name, self._num_scans) for name in loaded}
        models = Models(versions, since=self._since, defaults=self._defaults)
        if models.versions != self.models.versions:
            self._warn_of_spaces(models)
            self.models = models
            self._publish(models)

    def _warn_of_spaces(self, models: Models) -> None:
        """Warn of a name under which vectors are now of another space: stored ones cannot be compared with them."""
        found = {model.manifest.name: model.manifest.space for model in models.highest}
        found |= {f"{model.manifest.name}/{model.manifest.version}": model.manifest.space for model in models}
        changed = [key for key, space in found.items() if self._num_scans and self._spaces.get(key, space) != space]
        for key in changed:
            if (name := key.partition("/")[0]) == key or name not in changed:
                before, now = (spaces[key] or "unknown" for spaces in (self._spaces, found))
                logger.warning(
                    "`%s` now gives vectors of space `%s`, not of `%s`: compute stored ones again, or refuse such a "
                    "change with --space",
                    *(key, now, before),
                )
        self._spaces |= found
