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


def engine_rate(model: Path, examples: Sequence[Any], seconds: float, chunk: int = CHUNK) -> float:
    """Measure the examples per second of a model with as many concurrent batches as a server computes.

    Args:
        model: directory of the model.
        examples: repeated for `seconds`.
        chunk: examples that a thread takes together.
    """
    directory, cores = read_model_directory(model), available_cpus()
    task, execution = directory.load_task(), directory.manifest.execution
    execution = replace(execution, num_threads=min(execution.num_threads, cores))
    session = Session(directory, task.output_names, execution)
    source, lock, count = itertools.cycle(examples), threading.Lock(), 0

    def compute(part: Sequence[Any]) -> None:
        predict(task, part, session.run, max_batch_tokens=execution.max_batch_tokens)

    def work(_: int) -> None:
        nonlocal count
        while time.perf_counter() - started < seconds:
            with lock:
                part = list(itertools.islice(source, chunk))
            compute(part)
            with lock:
                count += len(part)

    compute(examples[:chunk])
    started, num_batches = time.perf_counter(), cores // execution.num_threads
    with ThreadPoolExecutor(num_batches) as threads:
        list(threads.map(work, range(num_batches)))
    return count / (time.perf_counter() - started)
