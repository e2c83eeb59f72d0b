"""Chunks -> requests -> results, with several requests in flight. Rows that the server refuses are rejected."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from threading import Event
from typing import Any, TypeVar

from bertline._batches import batches
from bertline._convert import MAX_REQUEST_BYTES
from bertline._status import ALL_INPUTS
from bertline.client import Client
from bertline.errors import ConnectionFailed, InvalidInput, Overloaded, ServerError, TimedOut
from bertline.jobs.directory import StaleParts
from bertline.jobs.progress import Progress
from bertline.jobs.rows import MAX_LINE_BYTES, Chunk, Rejection, text_bytes
from bertline.jobs.spec import JobSpec
from bertline.operations.base import MissingColumn
from bertline.results import Model, Usage

PAUSES_S = (0.2, 0.5, 1.0, 2.0)
"""Pause before each retry; the last one repeats."""

ReplyT = TypeVar("ReplyT")


class BatchSender:
    """Sends the rows of a job. Retries while the server is overloaded or unreachable, up to the job's patience."""

    def __init__(self, spec: JobSpec, client: Client, progress: Progress) -> None:
        self._spec, self._client, self._progress = spec, client, progress
        self._options = {**spec.options, "model": spec.model_name, "version": spec.model_version}
        self._cancelled = Event()

    def results(
        self,
        numbers: Iterable[int],
        is_done: Callable[[Chunk], bool] = lambda chunk: False,
        max_rows: int | None = None,
    ) -> Iterator[Chunk]:
        """Send the rows of the sources with these numbers, and yield the chunks with their results, in order.

        A chunk is read when all rows of the chunks before it are sent. Those that `is_done` are skipped.

        Raises:
            BertlineError: when the server fails, or is unreachable for too long.
        """
        in_flight: deque[tuple[Chunk, list[int], Usage, Future[list[Any]]]] = deque()
        threads = ThreadPoolExecutor(self._spec.num_in_flight, thread_name_prefix="send")
        try:
            for chunk in chain.from_iterable(self._spec.chunks(number, max_rows) for number in numbers):
                if is_done(chunk):
                    self._progress.skip(len(chunk.rows), self._fraction(chunk, len(chunk.rows)))
                    continue
                for batch in self._batches(chunk):
                    usage = Usage()
                    sent = threads.submit(self._send, [value for _, value in batch], usage)
                    in_flight.append((chunk, [index for index, _ in batch], usage, sent))
                    while self._is_full([chunk for chunk, *_ in in_flight]):
                        yield from self._settle(*in_flight.popleft())
            while in_flight:
                yield from self._settle(*in_flight.popleft())
        except BaseException:
            self._cancelled.set()
            raise
        finally:
            threads.shutdown(wait=False, cancel_futures=True)

    def _batches(self, chunk: Chunk) -> list[list[tuple[int, Any]]]:
        """Return batches of index and input of the rows of a chunk, at least one; reject rows without a valid input."""
        chunk.results = [Rejection(row.reason) if row.reason else None for row in chunk.rows]
        read, pairs = self._spec.operation.read, []
        for index, row in enumerate(chunk.rows):
            if row.reason:
                continue
            try:
                pairs.append((index, read(row.fields, self._spec.column_names)))
            except MissingColumn as error:
                chunk.results[index] = Rejection(f"{error}; name another column with --column")
            except ValueError as error:
                chunk.results[index] = Rejection(str(error))
        limits = {"max_items": self._spec.batch_size, "max_bytes": MAX_REQUEST_BYTES}
        return list(batches(pairs, lambda pair: text_bytes(pair[1]), **limits)) or [[]]

    def _is_full(self, chunks: Sequence[Chunk]) -> bool:
        """Return True if the batches of these chunks, one each, are too many, or their chunks too large."""
        max_in_flight, different = 2 * self._spec.num_in_flight, set(chunks)
        max_bytes = MAX_LINE_BYTES + max_in_flight * MAX_REQUEST_BYTES  # a few long lines
        is_large = len(different) > 1 and sum(chunk.num_bytes for chunk in different) > max_bytes
        return len(chunks) > max_in_flight or is_large

    def _settle(self, chunk: Chunk, indices: list[int], usage: Usage, sent: Future[list[Any]]) -> Iterator[Chunk]:
        """Put the results of a batch into its chunk; yield the chunk after its last batch."""
        for index, result in zip(indices, sent.result(), strict=True):
            chunk.results[index] = result
        chunk.num_truncated += len(usage.truncated)
        is_last = all(result is not None for result in chunk.results)
        num_settled = len(chunk.rows) if is_last else indices[-1] + 1
        self._progress.add(len(indices), sum(usage.num_tokens), self._fraction(chunk, num_settled))
        if is_last:
            yield chunk

    def _fraction(self, chunk: Chunk, num_rows: int) -> float:
        """Return the fraction of all input up to a row of a chunk."""
        return (chunk.file + chunk.fraction(num_rows)) / len(self._spec.sources)

    def refuse_replaced_model(self) -> None:
        """Check that the model version is the same as at the start.

        Raises:
            StaleParts: when its network or manifest was replaced.
        """
        if not (known := self._spec.model):
            return
        model = self.retry(lambda: self._client.model(known.name, known.version))
        if (model.digest, model.manifest_json) != (known.digest, known.manifest_json):
            raise self._replaced_model_error(known, "")

    def _replaced_model_error(self, known: Model, how: str) -> StaleParts:
        hint = "start again with --restart" if self._spec.output else "run the same command again"
        return StaleParts(f"the model `{known.name}/{known.version}` was replaced while the job ran{how}; {hint}")

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
            usage: usage to which that of rows with results is added.
            is_retry: True if the server has refused these inputs as too large once.

        Returns:
            A result for each input; a Rejection where the server cannot use it, or the model gives no finite numbers.
        """
        if not inputs:
            return []
        request_usage, method = Usage(), getattr(self._client, self._spec.method)
        try:
            results = list(self.retry(lambda: method(inputs, usage=request_usage, **self._options)))
        except (InvalidInput, ServerError, Overloaded) as error:
            return self._send_rest(inputs, usage, error, is_retry=is_retry)
        if (known := self._spec.model) and request_usage.space != known.space:
            found, wanted = request_usage.space or "unknown", known.space or "unknown"
            raise self._replaced_model_error(known, f": vectors are of space `{found}`, not of `{wanted}`")
        usage.num_tokens += request_usage.num_tokens
        usage.num_truncated += request_usage.num_truncated
        return results

    def _send_rest(
        self, inputs: list[Any], usage: Usage, error: InvalidInput | ServerError | Overloaded, *, is_retry: bool
    ) -> list[Any]:
        """Reject the inputs that an error names, and send the others; in halves if there may be more of them, or if
        the request was too large for the server.

        Raises:
            BertlineError: the error, when it is not about inputs.
        """
        reasons = {
            item.index: f"{item.field}: {item.reason}"
            for item in getattr(error, "items", ())
            if item.index is not None and 0 <= item.index < len(inputs)
        }
        is_overload = isinstance(error, Overloaded) and error.is_final
        is_too_large = isinstance(error, InvalidInput) and any(item.field in ALL_INPUTS for item in error.items)
        if not (reasons or is_overload or is_too_large):
            raise error
        if not reasons and len(inputs) == 1:
            if is_overload and not is_retry:  # the server may have been slow for a moment only
                self._cancelled.wait(min(PAUSES_S[-1], self._spec.patience_s))
                return self._send(inputs, usage, is_retry=True)
            reasons = {0: str(error)}
        rest = [item for index, item in enumerate(inputs) if index not in reasons]
        is_whole = reasons and isinstance(error, InvalidInput)  # which names all invalid inputs
        middle = len(rest) if is_whole else (len(rest) + 1) // 2
        found = iter(self._send(rest[:middle], usage) + self._send(rest[middle:], usage))
        return [Rejection(reasons[index]) if index in reasons else next(found) for index in range(len(inputs))]
