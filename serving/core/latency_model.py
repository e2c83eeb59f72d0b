"""How long work will take, learnt from what was done: what admission goes by."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from serving.core.job import Model

RATE = 0.02
"""Weight of what was seen last: a forecast that followed each batch would let too much in whenever it is low."""

MIN_TOKENS = 3
"""Of any sequence: [CLS], a token, [SEP]."""

MAX_TIMES = 10.0
"""What was seen counts as no more than so many times the forecast: one batch after which a huge reply was made, or in
which the machine stood still, would have the next requests refused. What lasts is learnt all the same."""


class Line:
    """Seconds of a batch by its tokens: so much a run, and so much a token, by least squares. A batch of a few tokens
    costs far more a token than a full one, so that a mean would tell little of the one after many of the other."""

    def __init__(self, points: Sequence[tuple[int, float]]) -> None:
        """Make it.

        Args:
            points: tokens and seconds, measured beforehand: they weigh as much as what is seen last, for ever.
        """
        self._known = [sum(column) for column in zip(*map(_moments, points), strict=True)]
        self._seen = [0.0] * len(self._known)

    def add(self, num_tokens: int, seconds: float) -> None:
        """Learn from a batch; those before it weigh less from now on."""
        new = _moments((num_tokens, seconds))
        self._seen = [(1 - RATE) * old + value for old, value in zip(self._seen, new, strict=True)]

    @property
    def typical_tokens(self) -> float:
        """Tokens of the batch that a token is in, of those that were seen last; of those of the start before that."""
        _, tokens, _, squares, _ = self._seen if self._seen[0] else self._known
        return squares / tokens

    def seconds(self, num_tokens: float) -> float:
        """Of a batch of so many tokens."""
        weight, tokens, seconds, squares, products = map(sum, zip(self._known, self._seen, strict=True))
        spread = weight * squares - tokens * tokens
        slope = max(0.0, (weight * products - tokens * seconds) / spread) if spread > 0 else 0.0
        run_s = (seconds - slope * tokens) / weight
        if run_s < 0:  # long sequences cost more a token
            run_s, slope = 0.0, products / squares
        return float(run_s + slope * num_tokens)


def _moments(point: tuple[int, float]) -> tuple[float, ...]:
    num_tokens, seconds = point
    return 1.0, num_tokens, seconds, num_tokens * num_tokens, num_tokens * seconds


class Forecast:
    """Speeds of models, and how many tokens a request will have."""

    def __init__(self) -> None:
        self._lines: WeakKeyDictionary[Model, Line] = WeakKeyDictionary()
        self._seconds_per_token: WeakKeyDictionary[Model, float] = WeakKeyDictionary()
        """As the lines have it: asked twice a request, and changed once a batch."""
        self._texts: WeakKeyDictionary[Model, tuple[float, float]] = WeakKeyDictionary()
        """Bytes of requests, and tokens that they had beyond the fewest possible; what was seen last weighs most."""

    def seconds_per_token(self, model: Model) -> float:
        """Seconds of a core in full batches, as they are when there is much to do; padding included."""
        seconds = self._seconds_per_token.get(model)
        return self.measured(model) if seconds is None else seconds

    def measured(self, model: Model) -> float:
        """The same, by nothing but what was measured when it was loaded."""
        return _in_full_batches(Line(model.measured), model)

    def tokens(self, model: Model, num_bytes: int, num_inputs: int) -> int:
        """Of a request that is so large; the fewest that its inputs may have before one was seen."""
        seen_bytes, seen_tokens = self._texts.get(model, (1.0, 0.0))
        return MIN_TOKENS * num_inputs + int(num_bytes * seen_tokens / seen_bytes)

    def forget(self, model: Model) -> None:
        """Go by what was measured when it was loaded, as if it had done nothing since."""
        self._lines.pop(model, None)
        self._seconds_per_token.pop(model, None)

    def batch_done(self, model: Model, num_tokens: int, core_s: float) -> None:
        """Learn from a batch."""
        if model not in self._lines:
            self._lines[model] = Line(model.measured)
        line = self._lines[model]
        line.add(num_tokens, min(core_s, MAX_TIMES * line.seconds(num_tokens)))
        self._seconds_per_token[model] = _in_full_batches(line, model)

    def encoded(self, model: Model, num_bytes: int, num_inputs: int, num_tokens: int) -> None:
        """Learn from a request, the more the larger it is: that "a" is 3 bytes and 3 tokens tells nothing of prose."""
        seen_bytes, seen_tokens = self._texts.get(model, (0.0, 0.0))
        more_tokens = num_tokens - MIN_TOKENS * num_inputs
        self._texts[model] = (1 - RATE) * seen_bytes + num_bytes, (1 - RATE) * seen_tokens + more_tokens


def _in_full_batches(line: Line, model: Model) -> float:
    """A sequence that is longer than the cap is a batch all the same: with a cap of 1 each is."""
    num_tokens = max(model.max_batch_tokens, line.typical_tokens)
    return line.seconds(num_tokens) / num_tokens
