"""Run a job from its input to its output, in this process or on a Ray cluster."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from bertline._models import model_of_task
from bertline.client import Client
from bertline.errors import BertlineError, ConnectionFailed, ModelNotFound
from bertline.jobs.directory import JobDirectory, StaleParts, Totals
from bertline.jobs.layout import refuse_conflicts
from bertline.jobs.operations import VECTOR
from bertline.jobs.pass_through import FILE, ROW_NUMBER, PassThrough
from bertline.jobs.progress import Progress
from bertline.jobs.ray_pool import map_partitions
from bertline.jobs.read.rows import BLOCK_ROWS
from bertline.jobs.read.sources import CommandLineRows
from bertline.jobs.send import BatchSender, Pipeline
from bertline.jobs.spec import JobSpec
from bertline.jobs.storage import File, already_exists, open_write
from bertline.jobs.write import JsonlWriter, NpyWriter, ParquetWriter, Writer, json_line, standard_output
from bertline.results import Model, Usage

MAX_PRINTED = 20
"""Maximum number of rejected rows on standard error, when no file is named for them."""


def run(spec: JobSpec, progress: Progress, *, force: bool = False, restart: bool = False) -> Totals:
    """Run a job in this process, or the rest of it after an interruption.

    Args:
        spec: job to run.
        progress: display of the progress.
        force: replace an output, or a file of rejected rows, that exists.
        restart: discard the parts of an interrupted run.

    Returns:
        Counts of the whole job, earlier runs included.

    Raises:
        FileError: when a file cannot be used, or the model was replaced while the job ran.
        BertlineError: when the server fails, or is unreachable for too long. Finished parts stay.
    """
    refuse_conflicts(spec.input_files, spec.output_file, spec.rejects_file)
    with spec.connected() as client:
        if spec.fits_one_request:
            with suppress(_NotPinned):
                return _print_results(spec, _pipeline(spec, client, progress, _send_unpinned), force=force)
        spec = pin_model(spec, client, progress)
        pipeline = _pipeline(spec, client, progress)
        if spec.output is None:
            totals = _print_results(spec, pipeline, force=force)
            refuse_replaced_model(spec, client, progress)
            return totals
        directory = job_directory(spec)
        pipeline.check_readable()
        with directory.opened(force=force, restart=restart) as has_work:
            if has_work:
                for results in pipeline.results(range(len(spec.sources)), directory.has):
                    directory.write(results)
                refuse_replaced_model(spec, client, progress)
                directory.finish()
        return directory.totals


def run_on_ray(
    spec: JobSpec, progress: Progress, *, address: str, num_workers: int, force: bool = False, restart: bool = False
) -> Totals:
    """Run a job on a Ray cluster, one file a partition. All nodes must see input and output under the same paths.

    Args:
        spec: job that reads files and has an output.
        progress: display of the progress.
        address: address of the cluster, see `map_partitions`.
        num_workers: number of workers, each with one file at a time.
        force: replace an output, or a file of rejected rows, that exists.
        restart: discard the parts of an interrupted run.

    Returns:
        Counts of the whole job, earlier runs included.

    Raises:
        RayFailed: when the cluster fails, or Ray is not installed.
        FileError: when a file cannot be used, or the model was replaced while the job ran.
        BertlineError: when a server fails, or is unreachable for too long.
    """
    refuse_conflicts(spec.input_files, spec.output_file, spec.rejects_file)
    with spec.connected() as client:
        spec = pin_model(spec, client, progress)
        directory, pipeline = job_directory(spec), _pipeline(spec, client, progress)
        pipeline.check_readable()
        with directory.opened(force=force, restart=restart) as has_work:
            if has_work:
                _decide_columns(pipeline, directory)
                files = range(len(spec.sources))
                on_done = _FileCounter(progress, len(files), directory.seen)
                worker = partial(_Worker, spec.for_workers())
                map_partitions(files, worker, address=address, num_workers=num_workers, progress=on_done)
                directory.refresh()
                directory.finish()
        return directory.totals


# ---- the parts of a job, made from its spec

_Method = Callable[..., Sequence[Any]]


def _pipeline(
    spec: JobSpec, client: Client, progress: Progress, send: Callable[[_Method], _Method] = lambda method: method
) -> Pipeline:
    sender = _sender(spec, client, progress, send)
    return Pipeline(spec.operation, spec.column_names, spec.sources, sender, progress, spec.selection)


def _sender(
    spec: JobSpec, client: Client, progress: Progress, wrap: Callable[[_Method], _Method] = lambda method: method
) -> BatchSender:
    method = wrap(getattr(client, spec.method))
    options = {**spec.options, "model": spec.model_name, "version": spec.model_version}

    def send(inputs: list[Any], usage: Usage) -> Sequence[Any]:
        return method(inputs, usage=usage, **options)

    return BatchSender(send, spec.batch_size, spec.num_in_flight, spec.patience_s, progress.wait)


def job_directory(spec: JobSpec) -> JobDirectory:
    """Return the job directory of a spec with an output."""
    output, rejects = spec.output_file, spec.rejects_file
    assert output
    assert rejects
    return JobDirectory(output, _writer(spec), spec.identity(), rejects)


def _writer(spec: JobSpec) -> Writer:
    if spec.suffix == ".jsonl":
        return JsonlWriter(spec.operation, _pass_through(spec))
    dim = int(spec.options.get("dimensions") or (spec.model.dim if spec.model else 0))
    dim = -(-dim // 8) if spec.options.get("format") == "binary" else dim  # bytes for as many bits
    if spec.suffix == ".parquet":
        return ParquetWriter(spec.operation, _pass_through(spec), dim, spec.dtype)
    return NpyWriter(dim, spec.dtype)


def _pass_through(spec: JobSpec) -> PassThrough:
    result_names = [VECTOR] if spec.method == "embed" else list(spec.operation.types)
    positions = [ROW_NUMBER, *([FILE] if len(spec.sources) > 1 else [])]
    if isinstance(spec.sources[0], CommandLineRows):
        positions = []
    return PassThrough(spec.selection, result_names, spec.selection.without_dropped(positions))


# ---- the model of a job


def pin_model(spec: JobSpec, client: Client, progress: Progress) -> JobSpec:
    """Return the spec with the model version that answers now, so that a newer one does not answer later rows.

    Waits for a model that is being loaded. If no model fits, or several do, the spec is unchanged: the server's error
    says why.
    """
    models = client.models()
    if model := _answering_model(spec, models):
        return spec.with_model(model)
    named = [item for item in models if spec.model_name in ("", item.name) and spec.model_version in ("", item.version)]
    loading = next((item for item in named if item.state == "loading"), None)  # its task is not known yet
    if not loading or any(map(_fits(spec), named)):
        return spec
    with suppress(ModelNotFound):  # it could not be loaded
        _sender(spec, client, progress).retry(lambda: client.model(loading.name, loading.version))
    return spec.with_model(_answering_model(spec, client.models()))


def _answering_model(spec: JobSpec, models: Sequence[Model]) -> Model | None:
    try:
        return model_of_task(models, spec.operation.task, spec.model_name, spec.model_version, _fits(spec))
    except ModelNotFound:
        return None


def _fits(spec: JobSpec) -> Callable[[Model], bool]:
    """Return a function that returns whether a model can do the operation of a job."""
    return partial(spec.operation.fits, is_named=bool(spec.model_name))


def refuse_replaced_model(spec: JobSpec, client: Client, progress: Progress) -> None:
    """Check that the model version is the same as at the start.

    Raises:
        StaleParts: when its network or manifest was replaced.
    """
    if not spec.model:
        return
    sender = _sender(spec, client, progress)
    model = sender.retry(lambda: client.model(spec.model_name, spec.model_version))
    if (model.digest, model.manifest_json) != (spec.model.digest, spec.model.manifest_json):
        name = f"{spec.model_name}/{spec.model_version}"
        hint = "start again with --restart" if spec.output else "run the same command again"
        raise StaleParts(f"the model `{name}` was replaced while the job ran; {hint}")


class _NotPinned(BertlineError):
    """No model answers yet; one may be loading."""


def _send_unpinned(method: _Method) -> _Method:
    """Wrap a method of the client to raise _NotPinned if no model answers; `pin_model` then finds out whether to wait.

    A job of one request needs no pinned model, which saves two calls.
    """

    def send(*arguments: Any, **options: Any) -> Sequence[Any]:
        try:
            return method(*arguments, **options)
        except (ConnectionFailed, ModelNotFound) as error:
            raise _NotPinned from error

    return send


# ---- results to standard output


def _print_results(spec: JobSpec, pipeline: Pipeline, *, force: bool) -> Totals:
    """Write results to standard output as they come."""
    writer = JsonlWriter(spec.operation, _pass_through(spec))
    num_rows = num_rejected = num_truncated = 0
    rejects = spec.rejects_file
    with _rejects(rejects, force=force) as reject, standard_output() as stream:
        for results in pipeline.results(range(len(spec.sources)), max_rows=BLOCK_ROWS):
            writer.write(results, stream, {})
            num_rows += len(results.results)
            num_truncated += results.num_truncated
            for row in results.rejected_rows():
                num_rejected += 1
                reject(num_rejected, row)
    if rejects is None and num_rejected > MAX_PRINTED:
        print(
            f"bertline: {num_rejected - MAX_PRINTED:,} more rows were rejected; save all of them with --rejects FILE",
            file=sys.stderr,
        )
    return Totals(num_rows, num_rejected, num_truncated)


@contextmanager
def _rejects(file: File | None, *, force: bool) -> Iterator[Callable[[int, Mapping[str, Any]], object]]:
    """Open the place for rejected rows: a file, or standard error."""
    if file is None:
        yield _print_rejected
        return
    if file.exists() and not force:
        raise already_exists(file)
    with open_write(file) as stream:
        yield lambda number, row: stream.write(json_line(row))


def _print_rejected(number: int, row: Mapping[str, Any]) -> None:
    if number <= MAX_PRINTED:
        print(f"bertline: {row['place']}: {row['reason']}", file=sys.stderr)


# ---- Ray


@dataclass(frozen=True, slots=True)
class FileStats:
    """Counts of one file."""

    num_rows: int
    num_skipped: int
    num_tokens: int
    seen: dict[tuple[int, int], int]
    """Rows of its chunks, see `JobDirectory.seen`."""


def _decide_columns(pipeline: Pipeline, directory: JobDirectory) -> None:
    """Write chunks until the columns are known. The first rows with results decide them for all workers."""
    if directory.has_columns:
        return
    for results in pipeline.results(range(len(pipeline.sources)), directory.has):
        directory.write(results)
        if directory.has_columns:
            return


class _FileCounter:
    """Callback that adds the counts of finished files to progress and job directory."""

    def __init__(self, progress: Progress, num_files: int, seen: dict[tuple[int, int], int]) -> None:
        self._progress, self._num_files, self._num_done, self._seen = progress, num_files, 0, seen

    def __call__(self, number: int, stats: FileStats) -> None:
        self._num_done += 1
        self._seen |= stats.seen
        self._progress.num_skipped += stats.num_skipped
        self._progress.add(stats.num_rows, stats.num_tokens, self._num_done / self._num_files)


class _Worker:
    """Processor of files, one after the other, on any node."""

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self._stack = ExitStack()
        self._client = self._stack.enter_context(spec.connected())
        refuse_replaced_model(spec, self._client, Progress())  # its own server may have another model

    def __call__(self, number: int) -> FileStats:
        directory, progress = job_directory(self._spec), Progress()
        directory.refresh()  # another worker may have started this file
        for results in _pipeline(self._spec, self._client, progress).results([number], directory.has):
            directory.write(results)
        refuse_replaced_model(self._spec, self._client, progress)
        return FileStats(progress.num_rows, progress.num_skipped, progress.num_tokens, directory.seen)
