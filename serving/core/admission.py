"""Admission: refuse a request that cannot be computed in time, before the work of encoding it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from serving.core.errors import RefusedError
from serving.core.metrics import REJECTIONS, Metrics
from serving.core.models import Model
from serving.core.request import PendingRequest
from serving.core.scheduler import Scheduler


class Admission:
    """Asks the scheduler whether it can compute a request in time, and counts rejections."""

    def __init__(self, scheduler: Scheduler, metrics: Metrics) -> None:
        self._scheduler = scheduler
        self._metrics = metrics

    def estimate_tokens(self, model: Model, num_bytes: int, num_inputs: int, max_tokens: float = math.inf) -> int:
        """Estimate the tokens of a request that is not tokenized yet.

        Args:
            model: model that answers it.
            num_bytes: size of the serialised request.
            num_inputs: number of its inputs.
            max_tokens: upper bound of the estimate, as `Endpoint.max_tokens`.
        """
        return int(min(self._scheduler.latency_model.estimate_tokens(model, num_bytes, num_inputs), max_tokens))

    def admit(self, request: PendingRequest, model: Model, num_tokens: int) -> None:
        """Check that a request of about `num_tokens` tokens can be computed in time.

        Raises:
            RefusedError: when it cannot.
        """
        with self.count_rejections(model):
            self._scheduler.check(model, num_tokens, request.deadline_s, origin=request.call.origin)

    @contextmanager
    def count_rejections(self, model: Model) -> Iterator[None]:
        """Count rejections by the scheduler in the metrics."""
        try:
            yield
        except RefusedError as error:
            self._metrics.rejected(model, REJECTIONS[type(error)])
            raise
