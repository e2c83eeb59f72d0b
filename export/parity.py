"""The quality gate: does a graph compute what the network computes in PyTorch?

An fp32 graph must agree to `atol`, whatever the batch, length and padding. Every graph must also give each sequence
nearly the same vector: the cosine tells what quantisation cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks import Task
from tasks.base import Outputs
from tasks.batching import Run, run_features
from tasks.embedding import Embedding, EmbeddingSettings
from tasks.features import Features, collate

AnyTask = Task[Any, Any, Any, Any]

_NUM_ROWS = (1, 2, 7)
_NUM_SEQUENCES = 32
_MAX_RANDOM_LENGTH = 64
_CHUNK = 16


class ParityError(ValueError):
    """The graph is not faithful to the network."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a graph must keep to."""

    atol: float = 1e-4
    """Largest difference of an fp32 output from PyTorch."""
    min_cosine: float = 0.95
    """Lowest mean cosine to PyTorch over the sequences compared. Dynamic int8 keeps about 0.99."""


def check_parity(task: AnyTask, reference: Run, run: Run, *, atol: float) -> dict[str, float]:
    """Compare every output on random ids, at unpadded positions.

    Returns:
        The largest difference of each output.

    Raises:
        ParityError: naming the output, the shape and the difference.
    """
    differences = dict.fromkeys(task.output_names, 0.0)
    for arrays in _random_batches(task):
        expected, actual = reference(arrays), run(arrays)
        mask = arrays["attention_mask"].astype(bool)
        for name in task.output_names:
            difference = _difference(name, expected[name], actual.get(name), mask if task.token_outputs else ...)
            if not difference <= atol:
                rows, length = mask.shape
                raise ParityError(
                    f"graph refused: `{name}` differs from PyTorch by `{difference:.2e}` (--atol `{atol:.0e}`) "
                    f"in a batch of {rows} x {length} tokens"
                )
            differences[name] = max(differences[name], difference)
    return differences


def check_cosine(
    task: AnyTask, reference: Run, run: Run, *, min_cosine: float, texts: Sequence[str] = ()
) -> dict[str, Any]:
    """Compare what each sequence gets: its embedding, or its logits as one vector.

    Args:
        min_cosine: lowest mean over the sequences that is accepted.
        texts: texts to compare on; none for random ids.

    Returns:
        `mean_cosine`, `min_cosine`, `num_sequences` and `compared_on` ("texts" or "random ids").

    Raises:
        ParityError: when the mean is too low.
    """
    features = sorted(_text_features(task, texts) if texts else _random_features(task), key=len)
    cosines: list[float] = []
    for first in range(0, len(features), _CHUNK):  # the outputs of masked-lm are too large to hold for all
        chunk = features[first : first + _CHUNK]
        expected, actual = run_features(task, chunk, reference), run_features(task, chunk, run)
        for item, *outputs in zip(chunk, expected, actual, strict=True):
            cosines.append(_cosine(*(_vector(task, item, output) for output in outputs)))
    mean = float(np.mean(cosines))
    if not mean >= min_cosine:
        raise ParityError(
            f"graph refused: mean cosine to PyTorch `{mean:.4f}` over {len(cosines)} sequences "
            f"(--min-cosine `{min_cosine}`)"
        )
    return {
        "mean_cosine": mean,
        "min_cosine": min(cosines),
        "num_sequences": len(cosines),
        "compared_on": "texts" if texts else "random ids",
    }


def _random_batches(task: AnyTask) -> Iterator[dict[str, np.ndarray]]:
    """Batches of several shapes, without padding and with; few rows at max_seq_length, as they take long."""
    rng = np.random.default_rng(0)
    max_length = task.settings.max_seq_length
    for length in (1, 2, min(max_length // 2, _MAX_RANDOM_LENGTH), max_length):
        for num_rows in _NUM_ROWS if length < max_length else _NUM_ROWS[:2]:
            full, padded = [length] * num_rows, [length, *rng.integers(1, max(length, 2), num_rows - 1)]
            for lengths in [full, padded] if padded != full else [full]:
                rows = [_random_row(task, int(item), rng) for item in lengths]
                yield collate(rows, pad_id=task.tokenizer.pad_id)


def _random_row(task: AnyTask, length: int, rng: np.random.Generator) -> Features:
    second = np.arange(length) >= rng.integers(1, length, endpoint=True)
    ids = rng.integers(0, task.tokenizer.vocab_size, length)
    return Features(input_ids=ids, token_type_ids=second.astype(np.int64))


def _random_features(task: AnyTask) -> list[Features]:
    rng = np.random.default_rng(0)
    max_tokens = min(task.settings.max_seq_length, _MAX_RANDOM_LENGTH) - 2
    lengths = rng.integers(1, max_tokens, _NUM_SEQUENCES, endpoint=True)
    ids = [rng.integers(0, task.tokenizer.vocab_size, length) for length in lengths]
    return [Features(**task.tokenizer.assemble(item)) for item in ids]


def _text_features(task: AnyTask, texts: Sequence[str]) -> list[Features]:
    """Each text as one sequence, cut at max_seq_length, whatever the task."""
    whole = Embedding(task.tokenizer, EmbeddingSettings(max_seq_length=task.settings.max_seq_length))
    return [features for windows in whole.encode(texts) for features in windows]


def _difference(name: str, expected: np.ndarray, actual: np.ndarray | None, where: Any) -> float:
    if actual is None or actual.shape != expected.shape:
        shape = None if actual is None else list(actual.shape)
        raise ParityError(f"graph refused: `{name}` has shape `{shape}` where PyTorch gives `{list(expected.shape)}`")
    return float(np.abs(actual[where] - expected[where]).max())


def _vector(task: AnyTask, features: Features, outputs: Outputs) -> np.ndarray:
    if isinstance(task, Embedding):
        return task.decode("", [features], [outputs])
    return np.concatenate([outputs[name].ravel() for name in task.output_names])


def _cosine(first: np.ndarray, second: np.ndarray) -> float:
    first, second = first.astype(np.float64), second.astype(np.float64)
    return float(first @ second / max(np.linalg.norm(first) * np.linalg.norm(second), 1e-12))
