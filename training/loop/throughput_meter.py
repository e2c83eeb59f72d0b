"""Throughput meter: tokens/s, FLOP/s, MFU and time spent waiting for data; and the progress bar."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from training.command_line.progress_bar import ProgressBar
from training.loop.distributed import World
from training.loop.schedule import LearningRateSchedule
from training.loop.types import Batch, Progress
from training.model.flops import flops_per_token, peak_flops
from training.model.heads import BertModel
from training.model.replaced_token_detection import BertForReplacedTokenDetection


class ThroughputMeter:
    """Measures throughput between two reports, without evaluations. Padding does not count.

    Args:
        progress: progress of the run at the start of this process.
        dtype: dtype of matrix products.
    """

    def __init__(
        self,
        model: BertModel,
        progress: Progress,
        *,
        label: str,
        schedule: LearningRateSchedule,
        dtype: torch.dtype,
        world: World,
    ) -> None:
        self._model = model
        self._world = world
        self._dtype = dtype
        self._schedule = schedule
        self._done = schedule.bar_position(progress)
        self._bar = ProgressBar(
            label, unit=schedule.bar_unit, total=schedule.bar_total, initial=self._done, enabled=world.is_main
        )
        self._start = time.monotonic() - progress.elapsed_s
        self._peak = 0.0
        self._loss: float | None = None
        self._reset()

    def _reset(self) -> None:
        self._since = time.perf_counter()
        self._num_tokens, self._flops, self._wait_s = 0, 0.0, 0.0

    @property
    def elapsed_s(self) -> float:
        """Seconds of training, those before a resume included."""
        return time.monotonic() - self._start

    def count(self, batches: Sequence[Batch], num_tokens: int, wait_s: float, progress: Progress) -> None:
        """Count a step.

        Args:
            batches: micro-batches of this process.
            num_tokens: tokens of all processes.
            wait_s: seconds spent waiting for the batches.
            progress: after the step.
        """
        self._num_tokens += num_tokens
        self._flops += sum(map(self._flops_of, batches))
        self._wait_s += wait_s
        done = self._schedule.bar_position(progress)
        self._bar.update(done - self._done)
        self._done = done

    def _flops_of(self, batch: Batch) -> float:
        """Return the FLOPs of a micro-batch; for attention, all its sequences count with their mean length."""
        model, tokens = self._model, batch.num_tokens
        return tokens * flops_per_token(
            model.config,
            length=round(tokens / len(batch.inputs["input_ids"])),
            predicted=batch.counts.get("mlm", batch.counts.get("generator", 0)) / tokens,
            frozen=model.bert.frozen,
            generator_layers=len(model.generator.layers) if isinstance(model, BertForReplacedTokenDetection) else 0,
        )

    def report(self, loss: float) -> dict[str, float]:
        """Return the figures since the last report, for the metrics, and show them on the progress bar."""
        passed_s = time.perf_counter() - self._since
        tokens_per_s, flops_per_s = self._num_tokens / passed_s, self._flops / passed_s
        if not self._peak or flops_per_s > self._peak:  # first, or measured when the CPU was busy
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
        """Leave seconds that were not spent on training out of the next report."""
        self._since += seconds

    def close(self) -> None:
        """Close the progress bar."""
        self._bar.close()
