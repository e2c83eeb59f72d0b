"""Where in its schedule a run is: by its steps or, if that is further, by the time that has gone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from training.loop.optimizer import learning_rate
from training.loop.types import Progress

if TYPE_CHECKING:
    from training.loop.types import LoopSettings


class LearningRateSchedule:
    """The schedule of a run.

    Args:
        num_steps: optimizer steps, at most.
        settings: learning rate, warm-up and time budget.
        ends: shares of the run after which each phase is over; the last is 1.
    """

    def __init__(self, num_steps: int, settings: LoopSettings, ends: Sequence[float] = (1.0,)) -> None:
        self.num_steps = num_steps
        self._budget_s = 60 * settings.max_minutes if settings.max_minutes else None
        self._ends = [round(end * num_steps) for end in ends]
        self._peak = settings.learning_rate
        self._warmup_steps = round(settings.warmup_ratio * num_steps)

    def step(self, position: Progress) -> float:
        """The step that a run without a time budget would be at."""
        by_time = position.elapsed_s / self._budget_s * self.num_steps if self._budget_s else 0.0
        return max(position.step, by_time)

    def is_over(self, position: Progress) -> bool:
        """Whether steps or time are used up."""
        return self.step(position) >= self.num_steps

    def learning_rate(self, position: Progress) -> float:
        """Of the step that comes."""
        return learning_rate(
            self.step(position), peak=self._peak, num_steps=self.num_steps, warmup_steps=self._warmup_steps
        )

    def enter_phase(self, position: Progress) -> None:
        """Begin with the data of the phase that it is time for."""
        while self.step(position) >= self._ends[position.phase]:
            position.phase, position.epoch, position.index = position.phase + 1, 0, 0

    @property
    def unit(self) -> str:
        """What the progress bar counts."""
        return "%" if self._budget_s else "step"

    @property
    def total(self) -> int:
        """Where the progress bar ends."""
        return 100 if self._budget_s else self.num_steps

    def done(self, position: Progress) -> int:
        """Where the progress bar is."""
        return min(self.total, int(self.total * self.step(position) / self.num_steps))
