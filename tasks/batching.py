"""Batches limited by padded tokens, and prediction for many examples with any function that runs the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tasks.base import AnyTask, InvalidExamplesError, Outputs
from tasks.features import Features, collate, split_outputs

RunModel = Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]
"""Function that runs a model: padded arrays by name -> outputs by name."""


def token_batches(lengths: Sequence[int], max_batch_tokens: int) -> Iterator[list[int]]:
    """Group sequences of similar length so that rows x longest row stays within `max_batch_tokens`.

    Yields:
        Indices into `lengths`, longest sequences first. A sequence above the limit is a separate batch.
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
    run_model: RunModel,
    *,
    max_batch_tokens: int = 4096,
    progress: Callable[[int], object] | None = None,
) -> list[Outputs]:
    """Run the model on features in length-sorted batches.

    Args:
        progress: called with the number of sequences of each finished batch.

    Returns:
        The outputs of each sequence, in order, without padding.
    """
    outputs: list[Outputs] = [{}] * len(features)
    for batch in token_batches([len(item) for item in features], max_batch_tokens):
        chosen = [features[index] for index in batch]
        results = run_model(collate(chosen, pad_id=task.tokenizer.pad_id))
        split = split_outputs(results, [len(item) for item in chosen], token_outputs=task.token_outputs)
        for index, output in zip(batch, split, strict=True):
            outputs[index] = output
        if progress:
            progress(len(batch))
    return outputs


def predict(
    task: AnyTask,
    examples: Sequence[Any],
    run_model: RunModel,
    *,
    max_batch_tokens: int = 4096,
    chunk_size: int = 1024,
    progress: Callable[[int], object] | None = None,
) -> list[Any]:
    """Encode examples, run the model on them, and decode its outputs.

    Args:
        chunk_size: examples whose features and outputs are in memory at a time.
        progress: called with the number of examples of each finished chunk.

    Returns:
        One prediction per example, in order.

    Raises:
        InvalidExamplesError: naming the invalid examples of the first chunk that has any.
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
        outputs = iter(run_features(task, flat, run_model, max_batch_tokens=max_batch_tokens))
        for example, windows in zip(chunk, encoded, strict=True):
            predictions.append(task.decode(example, windows, [next(outputs) for _ in windows]))
        if progress:
            progress(len(chunk))
    return predictions
