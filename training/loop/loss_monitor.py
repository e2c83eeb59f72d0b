"""What to look out for in the loss: no number, a rise that stays, and a masked LM that only counts tokens."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from training.loop.types import Progress


class DivergedError(ValueError):
    """Loss or gradient is no number."""


@dataclass(frozen=True)
class Plateau:
    """A loss at which training is known to stay for long."""

    loss: str
    """Name of the loss."""
    value: float
    meaning: str
    hint: str


class LossMonitor:
    """Looks at each step on the device, so that it need not be waited for, and reports where the loop logs."""

    RISE = 0.5
    """Nats by which the smoothed loss must rise above its lowest (or by a fifth of that, if more)."""
    PATIENCE = 0.5
    """Share of the run after which a plateau is worth a remark."""
    MEMORY = 0.9
    """Weight of a loss in its mean over that of the one after it."""

    def __init__(self, plateau: Plateau | None = None) -> None:
        self._plateau = plateau
        self._places: deque[Progress] = deque()
        self._smoothed: dict[str, float] = {}
        self._num_smoothed = 0.0
        self._lowest = float("inf")
        self._said: set[str] = set()

    def start(self, num_steps: int, device: torch.device) -> None:
        """Begin, or go on."""
        self._num_steps = num_steps
        self._bad = torch.full((3,), torch.nan, dtype=torch.float64, device=device)  # step, loss, gradient norm

    def state_dict(self) -> dict[str, Any]:
        """What to go on from: smoothed losses and of how many, and what was said."""
        smoothed = {"smoothed": dict(self._smoothed), "num_smoothed": self._num_smoothed}
        return smoothed | {"lowest": self._lowest, "said": sorted(self._said)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`; what one from before lacks begins anew, but smoothed losses are then of many."""
        self._smoothed = dict(state.get("smoothed", {}))
        self._num_smoothed = float(state.get("num_smoothed", "inf" if self._smoothed else 0))
        self._lowest = float(state.get("lowest", "inf"))
        self._said = set(state.get("said", ()))

    def observe(self, position: Progress, losses: Mapping[str, Tensor], norm: Tensor) -> Tensor:
        """Look at a step.

        Returns:
            1 if loss or gradient is no number (the optimizer then leaves weights and moments alone), else 0; float32.
        """
        loss = torch.stack(list(losses.values())).sum()
        finite = torch.isfinite(loss) & torch.isfinite(norm)
        found = torch.stack([torch.full_like(loss, position.step + 1), loss, norm.to(loss)])
        self._bad = torch.where(finite | self._bad[0].isfinite(), self._bad, found)
        self._places.append(Progress(step=position.step + 1, epoch=position.epoch, index=position.index))
        return (~finite).float()

    def check_finite(self) -> None:
        """Judge what was observed since the last time; to be called before anything is made of the weights.

        Raises:
            DivergedError: naming the first step whose loss or gradient is no number, and its batch.
        """
        bad_step, loss, norm = self._bad.tolist()
        for place in self._places:
            if place.step == bad_step:
                raise DivergedError(
                    f"the loss is {loss:.4g} and the gradient's norm {norm:.4g} at step {place.step} (epoch "
                    f"{place.epoch}, batch {place.index}); the weights are as before it: lower --learning-rate or "
                    "raise --warmup-ratio"
                )
        self._places.clear()

    def warning(self, step: float, losses: Mapping[str, float]) -> str:
        """A remark on the losses of a step, empty if there is none; each kind is made once.

        Args:
            step: of the schedule, which goes by time where time is limited.
        """
        self._num_smoothed += 1
        share = (1 - self.MEMORY) / (1 - self.MEMORY**self._num_smoothed)  # as the weights of all add up to 1
        for name, value in {**losses, "": sum(losses.values())}.items():
            before = self._smoothed.get(name, value)
            self._smoothed[name] = before + share * (value - before)
        self._lowest = min(self._lowest, self._smoothed[""])
        return self._once("rise", self._rise()) or self._once("plateau", self._stuck(step))

    def _rise(self) -> str:
        now = self._smoothed[""]
        if now <= self._lowest + max(self.RISE, self._lowest / 5):
            return ""
        return f"the loss has risen from {self._lowest:.3f} to {now:.3f}; lower --learning-rate if it stays there"

    def _stuck(self, step: float) -> str:
        plateau = self._plateau
        if plateau is None or step < self.PATIENCE * self._num_steps:
            return ""
        now = self._smoothed[plateau.loss]
        if now < plateau.value - 0.05:
            return ""
        no_better = f"no better than {plateau.meaning} ({plateau.value:.3f})"
        return f"the loss `{plateau.loss}` is {now:.3f}, {no_better}: {plateau.hint}"

    def _once(self, kind: str, warning: str) -> str:
        if not warning or kind in self._said:
            return ""
        self._said.add(kind)
        print(f"warning: {warning}", file=sys.stderr, flush=True)
        return warning
