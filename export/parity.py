"""Does an fp32 graph compute what the network computes in PyTorch, whatever the batch, length and padding?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tasks import AnyTask
from tasks.batching import RunModel
from tasks.features import Features, collate

_NUM_ROWS = (1, 2, 7)
_LARGE = 10.0
"""Values beyond it may differ by more, as sums of floats are exact to a share of their size: logits of 30 by 3 times
`atol`."""
_MAX_VALUES = 2**25
"""Of one output: masked-lm has the vocabulary's size for each token."""


class ParityError(ValueError):
    """The graph is not faithful to the network."""


def check_parity(
    task: AnyTask,
    reference: RunModel,
    run: RunModel,
    *,
    atol: float,
    progress: Callable[[int], object] = lambda count: None,
) -> dict[str, float]:
    """Compare every output on random ids, at unpadded positions.

    Args:
        progress: called with 1 after each of the `len(shapes(task))` batches.

    Returns:
        The largest difference of each output.

    Raises:
        ParityError: naming the output, the shape and the difference.
    """
    differences = dict.fromkeys(task.output_names, 0.0)
    for arrays in random_batches(task):
        expected, actual = reference(arrays), run(arrays)
        mask = arrays["attention_mask"].astype(bool)
        for name in task.output_names:
            difference = _difference(name, expected[name], actual.get(name), mask if task.token_outputs else ...)
            if not difference <= atol * max(1.0, np.abs(expected[name]).max() / _LARGE):
                rows, length = mask.shape
                raise ParityError(
                    f"graph refused: `{name}` differs from PyTorch by `{difference:.2e}` (--atol `{atol:.0e}`) "
                    f"in a batch of {rows} x {length} tokens"
                )
            differences[name] = max(differences[name], difference)
        progress(1)
    return differences


def of_numbers(reference: RunModel, names: Sequence[str]) -> RunModel:
    """PyTorch's network, refused in one line (a ValueError) when one of the outputs is no number."""

    def checked(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        outputs = reference(arrays)
        if broken := next((name for name in names if not np.isfinite(outputs[name]).all()), None):
            raise ValueError(f"the network's `{broken}` are no numbers, in PyTorch already; train it again")
        return outputs

    return checked


def random_batches(task: AnyTask, *, max_batch_tokens: int | None = None) -> Iterator[dict[str, np.ndarray]]:
    """Batches of all kinds of shapes, without padding and with.

    Args:
        max_batch_tokens: leave out those with more.
    """
    rng = np.random.default_rng(0)
    for lengths in shapes(task):
        if max_batch_tokens and len(lengths) * lengths[0] > max_batch_tokens:
            continue
        rows = [_random_row(task, length, rng) for length in lengths]
        yield collate(rows, pad_id=task.tokenizer.pad_id)


def shapes(task: AnyTask) -> list[tuple[int, ...]]:
    """The lengths of the sequences of each batch that is compared."""
    rng = np.random.default_rng(0)
    longest = task.settings.max_seq_length
    width = task.tokenizer.vocab_size if task.name == "masked-lm" else 1
    found: list[tuple[int, ...]] = []
    for length in sorted({1, 2, 3, longest // 8, longest // 4, longest // 2, longest - 1, longest} - {0}):
        for num_rows in _NUM_ROWS:
            if num_rows == 1 or num_rows * length * width <= _MAX_VALUES:
                shorter = rng.integers(1, max(length, 2), num_rows - 1).tolist()
                found += dict.fromkeys([(length,) * num_rows, (length, *shorter)])
    return found


def _random_row(task: AnyTask, length: int, rng: np.random.Generator) -> Features:
    second = np.arange(length) >= rng.integers(1, length, endpoint=True)
    ids = rng.integers(0, task.tokenizer.vocab_size, length)
    return Features(input_ids=ids, token_type_ids=second.astype(np.int64))


def _difference(name: str, expected: np.ndarray, actual: np.ndarray | None, where: Any) -> float:
    if actual is None or actual.shape != expected.shape:
        shape = None if actual is None else list(actual.shape)
        raise ParityError(f"graph refused: `{name}` has shape `{shape}` where PyTorch gives `{list(expected.shape)}`")
    return float(np.abs(actual[where] - expected[where]).max())
