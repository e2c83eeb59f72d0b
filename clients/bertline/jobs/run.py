"""A job from its files to its output, in this process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO

from bertline.jobs.blocks import BLOCK_ROWS
from bertline.jobs.job import Job
from bertline.jobs.order import Order
from bertline.jobs.parts import rejected_rows
from bertline.jobs.progress import Progress
from bertline.jobs.sinks import Jsonl, json_line
from bertline.jobs.storage import File, FileError, already_exists, open_write

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
def standard_output() -> Iterator[BinaryIO]:
    """Standard output, of a reader that may leave early."""
    if sys.stdout is None:
        raise FileError("cannot write standard output: it is closed; give a file with --output")
    try:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still buffered goes nowhere
        if isinstance(error, BrokenPipeError):  # the reader has seen enough, as `head` does
            sys.exit(1)
        raise FileError(f"{error.strerror}: `standard output`") from error


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
