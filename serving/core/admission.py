"""What comes in: request -> features, within limits, or a refusal before any work is done."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from serving.core.calls import Call, Stage
from serving.core.errors import ExpiredError, InvalidRequestError, RefusedError, Violation
from serving.core.limits import Limits, note_cut
from serving.core.metrics import REJECTIONS, Metrics
from serving.core.models import Model
from serving.core.scheduler import Scheduler
from serving.endpoints.wire import Reading
from tasks.base import AnyTask, InvalidExample, InvalidExamplesError
from tasks.features import Features

WATCHED_BYTES = 4096
"""The deadline of a larger request is checked while its texts are tokenised."""
CHECKED_TOKENS = 16_384
"""After so many more tokens, a request that is read whole is checked for admission again."""

T = TypeVar("T")

MAX_WINDOWS = 2**15
"""Most windows that the texts of a request become, all together. Each takes some 4 KiB beside its tokens."""

PARTS_PER_TEXT, MORE_PARTS = 4, 1000
"""A request may have PARTS_PER_TEXT times as many parts as it may have texts, and MORE_PARTS: they are counted before
it is parsed."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """A request that has come."""

    raw: bytes
    deadline_s: float | None
    """On the clock of `time.monotonic`."""
    call: Call
    """What is noted of it."""

    def check(self) -> None:
        """Raise when nobody waits any more; to be called now and then in work that may take long.

        Raises:
            ExpiredError: when the deadline has passed, or the call has been cancelled.
        """
        if self.call.has_ended or (self.deadline_s is not None and time.monotonic() > self.deadline_s):
            raise ExpiredError("the deadline passed before all was done")

    def wanted(self, items: Iterable[T]) -> Iterator[T]:
        """Yield items as they come, while somebody waits for them.

        Raises:
            ExpiredError: as `check`.
        """
        for item in items:
            self.check()
            yield item


@dataclass(frozen=True, slots=True)
class Admitted:
    """What is known of a request before its texts become tokens."""

    model: Model
    num_tokens: int
    """As forecast."""
    size: int
    """Bytes of a request that is as much work, for `Offload`."""


class Intake:
    """Admits requests, and makes features of their examples."""

    def __init__(self, scheduler: Scheduler, metrics: Metrics, limits: Limits) -> None:
        self.limits = limits
        self._scheduler = scheduler
        self._metrics = metrics

    def reading(self, incoming: Incoming) -> Reading:
        """Return the limits on the reading of a request."""
        return Reading(max_parts=MORE_PARTS + PARTS_PER_TEXT * self.limits.max_texts, check=incoming.check)

    def receive(self, incoming: Incoming, model: Model, num_inputs: int) -> None:
        """Note what came, and refuse too much of it.

        Raises:
            InvalidRequestError: when it has too many inputs.
        """
        note_model(incoming.call, model, num_inputs)
        self.limits.check_count(num_inputs)

    def admit(
        self, incoming: Incoming, model: Model, num_inputs: int, *, size: int, most_tokens: float = math.inf
    ) -> Admitted:
        """Refuse a request for a model that was received, before its texts become tokens.

        Args:
            size: bytes of a request that is as much work, if it is more than its own.
            most_tokens: that the model may get to read of it, however large it is.

        Raises:
            RefusedError: when it would not be computed in time.
        """
        expected = self._scheduler.latency_model.estimate_tokens(model, len(incoming.raw), num_inputs)
        admitted = Admitted(model, int(min(expected, most_tokens)), max(size, len(incoming.raw)))
        self.check(incoming, admitted)
        return admitted

    def check(self, incoming: Incoming, admitted: Admitted) -> None:
        """Refuse what would not be computed in time; to be asked again where a request had to wait meanwhile.

        Raises:
            RefusedError: when it would not.
        """
        with self.rejections(admitted.model):
            self._scheduler.check(admitted.model, admitted.num_tokens, incoming.deadline_s, origin=incoming.call.origin)

    def encode(
        self,
        incoming: Incoming,
        model: Model,
        task: AnyTask,
        examples: Sequence[Any],
        *,
        truncate: bool | None,
        windowed: frozenset[str] = frozenset(),
        field: Callable[[InvalidExample], str],
    ) -> tuple[list[Any], list[list[Features]]]:
        """The examples as they are read, and the features of each.

        Args:
            task: the model's, perhaps with other settings.
            truncate: whether to cut what is too long; None for what the manifest says.
            windowed: fields of the examples that may be of any length, since they are read in windows.
            field: path of an invalid example in the request.

        Raises:
            InvalidRequestError: naming the examples that cannot be encoded.
        """
        num_bytes, started_s = len(incoming.raw), time.monotonic()
        truncate = model.manifest.truncate if truncate is None else truncate
        try:
            held = examples
            if num_bytes > self.limits.free_bytes(task.settings):
                held = self.limits.cut(examples, task.settings, windowed=windowed, truncate=truncate)
            finding, encoding = [
                self._watched(incoming, model, task, read_whole=bool(windowed)) if num_bytes > WATCHED_BYTES else task
                for _ in range(2)  # both read the same tokens, and each counts them by itself
            ]
            read = [finding.complete(example) for example in held]
            windows = encoding.encode(read, truncate=truncate)
        except InvalidExamplesError as error:
            raise InvalidRequestError(
                violations=[Violation(field(item), item.reason) for item in error.invalid]
            ) from error
        self.encoded(incoming, model, started_s)
        if held is not examples:
            windows = [note_cut(*parts) for parts in zip(windows, examples, held, strict=True)]
        if num_cut := sum(any(window.num_truncated for window in items) for items in windows):
            self._metrics.truncated(model, num_cut)
        if examples:
            num_tokens = sum(len(window) for items in windows for window in items)
            self._scheduler.latency_model.observe_request(model, num_bytes, len(examples), num_tokens)
        return read, windows

    def _watched(self, incoming: Incoming, model: Model, task: AnyTask, *, read_whole: bool) -> AnyTask:
        watch = self.watch(incoming, model, read_whole=read_whole)
        return replace(task, tokenizer=task.tokenizer.with_progress(watch, _watch_windows(incoming)))

    def watch(self, incoming: Incoming, model: Model, *, read_whole: bool = False) -> Callable[[int], None]:
        """Make a function that is called now and then, while texts are tokenised, with the number of tokens read.

        Args:
            read_whole: whether the model will read all of them, so that too many are refused before all are known.

        Returns:
            It raises ExpiredError when nobody waits any more, and RefusedError as `check`.
        """
        num_tokens, due = 0, CHECKED_TOKENS

        def watch(num_more: int) -> None:
            nonlocal num_tokens, due
            incoming.check()
            num_tokens += num_more
            if read_whole and num_tokens >= due:
                due = num_tokens + CHECKED_TOKENS
                with self.rejections(model):
                    self._scheduler.check(model, num_tokens, incoming.deadline_s, origin=incoming.call.origin)

        return watch

    def encoded(self, incoming: Incoming, model: Model, started_s: float) -> float:
        """Note that texts have become tokens; returns the seconds that it took."""
        seconds = time.monotonic() - started_s
        self._metrics.encoded(model, seconds)
        incoming.call.stages.append(Stage("tokenize", started_s, seconds))
        return seconds

    @contextmanager
    def rejections(self, model: Model) -> Iterator[None]:
        """Count what is refused in here."""
        try:
            yield
        except RefusedError as error:
            self._metrics.rejected(model, REJECTIONS[type(error)])
            raise


def _watch_windows(incoming: Incoming) -> Callable[[int], None]:
    """Make a function that is called with the number of windows more that texts become; it raises ExpiredError as
    `Incoming.check`, and InvalidRequestError when they are too many."""
    num_windows = 0

    def watch(num_more: int) -> None:
        nonlocal num_windows
        incoming.check()
        num_windows += num_more
        if num_windows > MAX_WINDOWS:
            reason = (
                f"the texts are read in more than {MAX_WINDOWS} windows, which a request takes; "
                "send fewer or shorter ones"
            )
            raise InvalidRequestError(reason, [Violation("inputs", reason)])

    return watch


def note_model(call: Call, model: Model, num_inputs: int) -> None:
    """Note what answers a call, and how much it asks."""
    call.model, call.num_inputs = f"{model.manifest.name}/{model.manifest.version}", num_inputs
