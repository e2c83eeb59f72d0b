"""Encoding: examples -> features, within the limits of a request. Ends early when its caller leaves."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from serving.core.calls import Call, Stage
from serving.core.errors import InvalidRequestError, Violation
from serving.core.limits import RequestLimits, count_cut
from serving.core.metrics import Metrics
from serving.core.models import Model
from serving.core.scheduler import Scheduler
from tasks.base import AnyTask, InvalidExample, InvalidExamplesError
from tasks.features import Features

UNCHECKED_BYTES = 4096
"""Maximum bytes of a request that is tokenized without checks of its deadline."""
CHECKED_TOKENS = 16_384
"""Number of tokens after which admission is checked again, for texts that are split into windows."""
MAX_WINDOWS = 2**15
"""Maximum number of windows of a request. Each needs about 4 KiB besides its tokens."""


class TextEncoder:
    """Encodes the examples of requests. May be called from any thread."""

    def __init__(self, scheduler: Scheduler, metrics: Metrics, limits: RequestLimits) -> None:
        self._scheduler, self._metrics, self._limits = scheduler, metrics, limits

    def encode(
        self,
        call: Call,
        model: Model,
        task: AnyTask,
        examples: Sequence[Any],
        *,
        num_bytes: int,
        truncate: bool | None,
        windowed: frozenset[str] = frozenset(),
        best_effort: bool = False,
        field_path: Callable[[InvalidExample], str],
    ) -> tuple[list[Any], list[list[Features]]]:
        """Encode examples.

        Args:
            call: record of the call.
            model: model that answers the request.
            task: task of the model, with the options of the request.
            examples: examples of the task.
            num_bytes: bytes of text that the model reads, as `Endpoint.read_bytes`.
            truncate: True to cut texts that are too long instead of refusing them; None for the manifest's default.
            windowed: fields of the examples that are split into windows and may have any length.
            best_effort: True if the examples are those that can be computed in time, so that they are not too many.
            field_path: returns the path of an invalid example in the request.

        Returns:
            The examples, completed, and the features of each: one sequence or several windows.

        Raises:
            InvalidRequestError: naming the examples that cannot be encoded.
        """
        started_s = time.monotonic()
        truncate = model.manifest.truncate if truncate is None else truncate
        try:
            checked = examples
            if num_bytes > self._limits.unchecked_bytes(task.settings):
                checked = self._limits.enforce_lengths(examples, task.settings, windowed=windowed, truncate=truncate)
            completing, encoding = [
                self._checked(call, model, task, is_windowed=bool(windowed) and not best_effort)
                if num_bytes > UNCHECKED_BYTES
                else task
                for _ in range(2)  # both read the same tokens, and each counts them from zero
            ]
            completed = [completing.complete(example) for example in checked]
            windows = encoding.encode(completed, truncate=truncate)
        except InvalidExamplesError as error:
            raise InvalidRequestError(
                violations=[Violation(field_path(item), item.reason) for item in error.invalid]
            ) from error
        self.record(call, model, started_s)
        if checked is not examples:
            windows = [count_cut(*parts) for parts in zip(windows, examples, checked, strict=True)]
        if num_cut := sum(any(window.num_truncated for window in items) for items in windows):
            self._metrics.truncated(model, num_cut)
        if windows:
            num_tokens = sum(len(window) for items in windows for window in items)
            self._scheduler.latency_model.observe_request(model, num_bytes, len(windows), num_tokens)
        return completed, windows

    def affordable_bytes(self, model: Model, deadline_s: float) -> float:
        """Return the bytes of text that are worth tokenizing before a deadline: half more than can be computed."""
        num_tokens = self._scheduler.affordable_tokens(model, deadline_s)
        return 1.5 * self._scheduler.latency_model.estimate_bytes(model, num_tokens)

    def check_tokens(self, call: Call, model: Model, *, is_windowed: bool = False) -> Callable[[int], None]:
        """Return a callback for `Tokenizer.with_progress`, called with the number of further tokens.

        Args:
            call: call whose texts are tokenized.
            model: model that answers it.
            is_windowed: True if the model computes all tokens. Too many are then refused before all are read.

        Returns:
            Function that raises ExpiredError when nobody waits any more, and RefusedError as `Scheduler.check`.
        """
        num_tokens, next_check = 0, CHECKED_TOKENS

        def check(num_more: int) -> None:
            nonlocal num_tokens, next_check
            call.check()
            num_tokens += num_more
            if is_windowed and num_tokens >= next_check:
                next_check = num_tokens + CHECKED_TOKENS
                self._scheduler.check(model, num_tokens, call.deadline_s, origin=call.origin)

        return check

    def record(self, call: Call, model: Model, started_s: float) -> float:
        """Record a tokenization that began at `started_s` and ends now; return its seconds."""
        seconds = time.monotonic() - started_s
        self._metrics.encoded(model, seconds)
        call.stages.append(Stage("tokenize", started_s, seconds))
        return seconds

    def _checked(self, call: Call, model: Model, task: AnyTask, *, is_windowed: bool) -> AnyTask:
        """Return the task with a tokenizer that checks the request while it reads."""
        check_tokens = self.check_tokens(call, model, is_windowed=is_windowed)
        check_windows = limited(
            lambda _: call.check(),
            MAX_WINDOWS,
            f"the texts need more than {MAX_WINDOWS} windows, the maximum of a request",
        )
        return replace(task, tokenizer=task.tokenizer.with_progress(check_tokens, check_windows))


def limited(check: Callable[[int], None], most: int, reason: str) -> Callable[[int], None]:
    """Return a callback for `Tokenizer.with_progress`, called with the number of further tokens or windows.

    Args:
        check: callback that is called first.
        most: maximum number of them in all.
        reason: what is wrong with more; completed with what to do.

    Returns:
        Function that raises InvalidRequestError when there are more.
    """
    total = 0

    def check_both(num_more: int) -> None:
        nonlocal total
        check(num_more)
        total += num_more
        if total > most:
            message = f"{reason}; send fewer or shorter texts"
            raise InvalidRequestError(message, [Violation("inputs", message)])

    return check_both
