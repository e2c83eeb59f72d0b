"""How long work will take, learnt from what was done: what admission goes by."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from serving.jobs import Model

RATE = 0.02
"""Weight of what was seen last. Batches of short texts cost more a token than others: a forecast that follows each of
them lets too much in whenever it is low."""


class Forecast:
    """Speeds of models, and how many tokens a request will have."""

    def __init__(self) -> None:
        self._seconds_per_token: WeakKeyDictionary[Model, float] = WeakKeyDictionary()
        self._tokens_per_byte: WeakKeyDictionary[Model, float] = WeakKeyDictionary()

    def seconds_per_token(self, model: Model) -> float:
        """Seconds of a core, padding included."""
        return self._seconds_per_token.get(model, model.seconds_per_token)

    def tokens(self, model: Model, num_bytes: int) -> int:
        """Of a request that is so large; 0 before one was seen."""
        return int(num_bytes * self._tokens_per_byte.get(model, 0.0))

    def batch_done(self, model: Model, num_tokens: int, core_s: float) -> None:
        """Learn from a batch."""
        _learn(self._seconds_per_token, model, core_s / num_tokens)

    def encoded(self, model: Model, num_bytes: int, num_tokens: int) -> None:
        """Learn from a request."""
        _learn(self._tokens_per_byte, model, num_tokens / num_bytes)


def _learn(known: WeakKeyDictionary[Model, float], model: Model, seen: float) -> None:
    before = known.get(model, seen)
    known[model] = before + RATE * (seen - before)
