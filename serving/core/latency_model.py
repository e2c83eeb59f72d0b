"""Latency model of admission: estimates of compute time and token counts, updated after each batch and request."""

from __future__ import annotations

import math
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from serving.core.job import BatchModel

NEWEST_WEIGHT = 0.02
"""Weight of the newest observation. With a larger weight, estimates follow single batches, and low ones admit too
many requests."""

MIN_TOKENS = 3
"""Minimum tokens of a sequence: [CLS], a token, [SEP]."""

USUAL_TOKEN_BYTES = 4.0
"""Bytes of a token before the first observation."""

MAX_RATIO = 10.0
"""An observed time counts as at most this multiple of the estimate. Otherwise one stall of the machine would make the
server refuse the next requests. A lasting change still changes the estimate, in several steps."""


class LinearFit:
    """Least-squares fit of batch time against batch tokens: seconds per run plus seconds per token.

    A mean time per token would not suffice: small batches cost far more per token than full ones.
    """

    def __init__(self, points: Sequence[tuple[int, float]]) -> None:
        """Start from measured points.

        Args:
            points: (tokens, seconds) of batches. They keep their full weight; later observations fade.
        """
        self._initial = [sum(column) for column in zip(*map(_moments, points), strict=True)]
        self._observed = [0.0] * len(self._initial)

    def add(self, num_tokens: int, seconds: float) -> None:
        """Add an observed batch; older observations lose weight."""
        new = _moments((num_tokens, seconds))
        self._observed = [(1 - NEWEST_WEIGHT) * old + value for old, value in zip(self._observed, new, strict=True)]

    @property
    def mean_batch_tokens(self) -> float:
        """Token-weighted mean batch size of the observed batches; of the initial points if there are none."""
        _, tokens, _, squares, _ = self._observed if self._observed[0] else self._initial
        return squares / tokens

    def seconds(self, num_tokens: float) -> float:
        """Return the estimated seconds of a batch of `num_tokens`."""
        run_s, slope = self._line()
        return run_s + slope * num_tokens

    @property
    def run_tokens(self) -> float:
        """Number of tokens that take as long as what every run takes besides its tokens; infinite if tokens take no
        time."""
        run_s, slope = self._line()
        return run_s / slope if slope else math.inf

    def _line(self) -> tuple[float, float]:
        """Return seconds per run and seconds per token."""
        weight, tokens, seconds, squares, products = map(sum, zip(self._initial, self._observed, strict=True))
        spread = weight * squares - tokens * tokens
        slope = max(0.0, (weight * products - tokens * seconds) / spread) if spread > 0 else 0.0
        run_s = (seconds - slope * tokens) / weight
        if run_s < 0:  # long sequences cost more per token: use a line through the origin
            run_s, slope = 0.0, products / squares
        return float(run_s), float(slope)


def _moments(point: tuple[int, float]) -> tuple[float, ...]:
    num_tokens, seconds = point
    return 1.0, num_tokens, seconds, num_tokens * num_tokens, num_tokens * seconds


class LatencyModel:
    """Core seconds per token of each model, and tokens per request byte."""

    def __init__(self) -> None:
        self._fits: WeakKeyDictionary[BatchModel, LinearFit] = WeakKeyDictionary()
        self._seconds_per_token: WeakKeyDictionary[BatchModel, float] = WeakKeyDictionary()
        """Cached estimates of the fits: read twice a request, changed once a batch."""
        self._texts: WeakKeyDictionary[BatchModel, tuple[float, float]] = WeakKeyDictionary()
        """Bytes of requests, and their tokens beyond MIN_TOKENS per input; both with exponential decay."""

    def seconds_per_token(self, model: BatchModel) -> float:
        """Return the estimated core seconds per token in full batches, padding included."""
        seconds = self._seconds_per_token.get(model)
        return self.initial_seconds_per_token(model) if seconds is None else seconds

    def initial_seconds_per_token(self, model: BatchModel) -> float:
        """Return the estimate from the batches measured at load time alone, in core seconds per token."""
        return _full_batch_seconds_per_token(LinearFit(model.measured_batches), model)

    def estimate_tokens(self, model: BatchModel, num_bytes: int, num_inputs: int) -> int:
        """Return the estimated tokens of a request; before the first observation the minimum of its inputs."""
        seen_bytes, seen_tokens = self._texts.get(model, (1.0, 0.0))
        return MIN_TOKENS * num_inputs + int(num_bytes * seen_tokens / seen_bytes)

    def estimate_bytes(self, model: BatchModel, num_tokens: float) -> float:
        """Return the estimated bytes of text that have `num_tokens`."""
        seen_bytes, seen_tokens = self._texts.get(model, (USUAL_TOKEN_BYTES, 1.0))
        return num_tokens * seen_bytes / max(1.0, seen_tokens)

    def reset(self, model: BatchModel) -> None:
        """Drop the observed batches of a model; keep those that were measured at load time."""
        self._fits.pop(model, None)
        self._seconds_per_token.pop(model, None)

    def observe_batch(self, model: BatchModel, num_tokens: int, core_s: float) -> None:
        """Update the estimate with a computed batch: its tokens without padding, and its core seconds."""
        if model not in self._fits:
            self._fits[model] = LinearFit(model.measured_batches)
        fit = self._fits[model]
        fit.add(num_tokens, min(core_s, MAX_RATIO * fit.seconds(num_tokens)))
        self._seconds_per_token[model] = _full_batch_seconds_per_token(fit, model)

    def observe_request(self, model: BatchModel, num_bytes: int, num_inputs: int, num_tokens: int) -> None:
        """Update the tokens per byte with an encoded request; large requests weigh more than small ones."""
        seen_bytes, seen_tokens = self._texts.get(model, (0.0, 0.0))
        more_tokens = num_tokens - MIN_TOKENS * num_inputs
        self._texts[model] = (
            (1 - NEWEST_WEIGHT) * seen_bytes + num_bytes,
            (1 - NEWEST_WEIGHT) * seen_tokens + more_tokens,
        )


def _full_batch_seconds_per_token(fit: LinearFit, model: BatchModel) -> float:
    """Evaluate the fit at the batch cap, or at the mean batch size if sequences longer than the cap exceed it."""
    num_tokens = max(model.max_batch_tokens, fit.mean_batch_tokens)
    return fit.seconds(num_tokens) / num_tokens
