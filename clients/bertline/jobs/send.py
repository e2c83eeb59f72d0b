"""Chunks -> requests -> results, with several requests in flight. Rows that the server refuses are rejected."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from threading import Event
from typing import Any, TypeVar

from bertline._batches import batches
from bertline._convert import MAX_REQUEST_BYTES
from bertline._status import ALL_INPUTS
from bertline.client import Client
from bertline.errors import BertlineError, ConnectionFailed, InvalidInput, Overloaded, ServerError, TimedOut
from bertline.jobs.operations import MissingColumn
from bertline.jobs.progress import Progress
from bertline.jobs.rows import MAX_LINE_BYTES, Chunk, ChunkResults, Rejection, text_bytes
from bertline.jobs.spec import JobSpec
from bertline.results import Usage

PAUSES_S = (0.2, 0.5, 1.0, 2.0)
"""Pause before each retry; the last one repeats."""

ReplyT = TypeVar("ReplyT")


@dataclass(frozen=True)
class Batch:
    """Rows of a chunk that are sent in one request."""

    results: ChunkResults
    indices: list[int]
    """Indices of the rows in the chunk."""
    inputs: list[Any]
    is_last: bool
    """True for the last batch of its chunk."""
    usage: Usage = field(default_factory=Usage)
    """Tokens and truncation of the rows that have results."""


class BatchSender:
    """Sends the rows of a job. Retries while the server is overloaded or unreachable, up to the job's patience."""

    def __init__(self, spec: JobSpec, client: Client, progress: Progress) -> None:
        self._spec, self._client, self._progress = spec, client, progress
        self._operation = spec.operation
        self._options = {**spec.options, "model": spec.model_name, "version": spec.model_version}
        self._cancelled = Event()

    def results(
        self,
        numbers: Iterable[int],
        is_done: Callable[[Chunk], bool] = lambda chunk: False,
        max_rows: int | None = None,
    ) -> Iterator[ChunkResults]:
        """Send the rows of some sources. A chunk is read when all rows of the chunks before it are sent.

        Args:
            numbers: indices of the sources.
            is_done: returns True for chunks to skip.
            max_rows: maximum rows of a chunk, see `chunks_of`.

        Yields:
            The chunks that were not skipped, in order, with their results.

        Raises:
            BertlineError: when the server fails, or is unreachable for too long.
        """
        in_flight: deque[tuple[Batch, Future[list[Any]]]] = deque()
        max_in_flight = 2 * self._spec.num_in_flight
        max_bytes = MAX_LINE_BYTES + max_in_flight * MAX_REQUEST_BYTES  # a few long lines
        threads = ThreadPoolExecutor(self._spec.num_in_flight, thread_name_prefix="send")
        try:
            for batch in chain(self._batches(numbers, is_done, max_rows), [None]):
                if batch:
                    in_flight.append((batch, threads.submit(self._send, batch.inputs, batch.usage)))
                while in_flight:
                    chunks = {id(item.results): item.results.chunk.num_bytes for item, _ in in_flight}
                    is_full = len(in_flight) > max_in_flight or (len(chunks) > 1 and sum(chunks.values()) > max_bytes)
                    if batch and not is_full:
                        break
                    yield from self._settle(*in_flight.popleft())
        finally:
            self._cancelled.set()
            threads.shutdown(wait=False, cancel_futures=True)

    def _batches(
        self, numbers: Iterable[int], is_done: Callable[[Chunk], bool], max_rows: int | None
    ) -> Iterator[Batch]:
        for chunk in chain.from_iterable(self._spec.chunks(number, max_rows) for number in numbers):
            if is_done(chunk):
                self._progress.skip(len(chunk.rows), self._fraction(chunk, len(chunk.rows)))
                continue
            results, inputs = self._read(chunk)
            pairs = [(index, value) for index, value in enumerate(inputs) if results.results[index] is None]
            cut = list(
                batches(
                    pairs,
                    lambda pair: text_bytes(pair[1]),
                    max_items=self._spec.batch_size,
                    max_bytes=MAX_REQUEST_BYTES,
                )
            )
            for number, batch in enumerate(cut or [[]], start=1):
                indices, values = [index for index, _ in batch], [value for _, value in batch]
                yield Batch(results, indices, values, is_last=number >= len(cut))

    def _read(self, chunk: Chunk) -> tuple[ChunkResults, list[Any]]:
        """Return a chunk and the inputs of its rows. Rows without a valid input are rejected, and have None there."""
        rejections, inputs = list[Rejection | None](), list[Any]()
        for row in chunk.rows:
            reason, value = row.reason, None
            if not reason:
                try:
                    value = self._operation.read(row.fields, self._spec.column_names)
                except MissingColumn as error:
                    reason = f"{error}; name another column with --column"
                except ValueError as error:
                    reason = str(error)
            rejections.append(Rejection(reason) if reason else None)
            inputs.append(value)
        return ChunkResults(chunk, rejections), inputs

    def _settle(self, batch: Batch, future: Future[list[Any]]) -> Iterator[ChunkResults]:
        """Put the results of a batch into its chunk; yield the chunk after its last batch."""
        found, results = future.result(), batch.results
        for index, result in zip(batch.indices, found, strict=True):
            results.results[index] = result
        results.num_truncated += len(batch.usage.truncated)
        num_settled = len(results.results) if batch.is_last else batch.indices[-1] + 1
        fraction = self._fraction(results.chunk, num_settled)
        self._progress.add(len(found), sum(batch.usage.num_tokens), fraction)
        if batch.is_last:
            yield results

    def _fraction(self, chunk: Chunk, num_rows: int) -> float:
        """Return the fraction of all input up to a row of a chunk."""
        return (chunk.file + chunk.fraction(num_rows)) / len(self._spec.sources)

    def retry(self, call: Callable[[], ReplyT]) -> ReplyT:
        """Call until the server replies.

        Raises:
            BertlineError: when the server fails, or is unreachable for too long.
        """
        started_s, num_retries = time.monotonic(), 0
        while True:
            try:
                reply = call()
            except (Overloaded, ConnectionFailed, TimedOut) as error:
                pause_s = PAUSES_S[min(num_retries, len(PAUSES_S) - 1)]
                is_late = time.monotonic() + pause_s > started_s + self._spec.patience_s
                if is_late or (isinstance(error, Overloaded) and error.is_final):
                    raise
                num_retries += 1
                self._progress.wait(str(error))
                if self._cancelled.wait(pause_s):
                    raise
            else:
                if num_retries:
                    self._progress.wait("")
                return reply

    def _send(self, inputs: list[Any], usage: Usage, *, is_retry: bool = False) -> list[Any]:
        """Send one request, and smaller ones where the server refuses a part of it.

        Args:
            usage: gets the usage of the rows that have results added to it.
            is_retry: True if the server has refused these inputs as too large once.

        Returns:
            A result for each input; a Rejection where the server cannot use it, or the model gives no finite numbers.
        """
        if not inputs:
            return []
        request_usage, method = Usage(), getattr(self._client, self._spec.method)
        try:
            results = list(self.retry(lambda: method(inputs, usage=request_usage, **self._options)))
        except InvalidInput as error:
            if reasons := _reasons(error, len(inputs)):
                return self._send_without(inputs, reasons, usage)
            if not any(item.field in ALL_INPUTS for item in error.items):
                raise
            return self._send_halves(inputs, usage, error)
        except ServerError as error:
            if not (reasons := _reasons(error, len(inputs))):
                raise
            return self._send_without(inputs, reasons, usage, num_requests=2)
        except Overloaded as error:
            if not error.is_final:
                raise
            if len(inputs) == 1 and not is_retry:  # the server may have been slow for a moment only
                self._cancelled.wait(min(PAUSES_S[-1], self._spec.patience_s))
                return self._send(inputs, usage, is_retry=True)
            return self._send_halves(inputs, usage, error)
        usage.num_tokens += request_usage.num_tokens
        usage.num_truncated += request_usage.num_truncated
        return results

    def _send_without(
        self, inputs: list[Any], reasons: Mapping[int, str], usage: Usage, num_requests: int = 1
    ) -> list[Any]:
        """Reject some inputs and send the others; in several requests where more bad inputs may be among them."""
        rest = [item for index, item in enumerate(inputs) if index not in reasons]
        size = max(1, -(-len(rest) // num_requests))
        requests = [self._send(rest[first : first + size], usage) for first in range(0, len(rest), size)]
        found = chain.from_iterable(requests)
        return [Rejection(reasons[index]) if index in reasons else next(found) for index in range(len(inputs))]

    def _send_halves(self, inputs: list[Any], usage: Usage, error: BertlineError) -> list[Any]:
        """Send a request that is too large for the server as two."""
        if len(inputs) == 1:
            return [Rejection(str(error))]
        middle = len(inputs) // 2
        return self._send(inputs[:middle], usage) + self._send(inputs[middle:], usage)


def _reasons(error: InvalidInput | ServerError, num_inputs: int) -> dict[int, str]:
    """Return the reason of an error for each input, by index. Inputs that were not sent are left out."""
    return {
        item.index: f"{item.field}: {item.reason}"
        for item in error.items
        if item.index is not None and 0 <= item.index < num_inputs
    }
