"""The directory of models, watched: what is new is loaded beside what serves, what is replaced is swapped, and what is
gone is unloaded.

A request keeps the model that it began with, hence nothing is dropped or mixed; the last to let go of a model frees it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from serving.errors import told
from serving.models import Model, Models, State, Version
from tasks.manifest import MANIFEST_FILE, model_folders, no_models, version_directories

logger = logging.getLogger(__name__)

ABSENT_S = 0.2
"""A directory that is replaced is absent for a moment: what is missing is looked for again after this."""

Key = tuple[str, str]
"""Name and version."""
Content = tuple[bytes, tuple[tuple[str, int, int], ...]]
"""What tells one content of a directory from another: its manifest; name, size and time of each file."""
Versions = dict[Key, tuple[Path, Content]]
"""Of one model, lowest first."""


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
        self._found: dict[str, Versions] = {}
        """At the last look, by model."""
        self._unreadable: dict[str, str] = {}
        """Models whose folders could not be read then, and why."""
        self._loading: set[Path] = set()
        """What threads load."""

    @property
    def is_loading(self) -> bool:
        """Whether a model is being loaded, be it that nobody waits for it any more."""
        return bool(self._loading)

    def states(self) -> dict[Key, State]:
        """Of all versions, those included that are gone but for the requests that began with them."""
        unloading = {key: State.UNLOADING for key, model in list(self._unloaded) if model() is not None}
        return unloading | {(item.name, item.version): item.state for item in self.models.versions}

    async def load(self, *, parallel: int, strict: bool) -> None:
        """The first look.

        Args:
            parallel: models to load at the same time.
            strict: whether one version that cannot be loaded is one too many.

        Raises:
            ValueError: when nothing can be served, or with `strict` not all, telling why.
            OSError: when the directory cannot be read.
        """
        await self.refresh(parallel=parallel)
        errors = [*self._unreadable.values(), *(item.error for item in self.models.versions if item.error)]
        if errors and (strict or not self.models.names):
            trouble = "--strict, and a model cannot be loaded" if self.models.names else "no model can be loaded"
            raise ValueError(f"{trouble}: {'; '.join(errors)}")

    def wake(self) -> None:
        """Let `watch` look at once."""
        self._woken.set()

    async def watch(self, poll_s: float) -> None:
        """Refresh for ever.

        Args:
            poll_s: seconds between looks; 0 for none but those that `wake` asks for.
        """
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), poll_s or None)
            at_once = self._woken.is_set()
            self._woken.clear()
            try:
                await self.refresh(patient=not at_once)
                self._complaint = ""
            except (ValueError, OSError) as error:
                self._complain(f"{told(error)}; what is loaded goes on serving")
            except Exception:
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
        kept = await asyncio.gather(*(self._refresh(versions, patient, limit) for versions in found.values()))
        for key in self._slots.keys() - set().union(*kept):
            logger.info("unloading %s/%s", *key)
            self._unload(key, self._slots.pop(key).model)
        self._changed()

    async def _look(self) -> dict[str, Versions]:
        """What there is; of a model whose folder cannot be read, what there was."""
        found, unreadable = await asyncio.to_thread(_scan, self._directory)
        if any(key not in found.get(key[0], ()) and key[0] not in unreadable for key in self._slots):
            await asyncio.sleep(ABSENT_S)
            found, unreadable = await asyncio.to_thread(_scan, self._directory)
        for name, error in unreadable.items():
            if error != self._unreadable.get(name):
                logger.error("%s; what is loaded of `%s` goes on serving", error, name)
        self._unreadable = unreadable
        self._found = {name: self._found.get(name, {}) for name in unreadable} | found
        return self._found

    async def _refresh(self, versions: Versions, patient: bool, limit: asyncio.Semaphore) -> set[Key]:
        """Load what is new among the versions of a model, highest first; returns those to keep."""
        kept: set[Key] = set()
        num_ready = 0
        for key, (path, content) in reversed(versions.items()):
            if num_ready == self._max_versions:
                break
            kept.add(key)
            slot = self._slots.setdefault(key, _Slot(path))
            is_new = slot.content != content
            if is_new or (slot.error and not patient):
                async with limit:
                    await self._load(key, slot, content)
            if not slot.told and not (is_new and patient):
                self._tell(key, slot)
            num_ready += slot.model is not None
        return kept

    async def _load(self, key: Key, slot: _Slot, content: Content) -> None:
        if slot.content != content and not slot.model:  # what failed was something else
            slot.error, slot.told = "", True
        self._changed()
        self._observer.version_seen(*key)
        started, before = time.perf_counter(), slot.model
        slot.content = content
        try:
            slot.model = await asyncio.to_thread(self._load_unchanged, slot, content)
            slot.error = ""
        except (ValueError, OSError) as error:
            slot.error = told(error)
        except Exception as error:
            logger.exception("loading %s/%s failed", *key)
            slot.error = f"unforeseen {type(error).__name__}; the log of the server has more"
        slot.told = not slot.error
        if slot.model and slot.model is not before:
            seconds = time.perf_counter() - started
            self._unload(key, before)
            self._observer.model_loaded(slot.model, seconds)
            logger.info("loaded %s in %.2f s", slot.model, seconds)
        self._changed()

    def _load_unchanged(self, slot: _Slot, content: Content) -> Model:
        """Load a directory of which nothing is replaced meanwhile, so that manifest and graph belong together."""
        self._loading.add(slot.path)
        try:
            model = self._load_model(slot.path, loaded=slot.model)
            if _content(slot.path) != content:
                raise ValueError(f"`{slot.path}` was written to while it was loaded; write it elsewhere and rename it")
            return model
        finally:
            self._loading.discard(slot.path)

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
        """Publish what there is, where it is not what there was."""
        models = Models([slot.version() for slot in self._slots.values()])
        if models.versions != self.models.versions:
            self.models = models
            self._publish(models)

    def _complain(self, complaint: str) -> None:
        """Log what is the same at every look once."""
        if complaint != self._complaint:
            logger.error("%s", complaint)
            self._complaint = complaint


def _scan(directory: Path) -> tuple[dict[str, Versions], dict[str, str]]:
    """The versions of each model, and why the folders of others cannot be read.

    Raises:
        ValueError, OSError: when there is no directory of models, or nothing in it.
    """
    found: dict[str, Versions] = {}
    unreadable: dict[str, str] = {}
    for folder in model_folders(directory):
        try:
            paths = version_directories(folder)
        except OSError as error:
            unreadable[folder.name] = told(error)
            continue
        if paths:
            found[folder.name] = {(folder.name, path.name): (path, _content(path)) for path in paths}
    if not found and not unreadable:
        raise no_models(directory)
    return found, unreadable


def _content(path: Path) -> Content:
    """Empty as far as it cannot be read: loading it tells why."""
    manifest = b""
    with suppress(OSError):
        manifest = (path / MANIFEST_FILE).read_bytes()
    return manifest, tuple(sorted(_files(path)))


def _files(path: Path) -> Iterator[tuple[str, int, int]]:
    with suppress(OSError):
        for item in os.scandir(path):
            with suppress(OSError):  # a link to nowhere
                status = item.stat()
                yield item.name, status.st_size, status.st_mtime_ns
