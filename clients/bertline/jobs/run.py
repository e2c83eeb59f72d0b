"""Run a job from its input to its output, in this process or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial

from bertline._models import model_of_task
from bertline.client import Client
from bertline.errors import ConnectionFailed, ModelNotFound, Overloaded, TimedOut
from bertline.jobs.directory import JobDirectory, Totals
from bertline.jobs.progress import Progress
from bertline.jobs.ray_pool import map_partitions
from bertline.jobs.rows import BATCH_ROWS
from bertline.jobs.send import BatchSender
from bertline.jobs.spec import JobSpec
from bertline.jobs.storage import already_exists, open_write
from bertline.jobs.write import JsonlWriter, json_line, print_error, standard_output
from bertline.results import Model

MAX_PRINTED = 20
"""Maximum number of rejected rows on standard error, when no file is named for them."""


def run(
    spec: JobSpec,
    progress: Progress,
    *,
    ray: str | None = None,
    num_workers: int = 1,
    force: bool = False,
    restart: bool = False,
) -> Totals:
    """Run a job, or the rest of it after an interruption.

    Args:
        spec: job to run; for a cluster, with files as input and an output.
        progress: display of the progress.
        ray: address of a Ray cluster that does the job, see `map_partitions`; None for this process. All nodes must see
            input and output under the same paths.
        num_workers: number of workers on the cluster, each with one file at a time.
        force: replace an output, or a file of rejected rows, that exists.
        restart: discard the parts of an interrupted run.

    Raises:
        FileError: when a file cannot be used, or the model was replaced while the job ran.
        BertlineError: when the server fails, or is unreachable for too long. Finished parts stay.
        RayFailed: when the cluster fails, or Ray is not installed.
    """
    spec.refuse_conflicts()
    with spec.connected() as client:
        if spec.fits_one_request:  # needs no pinned model, which saves two calls
            with suppress(ConnectionFailed, ModelNotFound, Overloaded, TimedOut):
                return _print_results(replace(spec, patience_s=0), client, progress, force=force)
        spec = pin_model(spec, client, progress)
        sender = BatchSender(spec, client, progress)
        if spec.output is None:
            totals = _print_results(spec, client, progress, force=force)
            sender.refuse_replaced_model()
            return totals
        directory = spec.directory()
        if spec.sources[0].is_file:
            next(spec.chunks(0, max_rows=1), None)  # fail before anything is removed
        with directory.opened(force=force, restart=restart):
            if ray:
                _run_on_ray(spec, progress, directory, ray, num_workers)
            else:
                for chunk in sender.results(range(len(spec.sources)), directory.has):
                    directory.write(chunk)
                sender.refuse_replaced_model()
            return directory.finish()


# ---- the model of a job


def pin_model(spec: JobSpec, client: Client, progress: Progress) -> JobSpec:
    """Return the spec with the model version that answers now, so that a newer one does not answer later rows.

    Waits for a model that is being loaded. If no model fits, or several do, the spec is unchanged: the server's error
    states why.
    """
    fits = partial(spec.operation.fits, is_named=bool(spec.model_name))

    def answering(models: Sequence[Model]) -> Model | None:
        try:
            return model_of_task(models, spec.operation.task, spec.model_name, spec.model_version, fits)
        except ModelNotFound:
            return None

    models = client.models()
    if model := answering(models):
        return spec.with_model(model)
    named = [item for item in models if spec.model_name in ("", item.name) and spec.model_version in ("", item.version)]
    loading = next((item for item in named if item.state == "loading"), None)  # its task is not known yet
    if not loading or any(map(fits, named)):
        return spec
    with suppress(ModelNotFound):  # it could not be loaded
        BatchSender(spec, client, progress).retry(lambda: client.model(loading.name, loading.version))
    return spec.with_model(answering(client.models()))


# ---- results to standard output


def _print_results(spec: JobSpec, client: Client, progress: Progress, *, force: bool) -> Totals:
    """Write results to standard output as they come, and rejected rows to their file or to standard error."""
    writer, sender = JsonlWriter(spec.operation, spec.pass_through()), BatchSender(spec, client, progress)
    num_rows = num_rejected = num_truncated = 0
    with ExitStack() as stack:
        rejects = None
        if file := spec.rejects_file:
            if file.exists() and not force:
                raise already_exists(file)
            rejects = stack.enter_context(open_write(file))
        stream = stack.enter_context(standard_output())
        for chunk in sender.results(range(len(spec.sources)), max_rows=BATCH_ROWS):
            writer.write(chunk, stream)
            num_rows += len(chunk.rows)
            num_truncated += chunk.num_truncated
            for row in chunk.rejected_rows():
                num_rejected += 1
                if rejects is not None:
                    rejects.write(json_line(row))
                elif num_rejected <= MAX_PRINTED:
                    print_error(f"{row['place']}: {row['reason']}")
    if rejects is None and num_rejected > MAX_PRINTED:
        print_error(f"{num_rejected - MAX_PRINTED:,} more rows were rejected; save all of them with --rejects FILE")
    return Totals(num_rows, num_rejected, num_truncated)


# ---- Ray


def _run_on_ray(spec: JobSpec, progress: Progress, directory: JobDirectory, address: str, num_workers: int) -> None:
    files, num_done = range(len(spec.sources)), 0

    def on_done(number: int, counts: tuple[Progress, dict[tuple[int, int], int]]) -> None:
        nonlocal num_done
        num_done += 1
        of_file, seen = counts
        directory.seen |= seen
        progress.num_skipped += of_file.num_skipped
        progress.add(of_file.num_rows, of_file.num_tokens, num_done / len(files))

    worker = partial(_Worker, spec.for_workers())
    map_partitions(files, worker, address=address, num_workers=num_workers, progress=on_done)
    directory.refresh()


class _Worker:
    """Processor of files, one after the other, on any node."""

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self._stack = ExitStack()
        self._client = self._stack.enter_context(spec.connected())
        BatchSender(spec, self._client, Progress()).refuse_replaced_model()  # its own server may have another model

    def __call__(self, number: int) -> tuple[Progress, dict[tuple[int, int], int]]:
        directory, progress = self._spec.directory(), Progress()
        directory.refresh()  # another worker may have started this file
        sender = BatchSender(self._spec, self._client, progress)
        for chunk in sender.results([number], directory.has):
            directory.write(chunk)
        sender.refuse_replaced_model()
        return progress, directory.seen
