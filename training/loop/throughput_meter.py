"""Progress bar and throughput of training: tokens/s, FLOP/s and MFU of real tokens, share of time waiting for data."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from training.loop.distributed import World
from training.loop.schedule import LearningRateSchedule
from training.loop.types import Progress
from training.model.flops import flops_per_token, peak_flops
from training.model.heads import BertModel
from training.model.replaced_token_detection import BertForReplacedTokenDetection
from training.progress_bar import ProgressBar

if TYPE_CHECKING:
    from training.loop.types import Batch


class ThroughputMeter:
    """Counts steps and, between two reports, what they took; evaluations are left out.

    Args:
        model: the network, for its FLOPs.
        pace: what the progress bar counts.
        dtype: of matrix products.
    """

    def __init__(
        self,
        model: BertModel,
        position: Progress,
        *,
        label: str,
        pace: LearningRateSchedule,
        dtype: torch.dtype,
        world: World,
    ) -> None:
        self._model = model
        self._world = world
        self._dtype = dtype
        self._pace = pace
        self._done = pace.done(position)
        self._bar = ProgressBar(label, unit=pace.unit, total=pace.total, initial=self._done, enabled=world.is_main)
        self._start = time.monotonic() - position.elapsed_s
        self._peak = 0.0
        self._loss: float | None = None
        self._reset()

    def _reset(self) -> None:
        self._since = time.perf_counter()
        self._num_tokens, self._flops, self._wait_s = 0, 0.0, 0.0

    @property
    def elapsed_s(self) -> float:
        """Seconds of training, over all that was resumed."""
        return time.monotonic() - self._start

    def count(self, batches: Sequence[Batch], num_tokens: int, wait_s: float, position: Progress) -> None:
        """Count a step.

        Args:
            batches: this process's own.
            num_tokens: of all processes.
            wait_s: spent waiting for the batches.
            position: after the step.
        """
        self._num_tokens += num_tokens
        self._flops += sum(self._flops_of(batch) for batch in batches)
        self._wait_s += wait_s
        done = self._pace.done(position)
        self._bar.update(done - self._done)
        self._done = done

    def _flops_of(self, batch: Batch) -> float:
        """Attention is counted as if all sequences of a batch were of their mean length."""
        tokens = batch.num_tokens
        length = round(tokens / len(batch.inputs["input_ids"]))
        predicted = batch.counts.get("mlm", batch.counts.get("generator", 0)) / tokens
        return tokens * flops_per_token(
            self._model.config,
            length=length,
            predicted=predicted,
            frozen=self._model.bert.frozen,
            generator_layers=len(self._model.generator.layers)
            if isinstance(self._model, BertForReplacedTokenDetection)
            else 0,
        )

    def report(self, loss: float) -> dict[str, float]:
        """Figures since the last report, for the metrics; the bar shows them, too."""
        passed_s = time.perf_counter() - self._since
        tokens_per_s, flops_per_s = self._num_tokens / passed_s, self._flops / passed_s
        if not self._peak or flops_per_s > self._peak:  # measured at first, or while the CPU did something else, too
            self._peak = max(self._peak, peak_flops(self._world.device, self._dtype))
        self._loss = loss if self._loss is None else 0.8 * self._loss + 0.2 * loss
        mfu, wait = flops_per_s / self._peak, self._wait_s / passed_s
        self._bar.note(f"loss {self._loss:.3f}, {tokens_per_s:,.0f} tokens/s, MFU {mfu:.0%}")
        self._reset()
        return {
            "tokens_per_s": round(tokens_per_s),
            "flops_per_s": round(flops_per_s * self._world.size),
            "mfu": round(mfu, 4),
            "data_wait": round(wait, 4),
            "elapsed_s": round(self.elapsed_s, 2),
        }

    def skip(self, seconds: float) -> None:
        """Leave time that was not spent on training out of the next report."""
        self._since += seconds

    def close(self) -> None:
        """Leave the bar as it stands."""
        self._bar.close()
