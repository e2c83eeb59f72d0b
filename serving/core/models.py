"""The models: which there are, which answers a request, and how each computes."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from pathlib import Path
from weakref import WeakValueDictionary

import numpy as np

from serving.core.errors import InvalidRequestError, ModelNotFoundError, UnavailableError
from serving.core.session import Arrays, Engine, Run
from tasks.base import AnyTask, Outputs
from tasks.features import Features, collate, split_outputs
from tasks.manifest import Execution, Manifest
from tasks.model_directory import ModelDirectory, parse_model_path, read_model_directory
from tasks.registry import create_task
from tasks.tokenizer import Tokenizer
from tasks.tokenizer_files import TOKENIZER_FILE

MAX_RUNS, ENOUGH_S = 5, 0.1
"""Of a batch that is measured when a model is loaded: one more, as long as it took no longer."""


@dataclass(frozen=True, eq=False)
class Model:
    """One version of a model."""

    manifest: Manifest
    task: AnyTask
    engine: Engine
    execution: Execution
    """How its graph is run: what the manifest says, but for what the server was told otherwise."""
    measured: Sequence[tuple[int, float]] = ()
    """Tokens, padding included, and seconds of a core of the batches that warmed it up."""
    manifest_json: str = ""
    """Its manifest, as clients see it. A large one takes a second to write: too long for the event loop."""

    @property
    def max_batch_tokens(self) -> int:
        """Cap of a batch in padded tokens."""
        return self.execution.max_batch_tokens

    @property
    def num_threads(self) -> int:
        """Cores that a batch takes."""
        return self.execution.num_threads

    def __str__(self) -> str:
        return f"{self.manifest.name}/{self.manifest.version} ({self.manifest.task})"

    def new_run(self) -> Run:
        """For `compute`, once."""
        return Run()

    def compute(self, sequences: Sequence[Features], run: Run | None = None) -> list[Outputs]:
        """Run one batch; the outputs of each sequence, without padding."""
        outputs = self.engine.run(collate(sequences, pad_id=self.task.tokenizer.pad_id), run)
        return split_outputs(outputs, [len(item) for item in sequences], token_outputs=self.task.token_outputs)

    def warm_up(self) -> list[tuple[int, float]]:
        """Run the longest and the smallest sequence, and check the shapes of what comes.

        Returns:
            Tokens of each batch, padding included, and the seconds of a core that it took.

        Raises:
            ValueError: when the graph fails or its outputs are not those of the task.
        """
        tokenizer, measured = self.task.tokenizer, []
        for length in (self.task.settings.max_seq_length, 3):
            ids = np.full(length - 2, tokenizer.mask_id)
            batch = [Features(**tokenizer.assemble(ids)), Features(**tokenizer.assemble(ids[:1]))]
            arrays = collate(batch, pad_id=tokenizer.pad_id)
            try:
                outputs = self.engine.run(arrays)  # the first run takes longer than all after it
                seconds = self._seconds(arrays)
            except Exception as error:  # ONNX Runtime's own errors share no base class
                reason = str(error).splitlines()[0]
                raise ValueError(f"`{self.engine.path}` fails on {length} tokens: {reason}") from error
            measured.append((2 * length, seconds * self.num_threads))
            self._check_shapes(outputs, length)
        return measured

    def _seconds(self, arrays: Arrays) -> float:
        """Of the fastest of a few runs: what else the machine does makes one longer, never shorter."""
        found, started = list[float](), time.monotonic()
        while len(found) < MAX_RUNS and (not found or time.monotonic() - started < ENOUGH_S):
            begun = time.monotonic()
            self.engine.run(arrays)
            found.append(time.monotonic() - begun)
        return min(found)

    def _check_shapes(self, outputs: Arrays, length: int) -> None:
        axes = (2, length) if self.task.token_outputs else (2,)
        for name, array in outputs.items():
            if array.shape != (expected := (*axes, *self.last_axis)):
                raise ValueError(
                    f"output `{name}` of `{self.engine.path}` has shape {list(array.shape)} where the manifest "
                    f"implies {list(expected)}; export the model again"
                )

    def num_outputs(self, lengths: Sequence[int]) -> int:
        """How many numbers each output holds for sequences of so many tokens."""
        return math.prod(self.last_axis) * (sum(lengths) if self.task.token_outputs else len(lengths))

    @cached_property
    def last_axis(self) -> tuple[int, ...]:
        """Size of the last axis of its outputs; empty where they are single numbers."""
        labels = (len(getattr(self.task.settings, "labels", ())),)
        sizes: dict[str, tuple[int, ...]] = {
            "embedding": (self.manifest.hidden_size,),
            "classification": labels,
            "regression": (1,),
            "tagging": labels,
            "masked-lm": (self.manifest.vocab_size,),
        }
        return sizes.get(self.task.name, ())


def load_model(
    path: Path,
    *,
    max_batch_tokens: int | None = None,
    num_threads: int | None = None,
    workers: int | None = None,
    loaded: Model | None = None,
) -> Model:
    """Load a model directory, ready to compute.

    Args:
        path: `<models>/<name>/<version>`.
        max_batch_tokens: instead of what the manifest says.
        num_threads: likewise, of a batch.
        workers: cores there are: a batch has no more threads.
        loaded: what was loaded from there before; returned where the directory holds the same still.

    Raises:
        ValueError: naming what is wrong with the directory.
    """
    directory = read_model_directory(path)
    manifest = directory.manifest
    if loaded and loaded.manifest == manifest:
        return loaded
    if parse_model_path(path) != (manifest.name, manifest.version):
        raise ValueError(
            f"`{path}` holds a manifest of `{manifest.name}/{manifest.version}`; move it there, or change the manifest"
        )
    task = create_task(manifest.task, _tokenizer(directory), manifest.settings)
    if task.tokenizer.vocab_size > manifest.vocab_size:
        raise ValueError(
            f"`{path / TOKENIZER_FILE}` has token ids up to {task.tokenizer.vocab_size - 1} where the manifest says "
            f"vocab_size `{manifest.vocab_size}`; export the model again"
        )
    num_threads = num_threads or manifest.execution.num_threads
    execution = replace(
        manifest.execution,
        max_batch_tokens=max_batch_tokens or manifest.execution.max_batch_tokens,
        num_threads=min(num_threads, workers or num_threads),
    )
    engine = Engine(directory, task.output_names, execution)
    model = Model(manifest=manifest, task=task, engine=engine, execution=execution)
    return replace(model, measured=model.warm_up(), manifest_json=manifest.to_json())


_tokenizers: WeakValueDictionary[str, Tokenizer] = WeakValueDictionary()
"""Tokenizers in use, by digest. Reading one stops all threads, for 45 ms a MB (`tokenizers` holds the interpreter
lock), and the next version of a model mostly has the same."""


def _tokenizer(directory: ModelDirectory) -> Tokenizer:
    digest = directory.manifest.files[TOKENIZER_FILE]
    tokenizer = _tokenizers.get(digest) or _read_tokenizer(directory)
    _tokenizers[digest] = tokenizer
    return tokenizer


_PROBES = ("A text, with CAPITALS and 12 numbers.", "naïve cafe\u0301", "中文 русский עברית", "🙂\u200d", "\x00 \ufffd")


def _read_tokenizer(directory: ModelDirectory) -> Tokenizer:
    """Read a tokenizer and try it: some broken files fail only when they are used."""
    tokenizer = Tokenizer.load(directory.path)
    try:
        tokenizer.tokenize(_PROBES)
    except Exception as error:  # tokenizers raises bare Exception
        raise ValueError(f"`{directory.path / TOKENIZER_FILE}` is broken: {error}") from error
    return tokenizer


class State(Enum):
    """What becomes of a version, from when it is seen until it is gone."""

    LOADING = "loading"
    READY = "ready"
    STALE = "stale"
    """Answers requests as before: what lies in its directory now cannot be loaded."""
    FAILED = "failed"
    """Cannot be loaded; requests for it are refused."""
    UNLOADING = "unloading"
    """Its directory is gone, and requests that began with it are still computed."""


@dataclass(frozen=True)
class Version:
    """What is known of a version directory."""

    name: str
    version: str
    model: Model | None = None
    """What answers requests for it, if anything does."""
    error: str = ""
    """Why what lies in the directory cannot be served, in one line. The model that was there before goes on serving."""

    @property
    def state(self) -> State:
        """Whether it answers requests."""
        if self.model:
            return State.STALE if self.error else State.READY
        return State.FAILED if self.error else State.LOADING

    def __str__(self) -> str:
        return f"{self.name}/{self.version}"


class Models:
    """The versions there are at one moment, and the loaded models by name and version."""

    def __init__(self, versions: Sequence[Version]) -> None:
        self.versions = tuple(sorted(versions, key=lambda item: (item.name, int(item.version))))
        """By name, then lowest version first."""
        self._by_name: dict[str, dict[str, Model]] = {}
        for item in self.versions:
            if item.model:
                self._by_name.setdefault(item.name, {})[item.version] = item.model

    def __iter__(self) -> Iterator[Model]:
        """The loaded ones by name, then lowest version first."""
        return (model for versions in self._by_name.values() for model in versions.values())

    @property
    def names(self) -> list[str]:
        """Names of loaded models, in order."""
        return list(self._by_name)

    def find(self, name: str, version: str, task: str | None = None) -> Model:
        """The model that a request asks for.

        Args:
            name: empty for the only model, of the task where one is given.
            version: empty for the highest.
            task: what the request wants done; None for what every model can do.

        Raises:
            ModelNotFoundError: when no such model or version is loaded.
            UnavailableError: when it is being loaded, or may be.
            InvalidRequestError: when the name is empty and not exactly one model does the task, or the model does
                another task.
        """
        name = name or self._only(task)
        versions = self._by_name.get(name, {})
        if not versions or (version and version not in versions):
            self._check_known(name, version)
        if not versions:
            hint = "; its version is a field of its own" if "/" in name else ""
            raise ModelNotFoundError(f"no model of that name: `{name}`{hint} (loaded: {_listing(self)})")
        if version and version not in versions:
            raise ModelNotFoundError(f"no such version of `{name}`: `{version}` (loaded: {', '.join(versions)})")
        model = versions[version] if version else _highest(versions)
        if task not in (None, model.task.name):
            raise InvalidRequestError(f"{model} does not do this task: `{task}` (loaded: {_listing(self)})")
        return model

    def _check_known(self, name: str, version: str) -> None:
        """Raise what tells more of a version that is not loaded than that it is not."""
        found = [item for item in self.versions if item.name == name and version in ("", item.version)]
        _check_loading(found)
        if found:
            raise ModelNotFoundError(f"`{found[-1]}` could not be loaded: {found[-1].error}")

    def _only(self, task: str | None) -> str:
        candidates = [model for model in map(_highest, self._by_name.values()) if task in (None, model.task.name)]
        if not candidates:
            _check_loading(self.versions)
            if not self._by_name:
                raise ModelNotFoundError("no model is loaded")
            raise InvalidRequestError(f"no model does this task: `{task}` (loaded: {_listing(self)})")
        if len(candidates) > 1:
            of_task = f" of task `{task}`" if task else ""
            raise InvalidRequestError(f"name one of the models{of_task}: {_listing(candidates)}")
        return candidates[0].manifest.name


def _check_loading(versions: Sequence[Version]) -> None:
    for item in versions:
        if item.state is State.LOADING:
            raise UnavailableError(f"`{item}` is being loaded; try again")


def _highest(versions: dict[str, Model]) -> Model:
    return list(versions.values())[-1]


def _listing(models: Models | Sequence[Model]) -> str:
    return ", ".join(map(str, models)) or "none"
