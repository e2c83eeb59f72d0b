"""Batches capped by padded tokens, and prediction over many examples with whatever runs the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tasks.base import AnyTask, InvalidExamplesError, Outputs
from tasks.features import Features, collate, split_outputs

Run = Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]
"""Runs a model: padded arrays by name -> outputs by name."""


def token_batches(lengths: Sequence[int], max_batch_tokens: int) -> Iterator[list[int]]:
    """Group sequences of like length so that rows x longest row stays within `max_batch_tokens`.

    Yields:
        Indices into `lengths`, longest sequences first. A sequence longer than the cap makes a batch of its own.
    """
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batch and lengths[batch[0]] * (len(batch) + 1) > max_batch_tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def run_features(
    task: AnyTask,
    features: Sequence[Features],
    run: Run,
    *,
    max_batch_tokens: int = 4096,
    progress: Callable[[int], object] | None = None,
) -> list[Outputs]:
    """Run the model over features in length-sorted batches.

    Args:
        progress: called with the number of sequences of each finished batch.

    Returns:
        The outputs for each sequence, in order, without padding.
    """
    outputs: list[Outputs] = [{}] * len(features)
    for batch in token_batches([len(item) for item in features], max_batch_tokens):
        chosen = [features[index] for index in batch]
        results = run(collate(chosen, pad_id=task.tokenizer.pad_id))
        split = split_outputs(results, [len(item) for item in chosen], token_outputs=task.token_outputs)
        for index, output in zip(batch, split, strict=True):
            outputs[index] = output
        if progress:
            progress(len(batch))
    return outputs


def predict(
    task: AnyTask,
    examples: Sequence[Any],
    run: Run,
    *,
    max_batch_tokens: int = 4096,
    chunk_size: int = 1024,
    progress: Callable[[int], object] | None = None,
) -> list[Any]:
    """Encode examples, run the model, decode.

    Args:
        chunk_size: examples held as features and outputs at one time.
        progress: called with the number of examples of each finished chunk.

    Returns:
        One prediction an example, in order.

    Raises:
        InvalidExamplesError: naming the unusable examples of the first chunk that has any.
    """
    predictions = []
    for first in range(0, len(examples), chunk_size):
        chunk = examples[first : first + chunk_size]
        try:
            encoded = task.encode(chunk)
        except InvalidExamplesError as error:
            moved = [replace(item, index=first + item.index) for item in error.invalid]
            raise InvalidExamplesError(moved) from None
        flat = [features for windows in encoded for features in windows]
        outputs = iter(run_features(task, flat, run, max_batch_tokens=max_batch_tokens))
        for example, windows in zip(chunk, encoded, strict=True):
            predictions.append(task.decode(example, windows, [next(outputs) for _ in windows]))
        if progress:
            progress(len(chunk))
    return predictions
