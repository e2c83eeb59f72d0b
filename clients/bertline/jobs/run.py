"""A job from its files to its output, in this process or on a Ray cluster."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO

from bertline.jobs.directory import Parts, rejected_rows
from bertline.jobs.progress import Progress
from bertline.jobs.ray_pool import map_partitions
from bertline.jobs.read.rows import BLOCK_ROWS
from bertline.jobs.send import Job
from bertline.jobs.spec import Order
from bertline.jobs.storage import File, already_exists, open_write
from bertline.jobs.write import Jsonl, json_line, standard_output

MAX_TOLD = 20
"""Rejected rows that are told on standard error, where no file is named for them."""


def run(order: Order, progress: Progress, *, force: bool = False, restart: bool = False) -> int:
    """Do a job, or what an earlier run left of it.

    Args:
        order: the job.
        progress: is told how far it is.
        force: replace an output, or a file of rejected rows, that exists.
        restart: forget what an earlier run did.

    Returns:
        How many rows were rejected, in earlier runs too.

    Raises:
        FileError: when a file cannot be used, or the model was replaced meanwhile.
        BertlineError: when the server fails, or is out of reach for too long. What was done till then stays.
    """
    order.refuse_clashes()
    with order.connected() as client:
        order = order.pinned(client, progress)
        job = order.job(client, progress)
        if order.output is None:
            num_rejected = _to_stream(job, order.stream(), order.rejects_file(), force=force)
            order.refuse_replaced(client, progress)
            return num_rejected
        parts = order.parts()
        job.refuse_unreadable()
        with parts.opened(force=force, restart=restart) as has_work:
            if has_work:
                for asked in job.answered(range(len(order.sources)), parts.has):
                    parts.write(asked)
                order.refuse_replaced(client, progress)
                parts.finish()
        return parts.num_rejected


def _to_stream(job: Job, sink: Jsonl, rejects: File | None, *, force: bool) -> int:
    """Write results to standard output as they come."""
    num_rejected = 0
    with _telling(rejects, force=force) as tell, standard_output() as stream:  # each tells of its own errors
        for asked in job.answered(range(len(job.sources)), max_rows=BLOCK_ROWS):
            sink.write(asked, stream, {})
            for row in rejected_rows(asked):
                num_rejected += 1
                tell(num_rejected, row)
    if rejects is None and num_rejected > MAX_TOLD:
        print(
            f"bertline: {num_rejected - MAX_TOLD:,} more rows were rejected; name a file with --rejects",
            file=sys.stderr,
        )
    return num_rejected


@contextmanager
def _telling(rejects: File | None, *, force: bool) -> Iterator[Callable[[int, Mapping[str, Any]], None]]:
    if rejects is None:
        yield _tell
        return
    if rejects.exists() and not force:
        raise already_exists(rejects)
    with open_write(rejects) as stream:
        yield lambda number, row: _into(stream, row)


def _into(stream: BinaryIO, row: Mapping[str, Any]) -> None:
    stream.write(json_line(row))


def _tell(number: int, row: Mapping[str, Any]) -> None:
    if number <= MAX_TOLD:
        print(f"bertline: {row['place']}: {row['reason']}", file=sys.stderr)


@dataclass(frozen=True, slots=True)
class Done:
    """What came of a file."""

    num_rows: int
    num_tokens: int
    num_cut: int
    seen: set[tuple[int, int]]
    """Its chunks, as `Parts` has them."""


def run_on_ray(
    order: Order, progress: Progress, *, address: str, num_workers: int, force: bool = False, restart: bool = False
) -> int:
    """Do a job, or what an earlier run left of it. All nodes have to see the files, and the output, under their paths.

    Args:
        order: the job; it has files and an output.
        progress: is told how far it is.
        address: of the cluster, as `map_partitions` has it.
        num_workers: files that are under way at one time.
        force: replace an output, or a file of rejected rows, that exists.
        restart: forget what an earlier run did.

    Returns:
        How many rows were rejected, in earlier runs too.

    Raises:
        RayFailed: when the cluster fails, or Ray is not installed.
        FileError: when a file cannot be used, or the model was replaced meanwhile.
        BertlineError: when a server fails, or is out of reach for too long.
    """
    order.refuse_clashes()
    with order.connected() as client:
        order = order.pinned(client, progress)
        parts, job = order.parts(), order.job(client, progress)
        job.refuse_unreadable()
        with parts.opened(force=force, restart=restart) as has_work:
            if has_work:
                _settle_columns(job, parts)
                done = _Counter(progress, len(order.sources), parts.seen)
                numbers = range(len(order.sources))
                worker = partial(_Worker, order.for_workers())
                map_partitions(numbers, worker, address=address, num_workers=num_workers, progress=done)
                parts.join_in()
                parts.finish()
        return parts.num_rejected


def _settle_columns(job: Job, parts: Parts) -> None:
    """All workers have to write the same ones: those of the first rows with results, as without a cluster."""
    if parts.has_columns:
        return
    for asked in job.answered(range(len(job.sources)), parts.has):
        parts.write(asked)
        if parts.has_columns:
            return


class _Counter:
    """Tells of files that are done, and adds their chunks to those that were seen."""

    def __init__(self, progress: Progress, num_files: int, seen: set[tuple[int, int]]) -> None:
        self._progress, self._num_files, self._num_done, self._seen = progress, num_files, 0, seen

    def __call__(self, number: int, done: Done) -> None:
        self._num_done += 1
        self._seen |= done.seen
        self._progress.add(done.num_rows, done.num_tokens, done.num_cut, self._num_done / self._num_files)


class _Worker:
    """Does files, one after the other, on some node."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._stack = ExitStack()
        self._client = self._stack.enter_context(order.connected())
        order.refuse_replaced(self._client, Progress(shown=False))  # by what a server of its own has found

    def __call__(self, number: int) -> Done:
        parts, progress = self._order.parts(), Progress(shown=False)
        parts.join_in()  # another worker may have begun with this file
        for asked in self._order.job(self._client, progress).answered([number], parts.has):
            parts.write(asked)
        self._order.refuse_replaced(self._client, progress)
        return Done(progress.num_rows, progress.num_tokens, progress.num_cut, parts.seen)
