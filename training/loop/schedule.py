"""Learning-rate schedule: linear warm-up, then linear decay, by steps or by time."""

from __future__ import annotations

from collections.abc import Sequence

from training.loop.types import LoopSettings, Progress


class LearningRateSchedule:
    """Schedule of a run. With a time budget, progress is the larger one of the fractions of steps and of time.

    Args:
        num_steps: optimizer steps, at most.
        settings: learning rate, warm-up and time budget.
        ends: fractions of the run at which the phases end; the last is 1.
    """

    def __init__(self, num_steps: int, settings: LoopSettings, ends: Sequence[float] = (1.0,)) -> None:
        self.num_steps = num_steps
        self._budget_s = 60 * settings.max_minutes if settings.max_minutes else None
        self._ends = [round(end * num_steps) for end in ends]
        self._peak_rate = settings.learning_rate
        self._warmup_steps = round(settings.warmup_ratio * num_steps)
        self.bar_unit, self.bar_total = ("%", 100) if self._budget_s else ("step", num_steps)
        """Unit and end of the progress bar."""

    def step(self, progress: Progress) -> float:
        """Return the step at which a run without a time budget would be equally far."""
        by_time = progress.elapsed_s / self._budget_s * self.num_steps if self._budget_s else 0.0
        return max(progress.step, by_time)

    def is_over(self, progress: Progress) -> bool:
        """Return whether steps or time are used up."""
        return self.step(progress) >= self.num_steps

    def learning_rate(self, progress: Progress) -> float:
        """Return the learning rate of the next step: linear to its peak in the warm-up, then linear to 0 at the end."""
        step = self.step(progress)
        if step < self._warmup_steps:
            return self._peak_rate * min(1.0, (step + 1) / self._warmup_steps)
        return self._peak_rate * max(0.0, (self.num_steps - step) / max(1, self.num_steps - self._warmup_steps))

    def phase(self, progress: Progress) -> int:
        """Return the phase of the next step."""
        phase = progress.phase
        while self.step(progress) >= self._ends[phase]:
            phase += 1
        return phase

    def bar_position(self, progress: Progress) -> int:
        """Return the position of the progress bar."""
        return min(self.bar_total, int(self.bar_total * self.step(progress) / self.num_steps))
