"""Models: loading, warm-up, computing a batch, and finding the model of a request."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from pathlib import Path
from weakref import WeakValueDictionary

import numpy as np

from serving.core.errors import InvalidRequestError, ModelNotFoundError, UnavailableError
from serving.core.job import AbortableRun
from serving.core.latency_model import LinearFit
from serving.core.session import Arrays, Session, choose_execution
from tasks.base import NOT_FINITE, AnyTask, Outputs, first_line
from tasks.bundle.known_outputs import NUM_TOKENS, KnownOutputs, known_input
from tasks.bundle.manifest import Execution, Manifest
from tasks.bundle.model_directory import ModelDirectory, graph_file, parse_model_path, read_model_directory
from tasks.features import Features, collate, split_outputs
from tasks.registry import create_task
from tasks.text.tokenizer import Tokenizer
from tasks.text.tokenizer_files import TOKENIZER_FILE

MAX_RUNS, MAX_MEASURE_S = 5, 0.1
"""Limits of the measurement at load time: a batch is run at most MAX_RUNS times, and not again after MAX_MEASURE_S."""


@dataclass(frozen=True)
class Probe:
    """Batch of the known input that shows whether a model works."""

    rows: int
    length: int
    """Tokens of each row."""
    expected: KnownOutputs
    """Outputs of the run at load time."""
    core_s: float
    """Core seconds of that run."""


@dataclass(frozen=True, eq=False)
class Model:
    """One version of a model."""

    manifest: Manifest
    task: AnyTask
    session: Session
    execution: Execution
    """Execution settings: those of the manifest, except where the server's settings replace them."""
    measured_batches: Sequence[tuple[int, float]] = ()
    """(tokens, core seconds) of the warm-up batches; tokens include padding."""
    probes: Sequence[Probe] = ()
    """The known input alone, and the longest batch."""
    manifest_json: str = ""
    """Manifest as JSON for clients. Made at load time: a large one takes a second, too long for the event loop."""

    @property
    def max_batch_tokens(self) -> int:
        """Maximum tokens of a batch, padding included."""
        return self.execution.max_batch_tokens

    @property
    def num_threads(self) -> int:
        """Number of cores that a batch uses."""
        return self.execution.num_threads

    @property
    def digest(self) -> str:
        """SHA-256 of the graph that computes the answers, hexadecimal."""
        return self.manifest.files[graph_file(self.manifest, self.execution)]

    @cached_property
    def run_tokens(self) -> float:
        """Number of tokens that take as long as what every run takes besides its tokens."""
        return LinearFit(self.measured_batches).run_tokens

    def __str__(self) -> str:
        return f"{self.manifest.name}/{self.manifest.version} ({self.manifest.task})"

    def new_run(self) -> AbortableRun:
        """Return a run for one call of `compute`."""
        return self.session.new_run()

    def compute(self, sequences: Sequence[Features], run: AbortableRun | None = None) -> list[Outputs]:
        """Run one batch; return the outputs of each sequence without padding."""
        outputs = self.session.run(collate(sequences, pad_id=self.task.tokenizer.pad_id), run)
        return split_outputs(outputs, [len(item) for item in sequences], token_outputs=self.task.token_outputs)

    def warm_up(self, max_run_s: float) -> list[tuple[int, float]]:
        """Run sequences of the maximum and the minimum length, check the output shapes, and measure the time.

        Args:
            max_run_s: maximum seconds of a run; a longer one is aborted.

        Returns:
            (tokens, core seconds) of each batch; tokens include padding.

        Raises:
            ValueError: when the graph fails or takes too long, or an output has the wrong shape for the task.
        """
        tokenizer, measured = self.task.tokenizer, []
        num_special = tokenizer.single.num_special
        for length in (self.task.settings.max_seq_length, num_special + 1):
            ids = np.full(length - num_special, tokenizer.filler_id)
            batch = [Features(**tokenizer.assemble(ids)), Features(**tokenizer.assemble(ids[:1]))]
            arrays = collate(batch, pad_id=tokenizer.pad_id)
            outputs, _ = self._run(arrays, length, max_run_s)  # not measured: slower than the others
            measured.append((2 * length, self._measure(arrays, length, max_run_s) * self.num_threads))
            self._check_shapes(outputs, length)
        return measured

    def run_probes(self, max_run_s: float) -> list[Probe]:
        """Run the known input alone, and as the longest batch that the limits allow, and check the outputs.

        On CPUs, the memory of the longest batch is freed in the end: 40 MB for a small network.

        Args:
            max_run_s: as for `warm_up`.

        Raises:
            ValueError: when the graph fails or takes too long, or an output is not finite or further from that of the
                manifest than the export allows.
        """
        longest, probes = self.task.settings.max_seq_length, []
        shapes = [(1, min(NUM_TOKENS, longest)), (max(1, self.max_batch_tokens // longest), longest)]
        for (rows, length), reference in zip(shapes, (self.manifest.known_outputs, None), strict=True):
            outputs, seconds = self._run(self._known_batch(rows, length), length, max_run_s)
            expected = KnownOutputs.of(outputs)
            if problem := self._numbers_problem(outputs, reference or expected):
                raise ValueError(f"`{self.session.path}` computes wrong numbers: {problem}; export the model again")
            probes.append(Probe(rows, length, expected, seconds * self.num_threads))
        self.session.release_memory(self._known_batch(*shapes[0]))  # most models never read so long a text again
        return probes

    def probe(self, probe: Probe, run: AbortableRun) -> str:
        """Run a probe again; return what is wrong with its outputs, empty if nothing is."""
        outputs = self.session.run(self._known_batch(probe.rows, probe.length), run)
        return self._numbers_problem(outputs, probe.expected)

    def _known_batch(self, rows: int, length: int) -> Arrays:
        tokenizer = self.task.tokenizer
        return collate([known_input(tokenizer, length)] * rows, pad_id=tokenizer.pad_id)

    def _numbers_problem(self, outputs: Arrays, expected: KnownOutputs) -> str:
        broken = [name for name, array in outputs.items() if not self.task.is_usable(array)]
        return f"output `{broken[0]}` has {NOT_FINITE}" if broken else expected.problem(outputs)

    def _measure(self, arrays: Arrays, length: int, max_run_s: float) -> float:
        """Return the seconds of the fastest of a few runs: other processes make runs slower, never faster."""
        seconds, started_s = list[float](), time.monotonic()
        while len(seconds) < MAX_RUNS and (not seconds or time.monotonic() - started_s < MAX_MEASURE_S):
            seconds.append(self._run(arrays, length, max_run_s)[1])
        return min(seconds)

    def _run(self, arrays: Arrays, length: int, max_run_s: float) -> tuple[Arrays, float]:
        """Return the outputs of a run and its seconds; abort it after `max_run_s`."""
        run, began_s = self.new_run(), time.monotonic()
        timer = threading.Timer(max_run_s, run.abort)
        timer.daemon = True  # the process exits without it
        timer.start()
        try:
            started_s = time.monotonic()
            outputs = self.session.run(arrays, run)
            return outputs, time.monotonic() - started_s
        except Exception as error:  # ONNX Runtime's own errors share no base class
            if time.monotonic() - began_s >= max_run_s:
                raise ValueError(
                    f"`{self.session.path}` takes more than {max_run_s:g} s on {length} tokens; export a faster model, "
                    "or raise --max-run-s"
                ) from error
            raise ValueError(f"`{self.session.path}` fails on {length} tokens: {first_line(error)}") from error
        finally:
            timer.cancel()

    def _check_shapes(self, outputs: Arrays, length: int) -> None:
        axes = (2, length) if self.task.token_outputs else (2,)
        for name, array in outputs.items():
            if array.shape != (expected := (*axes, *self.last_axis)):
                raise ValueError(
                    f"output `{name}` of `{self.session.path}` has shape {list(array.shape)}, but its manifest needs "
                    f"{list(expected)}; export the model again"
                )

    def num_outputs(self, lengths: Sequence[int]) -> int:
        """Return the number of values of each output for sequences of these lengths (in tokens)."""
        return math.prod(self.last_axis) * (sum(lengths) if self.task.token_outputs else len(lengths))

    @cached_property
    def last_axis(self) -> tuple[int, ...]:
        """Size of the last axis of the outputs; empty for single numbers."""
        return self.task.output_shape(hidden_size=self.manifest.hidden_size, vocab_size=self.manifest.vocab_size)


def load_model(
    path: Path,
    *,
    max_batch_tokens: int | None = None,
    num_threads: int | None = None,
    workers: int | None = None,
    max_run_s: float = 60.0,
    engine_fallback: bool = False,
    spaces: Mapping[str, str] | None = None,
    loaded: Model | None = None,
) -> Model:
    """Load a model directory, ready to compute.

    Args:
        path: `<models>/<name>/<version>`.
        max_batch_tokens: replaces the value of the manifest.
        num_threads: threads of a batch; replaces the value of the manifest.
        workers: number of cores; limits `num_threads`.
        max_run_s: maximum seconds of a warm-up run.
        engine_fallback: as in `choose_execution`.
        spaces: name of a model -> space that its vectors must have.
        loaded: model loaded from this path before; returned if the manifest is unchanged.

    Raises:
        ValueError: when the directory cannot be served. The message names the file and the problem.
    """
    directory = read_model_directory(path)
    manifest = directory.manifest
    if loaded and loaded.manifest == manifest:
        return loaded
    if parse_model_path(path) != (manifest.name, manifest.version):
        raise ValueError(
            f"the manifest of `{path}` is that of `{manifest.name}/{manifest.version}`; rename the folder or correct "
            "the manifest"
        )
    if (pinned := (spaces or {}).get(manifest.name, manifest.space)) != manifest.space:
        raise ValueError(f"`{path}` gives vectors of space `{manifest.space or 'unknown'}`; --space wants `{pinned}`")
    task = create_task(manifest.task, _load_tokenizer(directory), manifest.settings)
    if task.tokenizer.vocab_size > manifest.vocab_size:
        raise ValueError(
            f"`{path / TOKENIZER_FILE}` has token ids up to {task.tokenizer.vocab_size - 1}, but the manifest's "
            f"vocab_size is `{manifest.vocab_size}`; export the model again"
        )
    execution = choose_execution(manifest, path, engine_fallback=engine_fallback)
    num_threads = num_threads or execution.num_threads
    execution = replace(
        execution,
        max_batch_tokens=max_batch_tokens or execution.max_batch_tokens,
        num_threads=min(num_threads, workers or num_threads),
    )
    session = Session(directory, task.output_names, execution, workers)
    model = Model(manifest=manifest, task=task, session=session, execution=execution)
    measured, probes = model.warm_up(max_run_s), model.run_probes(max_run_s)
    return replace(model, measured_batches=measured, probes=probes, manifest_json=manifest.to_json())


_tokenizers: WeakValueDictionary[str, Tokenizer] = WeakValueDictionary()
"""Tokenizers in use, by digest of their file. Versions of a model usually have the same one, and loading one holds the
interpreter lock for 45 ms per MB."""


_PROBES = ("A text, with CAPITALS and 12 numbers.", "naïve cafe\u0301", "中文 русский עברית", "🙂\u200d", "\x00 \ufffd")


def _load_tokenizer(directory: ModelDirectory) -> Tokenizer:
    """Load a tokenizer and try it: some broken files load, but fail on the first text."""
    digest = directory.manifest.files[TOKENIZER_FILE]
    if not (tokenizer := _tokenizers.get(digest)):
        tokenizer = Tokenizer.load(directory.path)
        try:
            tokenizer.tokenize(_PROBES)
        except Exception as error:  # tokenizers raises bare Exception
            raise ValueError(f"`{directory.path / TOKENIZER_FILE}` is broken: {error}") from error
        _tokenizers[digest] = tokenizer
    return tokenizer


class State(Enum):
    """State of a version."""

    LOADING = "loading"
    READY = "ready"
    STALE = "stale"
    """Serves the model loaded before; the new content of its directory cannot be loaded."""
    FAILED = "failed"
    """Cannot be loaded; requests for it are refused."""
    UNLOADING = "unloading"
    """Its directory is gone; requests that started before are still computed."""


@dataclass(frozen=True)
class Version:
    """One version directory: its loaded model and its load error, if any."""

    name: str
    version: str
    model: Model | None = None
    """Model that answers requests; None if none is loaded."""
    error: str = ""
    """Why the present content of the directory cannot be loaded, in one line; empty if it can. A model loaded before
    keeps serving."""

    @property
    def state(self) -> State:
        """State that follows from model and error."""
        if self.model:
            return State.STALE if self.error else State.READY
        return State.FAILED if self.error else State.LOADING

    def __str__(self) -> str:
        return f"{self.name}/{self.version}"


class Models:
    """Immutable snapshot of all versions, with the loaded models by name and version."""

    def __init__(
        self,
        versions: Sequence[Version],
        *,
        since: Mapping[str, int] | None = None,
        defaults: Mapping[str, str] | None = None,
    ) -> None:
        """Set the versions.

        Args:
            versions: versions of all models.
            since: name of a loaded model -> number of the scan that found it: of several models that fit a request
                without a name, the one that was there first answers.
            defaults: task -> name of the model that answers such requests instead.
        """
        self._since, self._defaults = since or {}, defaults or {}
        self.versions = tuple(sorted(versions, key=lambda item: (item.name, int(item.version))))
        """Versions sorted by name, then by version number."""
        self._by_name: dict[str, dict[str, Model]] = {}
        for item in self.versions:
            if item.model:
                self._by_name.setdefault(item.name, {})[item.version] = item.model

    def __iter__(self) -> Iterator[Model]:
        """Iterate over the loaded models, by name and version number."""
        return (model for versions in self._by_name.values() for model in versions.values())

    @property
    def names(self) -> list[str]:
        """Sorted names of the loaded models."""
        return list(self._by_name)

    @property
    def highest(self) -> list[Model]:
        """Highest loaded version of each name: the models of requests that name no version."""
        return [list(versions.values())[-1] for versions in self._by_name.values()]

    def find(self, name: str, version: str, task: str | None = None) -> Model:
        """Return the model for a request.

        Args:
            name: name of the model; empty for the default one (of the task).
            version: version number; empty for the highest loaded one.
            task: task of the request; None if any model will do.

        Raises:
            ModelNotFoundError: when no such model or version is loaded.
            UnavailableError: when it is still being loaded.
            InvalidRequestError: when the name is empty and there is no default, or the model has another task.
        """
        name = name or self.default_name(task, lambda model: task in (None, model.task.name))
        versions = self._by_name.get(name, {})
        if not versions or (version and version not in versions):
            unloaded = [item for item in self.versions if item.name == name and version in ("", item.version)]
            _check_loading(unloaded)
            if unloaded:
                raise ModelNotFoundError(f"`{unloaded[-1]}` could not be loaded: {unloaded[-1].error}")
        if not versions:
            hint = "; put the version into the field `version`" if "/" in name else ""
            raise ModelNotFoundError(f"model `{name}` does not exist{hint} (loaded: {_listing(self)})")
        if version and version not in versions:
            raise ModelNotFoundError(f"model `{name}` has no version `{version}` (loaded: {', '.join(versions)})")
        model = versions[version or list(versions)[-1]]
        if task not in (None, model.task.name):
            raise InvalidRequestError(f"{model} does not support the task `{task}` (loaded: {_listing(self)})")
        return model

    def default_name(self, task: str | None, fits: Callable[[Model], bool], exception: str = "") -> str:
        """Return the name of the model for requests without one: as set, or the one that was loaded before all others.

        Args:
            task: what it should do, for errors; None if any model will do.
            fits: returns whether a model does it.
            exception: words of the error about models that do not fit.

        Raises:
            ModelNotFoundError, UnavailableError, InvalidRequestError: as `find`.
        """
        if task and task in self._defaults:
            return self._defaults[task]
        candidates = [model for model in self.highest if fits(model)]
        if not candidates:
            _check_loading(self.versions)
            if not self._by_name:
                raise ModelNotFoundError("no model is loaded")
            raise InvalidRequestError(f"no model supports the task `{task}`{exception} (loaded: {_listing(self)})")
        oldest = min(map(self._loaded_since, candidates))
        if len(first := [model for model in candidates if self._loaded_since(model) == oldest]) > 1:
            of_task = f" for the task `{task}`" if task else ""
            raise InvalidRequestError(f"several models are loaded{of_task}; name one: {_listing(candidates)}")
        return first[0].manifest.name

    def _loaded_since(self, model: Model) -> int:
        return self._since.get(model.manifest.name, 0)


def _check_loading(versions: Sequence[Version]) -> None:
    for item in versions:
        if item.state is State.LOADING:
            raise UnavailableError(f"`{item}` is being loaded; try again")


def _listing(models: Models | Sequence[Model]) -> str:
    return ", ".join(map(str, models)) or "none"
