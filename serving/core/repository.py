"""The directory of models, watched: what is new is loaded beside what serves, what is replaced is swapped, and what is
gone is unloaded.

A request keeps the model that it began with, hence nothing is dropped or mixed; the last to let go of a model frees it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from serving.core.errors import error_line, shorten
from serving.core.look import Content, Found, Key, Versions, content, look
from serving.core.models import Model, Models, State, Version
from serving.core.storage_threads import StorageThreads, StorageWork

logger = logging.getLogger(__name__)

RETRY_S, MAX_RETRY_S = 2.0, 60.0
"""Seconds after which a version whose storage failed is loaded again, and the most that this doubles to."""
ABSENT_S = 0.2
"""A directory that is replaced is absent for a moment: what is missing is looked for again after this."""


class Load(Protocol):
    """Loads a model directory; returns what was loaded from there before where it holds the same still."""

    def __call__(self, path: Path, *, loaded: Model | None) -> Model:
        """Raises ValueError or OSError, telling what is wrong with the directory."""


class Observer(Protocol):
    """Is told what becomes of models, in the event loop."""

    def version_seen(self, name: str, version: str) -> None:
        """A version is about to be loaded."""

    def model_loaded(self, model: Model, seconds: float) -> None:
        """A model is ready."""

    def model_failed(self, name: str, version: str) -> None:
        """What a directory holds cannot be served."""

    def model_unloaded(self, model: Model) -> None:
        """A model answers no further requests."""


@dataclass
class _Slot:
    """A version directory."""

    path: Path
    content: Content | None = None
    """What was last loaded from it, or failed to."""
    model: Model | None = None
    error: str = ""
    told: bool = True
    """Whether the error is known outside: a directory may be seen while it is being written."""
    loading: StorageWork[Model] | None = None
    """A load that has not ended, even if no look waits for it any more."""
    is_late: bool = False
    """Whether no look waits for the load any more."""
    retry_s: float = math.inf
    """When to load the version again, on the monotonic clock; inf unless storage failed: its content may be right."""
    pause_s: float = 0.0
    """Seconds from the last failure of its storage to `retry_s`."""

    def version(self) -> Version:
        return Version(self.path.parent.name, self.path.name, self.model, self.error if self.told else "")


class Repository:
    """The versions in a directory of models. Lives in one event loop; `models` and `states` may be read anywhere."""

    def __init__(
        self,
        directory: Path,
        load: Load,
        observer: Observer,
        publish: Callable[[Models], None],
        *,
        max_versions: int | None = None,
    ) -> None:
        """Nothing is read yet.

        Args:
            directory: holds `<name>/<version>`.
            load: called in threads.
            publish: called after every change with what there is now.
            max_versions: of each model, so many of the highest that can be loaded.
        """
        self.models = Models([])
        self._directory = directory
        self._load_model = load
        self._observer = observer
        self._publish = publish
        self._max_versions = max_versions
        self._slots: dict[Key, _Slot] = {}
        self._unloaded: list[tuple[Key, weakref.ref[Model]]] = []
        self._woken = asyncio.Event()
        self._complaint = ""
        self._found = Found(directory)
        """Result of the last look; models that could not be read then are as the look before found them."""
        self._threads = StorageThreads()
        self._polls = False
        self._wanted_s: float | None = None
        """When a look at the whole directory became due, on the monotonic clock; None while none is due."""

    @property
    def is_busy(self) -> bool:
        """Whether a thread looks at storage or loads a model, even if nobody waits for it any more."""
        return bool(self._threads)

    @property
    def look_age_s(self) -> float:
        """Seconds since the last look that saw the whole directory. Without polling: since a look was asked for that
        has not ended, else 0."""
        return 0.0 if self._wanted_s is None else time.monotonic() - self._wanted_s

    def states(self) -> dict[Key, State]:
        """Of all versions, those included that are gone but for the requests that began with them."""
        unloading = {key: State.UNLOADING for key, model in list(self._unloaded) if model() is not None}
        return unloading | {(item.name, item.version): item.state for item in self.models.versions}

    async def load(self, *, parallel: int, strict: bool) -> None:
        """Look for the first time. Wait for slow loads only where nothing else can be served, or with `strict`.

        Args:
            parallel: models to load at the same time.
            strict: whether one version that cannot be loaded is one too many.

        Raises:
            ValueError: when nothing can be served, or with `strict` not all, telling why.
            TimeoutError: when the reason is storage that hangs.
            OSError: when the directory cannot be read.
        """
        await self.refresh(parallel=parallel)
        while (late := self._late()) and (strict or not self.models.names):
            await asyncio.wait(late, return_when=asyncio.FIRST_COMPLETED)
        unreadable = self._found.unreadable_models.values()
        errors = [*unreadable, *(item.error for item in self.models.versions if item.error)]
        if errors and (strict or not self.models.names):
            trouble = "--strict, and a model cannot be loaded" if self.models.names else "no model can be loaded"
            raise (TimeoutError if self.is_busy else ValueError)(f"{trouble}: {'; '.join(errors)}")

    def _late(self) -> set[asyncio.Future[Model]]:
        return {slot.loading.future for slot in self._slots.values() if slot.loading}

    def wake(self) -> None:
        """Let `watch` look at once."""
        self._woken.set()

    async def watch(self, poll_s: float) -> None:
        """Refresh for ever.

        Args:
            poll_s: seconds between looks; 0 for none but those that `wake` asks for.
        """
        self._polls = poll_s > 0
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), poll_s or None)
            at_once = self._woken.is_set()
            self._woken.clear()
            try:
                await self.refresh(patient=not at_once)
                self._complaint = ""
            except (ValueError, OSError) as error:
                self._complain(f"{error_line(error)}; what is loaded goes on serving")
            except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
                raise
            except BaseException:  # a watcher that has ended would look like one that finds nothing new
                logger.exception("looking for models failed; it is tried again")

    async def refresh(self, *, patient: bool = False, parallel: int = 1) -> None:
        """Look at the directory, load what is new, and then let go of what is gone.

        Args:
            patient: what cannot be loaded is called failed when it has stayed the same until the next look, and not
                tried again until it changes.
            parallel: models to load at the same time.

        Raises:
            ValueError, OSError: when there is no directory of models, or nothing in it; all stays as it was.
        """
        found = await self._look()
        limit = asyncio.Semaphore(parallel)
        each = await asyncio.gather(
            *(self._refresh(name, versions, patient, limit) for name, versions in found.models.items())
        )
        kept: set[Key] = set().union(*each)
        for key in self._slots.keys() - kept:
            if not self._stays(key, kept):
                logger.info("unloading %s/%s", *key)
                self._unload(key, self._slots.pop(key).model)
        self._changed()

    async def _look(self) -> Found:
        """Look at the directory; models that cannot be read are as the look before found them."""
        self._wanted_s = self._wanted_s or time.monotonic()
        found = await look(self._directory, self._threads)
        if any(key not in found and not found.why(self._directory / key[0]) for key in self._slots):
            await asyncio.sleep(ABSENT_S)
            found = await look(self._directory, self._threads)
        before, self._found = self._found, found
        self._note_unreadable(before)
        for name in found.unreadable_models:
            found.models[name] = before.models.get(name, {})
        if not found.unreadable:
            self._wanted_s = time.monotonic() if self._polls else None
        return found

    def _note_unreadable(self, before: Found) -> None:
        """Log what cannot be read, once, and what can be again."""
        for path, error in self._found.unreadable.items():
            if error != before.unreadable.get(path):
                name = path.relative_to(self._directory)
                logger.error("%s; what is loaded of `%s` goes on serving", error, name)
        for path in before.unreadable.keys() - self._found.unreadable.keys():
            logger.info("`%s` is no longer in trouble", path)

    async def _refresh(self, name: str, versions: Versions, patient: bool, limit: asyncio.Semaphore) -> set[Key]:
        """Load what is new among the versions of a model; returns those to keep."""
        try:
            return await self._refresh_each(versions, patient, limit)
        except Exception:  # must not affect other models
            logger.exception("looking after the versions of `%s` failed; it is tried again", name)
            return {key for key in self._slots if key[0] == name}

    async def _refresh_each(self, versions: Versions, patient: bool, limit: asyncio.Semaphore) -> set[Key]:
        """Load the highest versions first; returns those to keep."""
        kept: set[Key] = set()
        num_ready = 0
        for key, (path, found) in reversed(versions.items()):
            if num_ready == self._max_versions:
                break
            kept.add(key)
            slot = self._slots.setdefault(key, _Slot(path))
            is_new = slot.content != found
            if found is None:
                slot.error = slot.error or ("" if slot.model else self._found.why(path))
            elif not slot.loading and (is_new or (slot.error and (not patient or time.monotonic() >= slot.retry_s))):
                async with limit:
                    await self._load(key, slot, found)
            if not slot.told and not (is_new and patient):
                self._tell(key, slot)
            num_ready += slot.model is not None
        return kept

    def _stays(self, key: Key, kept: set[Key]) -> bool:
        """Whether a removed version is kept for now: its own load has not ended, or that of its replacement."""
        others = [self._slots[other] for other in kept if other[0] == key[0]]
        is_replaced = any(slot.model for slot in others) or not any(slot.loading for slot in others)
        return bool(self._slots[key].loading) or not is_replaced

    async def _load(self, key: Key, slot: _Slot, found: Content) -> None:
        if slot.content != found and not slot.model:  # what failed was something else
            slot.error, slot.told, slot.pause_s = "", True, 0.0
        self._changed()
        self._observer.version_seen(*key)
        started_s = time.perf_counter()
        load = partial(self._load_unchanged, slot.path, slot.model, found)
        slot.is_late, slot.retry_s = False, math.inf
        slot.loading = work = self._threads.start(("load", slot.path), load)
        slot.content = found
        work.future.add_done_callback(partial(self._loaded, key, slot, started_s))
        slot.is_late = not await work.wait()
        if slot.is_late:
            logger.warning(
                "loading %s/%s has not ended after %.0f s: its storage hangs, or it takes long; others go on",
                *key,
                time.perf_counter() - started_s,
            )

    def _loaded(self, key: Key, slot: _Slot, started_s: float, future: asyncio.Future[Model]) -> None:
        slot.loading = None
        if future.cancelled():
            return
        before, is_old = slot.error, False
        if not (error := future.exception()):
            slot.pause_s = 0.0
            self._put(key, slot, future.result(), time.perf_counter() - started_s)
        elif isinstance(error, (ValueError, OSError)):
            slot.error = shorten(error_line(error))
        else:
            logger.error("loading %s/%s failed", *key, exc_info=error)
            slot.error = shorten(f"unforeseen {type(error).__name__}; the log of the server has more")
        if isinstance(error, OSError):
            slot.pause_s = min(max(RETRY_S, 2 * slot.pause_s), MAX_RETRY_S)
            slot.retry_s = time.monotonic() + slot.pause_s
            is_old = slot.told and slot.error == before
        slot.told = is_old or not slot.error
        if not slot.told and slot.is_late:  # no look is under way that would tell
            self._tell(key, slot)
        self._changed()

    def _put(self, key: Key, slot: _Slot, model: Model, seconds: float) -> None:
        """Serve a model from now on."""
        before, slot.model, slot.error = slot.model, model, ""
        if model is not before:
            self._unload(key, before)
            self._observer.model_loaded(model, seconds)
            logger.info("loaded %s in %.2f s", model, seconds)

    def _load_unchanged(self, path: Path, loaded: Model | None, found: Content) -> Model:
        """Load a directory; raise if it changes meanwhile, as manifest and graph might not belong together."""
        model = self._load_model(path, loaded=loaded)
        if content(path) != found:
            raise ValueError(f"`{path}` was written to while it was loaded; write it elsewhere and rename it")
        return model

    def _tell(self, key: Key, slot: _Slot) -> None:
        slot.told = True
        self._observer.model_failed(*key)
        outcome = "the one that was there before goes on serving" if slot.model else "it is not served"
        logger.error("cannot load %s/%s, %s: %s", *key, outcome, slot.error)
        self._changed()

    def _unload(self, key: Key, model: Model | None) -> None:
        if model:
            self._unloaded = [(item, reference) for item, reference in self._unloaded if reference() is not None]
            self._unloaded.append((key, weakref.ref(model)))
            self._observer.model_unloaded(model)

    def _changed(self) -> None:
        """Publish the versions if they changed."""
        models = Models([slot.version() for slot in self._slots.values()])
        if models.versions != self.models.versions:
            self.models = models
            self._publish(models)

    def _complain(self, complaint: str) -> None:
        """Log a complaint once, however many looks repeat it."""
        if complaint != self._complaint:
            logger.error("%s", complaint)
            self._complaint = complaint
