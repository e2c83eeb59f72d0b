"""Serve embedding models on a simulated accelerator: what is left is the work of the server itself.

    python -m benchmarks.simulated models --processes 2

Takes the arguments of `python -m serving`, except --canary-s and --max-batch-tokens, which it sets. Only the first
batch of a model is computed. A later one sleeps for the time that a fast GPU needs, and each text gets the same vector.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

from serving import __main__ as command
from serving.core import models
from serving.core.session import Arrays, Session

RUN_S, TOKENS_PER_S = 0.0002, 4_100_000
"""Seconds of a run besides its tokens, and tokens a second: sentences of MiniLM (L6 H384) in fp16 on one H200."""
FLAGS = ("--canary-s=0", "--max-batch-tokens=16384")
"""Flags for such an engine: its numbers are wrong, and its batches large."""


class SimulatedSession(Session):
    """Session that computes only its first batch."""

    _first: Arrays | None = None

    def run(self, arrays: Arrays, run: Any = None) -> Arrays:
        """Return the first vector of the first batch for each row, after the time of a GPU."""
        rows, length = arrays["input_ids"].shape
        if self._first is None:
            self._first = super().run(arrays)
        time.sleep(RUN_S + rows * length / TOKENS_PER_S)
        return {name: np.repeat(values[:1], rows, axis=0) for name, values in self._first.items()}


def serve() -> int:
    """Run the server, and change its modules for that."""
    models.Session = SimulatedSession  # type: ignore[misc]
    models.Model.run_probes = lambda *_: []  # type: ignore[method-assign]
    return command.main([*sys.argv[1:], *FLAGS])


if __name__ == "__main__":
    sys.exit(serve())
