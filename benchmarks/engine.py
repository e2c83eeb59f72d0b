"""The engine alone: encode, run and decode in this process, without a server."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from serving.core.session import Session
from tasks.batching import predict
from tasks.bundle.machine import available_cpus
from tasks.bundle.model_directory import read_model_directory

CHUNK = 256
"""Texts that a thread takes together."""


class Engine:
    """A model in this process, with as many concurrent batches as a server computes.

    Args:
        path: directory of the model.
    """

    def __init__(self, path: Path) -> None:
        directory, cores = read_model_directory(path), available_cpus()
        self._task, execution = directory.load_task(), directory.manifest.execution
        self._execution = replace(execution, num_threads=min(execution.num_threads, cores))
        self._session = Session(directory, self._task.output_names, self._execution)
        self._num_batches = cores // self._execution.num_threads

    def predict(self, examples: Sequence[Any]) -> list[Any]:
        """Return the prediction for each example."""
        return predict(self._task, examples, self._session.run, max_batch_tokens=self._execution.max_batch_tokens)

    def examples_per_s(self, examples: Sequence[Any], seconds: float, chunk: int = CHUNK) -> float:
        """Measure the throughput for some seconds; `chunk` is the number of examples that a thread takes together."""
        source, lock, count = itertools.cycle(examples), threading.Lock(), [0]
        self.predict(examples[:chunk])
        started = time.perf_counter()

        def work(_: int) -> None:
            while time.perf_counter() - started < seconds:
                with lock:
                    part = list(itertools.islice(source, chunk))
                self.predict(part)
                with lock:
                    count[0] += len(part)

        with ThreadPoolExecutor(self._num_batches) as threads:
            list(threads.map(work, range(self._num_batches)))
        return count[0] / (time.perf_counter() - started)
