"""Loss monitor: detects NaN or infinite losses, a lasting rise, and a plateau."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from training.loop.types import DataPosition, Progress


class DivergedError(ValueError):
    """Loss or gradient is NaN or infinite."""


@dataclass(frozen=True)
class Plateau:
    """Loss at which training may stay for a long time."""

    loss: str
    """Name of the loss."""
    value: float
    """Value of the loss, in nats."""
    meaning: str
    """Name of a predictor with the same loss."""
    hint: str
    """Advice for the warning."""


class LossMonitor:
    """Checks every step on the device, without waiting for it, and reports when the loop logs."""

    RISE = 0.5
    """Rise of the smoothed loss above its lowest value that is reported, in nats (or a fifth of it, if more)."""
    PATIENCE = 0.5
    """Fraction of the run after which a plateau is reported."""
    DECAY = 0.9
    """Weight of a loss in the moving average, relative to the next one."""

    def __init__(self, plateau: Plateau | None = None) -> None:
        self._plateau = plateau
        self._unchecked: deque[tuple[int, DataPosition]] = deque()  # (step, position) of the batches
        self._smoothed: dict[str, float] = {}
        self._num_smoothed = 0.0
        self._lowest = float("inf")
        self._warned: set[str] = set()

    def start(self, num_steps: int, device: torch.device) -> None:
        """Prepare for the steps of a run, new or resumed."""
        self._num_steps = num_steps
        self._bad = torch.full((3,), torch.nan, dtype=torch.float64, device=device)  # step, loss, gradient norm

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a resume: smoothed losses, their number, and the warnings printed."""
        smoothed = {"smoothed": dict(self._smoothed), "num_smoothed": self._num_smoothed}
        return smoothed | {"lowest": self._lowest, "warned": sorted(self._warned)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a `state_dict`."""
        self._smoothed = dict(state["smoothed"])
        self._num_smoothed = state["num_smoothed"]
        self._lowest = state["lowest"]
        self._warned = set(state["warned"])

    def observe(self, progress: Progress, losses: Mapping[str, Tensor], norm: Tensor) -> Tensor:
        """Check a step on the device.

        Args:
            progress: progress before the step.
            losses: mean losses of the global batch.

        Returns:
            1.0 if loss or gradient is NaN or infinite, so that the optimizer skips the update; else 0.0.
        """
        loss = torch.stack(list(losses.values())).sum()
        finite = torch.isfinite(loss) & torch.isfinite(norm)
        found = torch.stack([torch.full_like(loss, progress.step + 1), loss, norm.to(loss)])
        self._bad = torch.where(finite | self._bad[0].isfinite(), self._bad, found)
        self._unchecked.append((progress.step + 1, progress.data_position))
        return (~finite).float()

    def check_finite(self) -> None:
        """Check the steps since the last call. Call it before the weights are used or saved.

        Raises:
            DivergedError: names the first step whose loss or gradient is NaN or infinite, and its batch.
        """
        bad_step, loss, norm = self._bad.tolist()
        for step, position in self._unchecked:
            if step == bad_step:
                raise DivergedError(
                    f"the loss is {loss:.4g} and the gradient's norm {norm:.4g} at step {step} "
                    f"(epoch {position.epoch}, batch {position.index}); the weights are those before it: lower "
                    "--learning-rate or raise --warmup-ratio"
                )
        self._unchecked.clear()

    def warning(self, step: float, losses: Mapping[str, float], loss: float) -> str:
        """Return a warning about the losses of a step, "" if there is none; each kind of warning comes once.

        Args:
            step: step of the schedule, which runs faster than the optimizer if the time is limited.
            losses: mean losses of the global batch.
            loss: their weighted sum.
        """
        self._num_smoothed += 1
        weight = (1 - self.DECAY) / (1 - self.DECAY**self._num_smoothed)  # so that all weights add up to 1
        for name, value in {**losses, "": loss}.items():
            before = self._smoothed.get(name, value)
            self._smoothed[name] = before + weight * (value - before)
        self._lowest = min(self._lowest, self._smoothed[""])
        now = self._smoothed[""]
        if now > self._lowest + max(self.RISE, self._lowest / 5):
            rise = f"the loss has risen from {self._lowest:.3f} to {now:.3f}"
            if warning := self._warn_once("rise", f"{rise}; lower --learning-rate if it stays there"):
                return warning
        plateau = self._plateau
        if plateau and step >= self.PATIENCE * self._num_steps:
            now = self._smoothed[plateau.loss]
            if now >= plateau.value - 0.05:
                no_better = f"no better than {plateau.meaning} ({plateau.value:.3f})"
                return self._warn_once(
                    "plateau", f"the loss `{plateau.loss}` is {now:.3f}, {no_better}: {plateau.hint}"
                )
        return ""

    def _warn_once(self, kind: str, warning: str) -> str:
        if kind in self._warned:
            return ""
        self._warned.add(kind)
        print(f"warning: {warning}", file=sys.stderr, flush=True)
        return warning
