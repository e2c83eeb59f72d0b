"""Canaries: batches of a known input that show, while nobody calls, whether the models still compute the right numbers.

Each is a batch of the scheduler like others, which aborts it if it hangs, and waits for all calls.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from serving.core.errors import RefusedError
from serving.core.job import AbortableRun, JobResult, Origin
from serving.core.models import Model, Probe
from serving.core.scheduler import Scheduler
from tasks.base import first_line

MAX_LOAD = 0.001
"""Maximum fraction of a core that the canaries of all models take together, while none fails."""
RETRY_S, MAX_RETRY_LOAD = 5.0, 0.05
"""Seconds until a canary that failed runs again, or more, so that it takes at most this fraction of a core."""

logger = logging.getLogger(__name__)


class Canary:
    """Probe of a model, as a model of the scheduler, so that it shares no batch with calls and counts in no metric."""

    def __init__(self, model: Model, probe: Probe) -> None:
        self.model, self._probe = model, probe
        self.max_batch_tokens, self.num_threads = model.max_batch_tokens, model.num_threads
        self.measured_batches, self.run_tokens = model.measured_batches, model.run_tokens
        self.core_s = probe.core_s
        """Core seconds of the last run."""
        self.problem = ""
        """Why the last run failed; empty if it passed."""
        self.due_s = math.inf
        """Time of the next run on the clock of `Canaries`."""
        self.future: Future[JobResult] | None = None
        """The run that waits or is under way; None if there is none."""

    def __str__(self) -> str:
        return f"{self._probe.rows} x {self._probe.length} tokens"

    def new_run(self) -> AbortableRun:
        """Return a run for one call of `compute`."""
        return self.model.session.new_run(frees=True)

    def compute(self, sequences: Sequence[Any], run: AbortableRun) -> list[str]:
        """Run the probe; return what is wrong, empty if nothing is."""
        started_s = time.monotonic()
        try:
            problem = self.model.probe(self._probe, run)
        except Exception as error:  # ONNX Runtime's own errors share no base class
            problem = first_line(error)
        self.core_s = (time.monotonic() - started_s) * self.num_threads
        return [problem]

    def submit(self, scheduler: Scheduler) -> None:
        """Queue a run behind all calls, unless one waits already.

        Raises:
            RefusedError: when the queue is full.
        """
        if not self.future:
            batch = [[range(self._probe.rows * self._probe.length)]]
            self.future = scheduler.submit(self, batch, lambda _, outputs: outputs[0], origin=Origin(Canary, True))


class Canaries:
    """Canaries of all loaded models. Belongs to one event loop."""

    def __init__(
        self,
        scheduler: Scheduler,
        every_s: float,
        changed: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create them without models.

        Args:
            scheduler: runs them.
            every_s: minimum seconds between two runs of a canary; 0 to run only on demand.
            changed: called when a model fails or recovers.
            clock: returns the current time in seconds.
        """
        self._scheduler, self._every_s, self._changed, self._clock = scheduler, every_s, changed, clock
        self._of_models: dict[Model, list[Canary]] = {}

    def watch(self, models: Iterable[Model]) -> None:
        """Replace the models; those that were there keep their state."""
        before = self._of_models
        self._of_models = {
            model: before.get(model) or [Canary(model, probe) for probe in model.probes] for model in models
        }
        for canary in self._canaries:
            if canary.due_s == math.inf:
                canary.due_s = self._next_s(canary)

    def problems(self) -> dict[Model, str]:
        """Return what is wrong with each model; empty for those that work. Thread-safe."""
        of_models = list(self._of_models.items())
        return {model: next((item.problem for item in canaries if item.problem), "") for model, canaries in of_models}

    def tick(self) -> None:
        """Read the runs that have ended, and start those that are due. To be called about once a second."""
        before = self.problems()
        for canary in self._canaries:
            if canary.future and canary.future.done():
                self._read(canary, canary.future)
            if canary.due_s <= self._clock():
                with suppress(RefusedError):  # the calls in the queue show that the model works
                    canary.submit(self._scheduler)
        if self.problems() != before:
            self._changed()

    async def run(self) -> None:
        """Run all canaries now, and wait for them.

        Raises:
            RefusedError: when the queue is full.
        """
        self.tick()
        for canary in self._canaries:
            canary.submit(self._scheduler)
        if runs := [asyncio.wrap_future(canary.future) for canary in self._canaries if canary.future]:
            await asyncio.wait(runs)
        self.tick()

    @property
    def _canaries(self) -> list[Canary]:
        return [canary for canaries in self._of_models.values() for canary in canaries]

    def _read(self, canary: Canary, future: Future[JobResult]) -> None:
        before, canary.future = canary.problem, None
        if future.cancelled():  # the scheduler closes
            return
        error = future.exception()
        canary.problem = first_line(error) if error else future.result().results[0]
        canary.due_s = self._next_s(canary)
        if canary.problem and canary.problem != before:
            logger.error("the canary of %s fails on %s: %s", canary.model, canary, canary.problem)
        elif before and not canary.problem:
            logger.info("the canary of %s passes again on %s", canary.model, canary)

    def _next_s(self, canary: Canary) -> float:
        """Return when a canary is due again: each has an equal part of the time that all may take."""
        if canary.problem:
            return self._clock() + max(RETRY_S, canary.core_s / MAX_RETRY_LOAD)
        stretched_s = len(self._canaries) * canary.core_s / MAX_LOAD
        return self._clock() + max(self._every_s, stretched_s) if self._every_s else math.inf
