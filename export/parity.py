"""Compare an fp32 graph with the network in PyTorch, on batches of many shapes, with and without padding."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tasks import AnyTask
from tasks.base import first_line
from tasks.batching import RunModel
from tasks.bundle.known_outputs import NUM_TOKENS, KnownOutputs, known_input, sample
from tasks.features import Features, collate

_BATCH_SIZES = (1, 2, 7)
_LARGE = 10.0
"""Outputs above this may differ in proportion to their size, as rounding errors of sums do: logits of 30 by three times
`atol`."""
_MAX_VALUES = 2**25
"""Largest output, in values; masked-lm has one for each token and word of the vocabulary."""
_MAX_PAIRS = 2**24
"""Largest number of pairs of tokens in a batch of several sequences; a head's attention has a score for each."""


_MARGIN = 2.0
"""Factor by which a served graph may differ more from PyTorch than on the machine of the export: others round in other
places, and one step of int8 leads to others."""


class ParityError(ValueError):
    """Raised when the outputs of the fp32 graph differ from PyTorch's."""


def check_parity(
    task: AnyTask,
    reference: RunModel,
    run: RunModel,
    *,
    atol: float,
    max_batch_tokens: int | None = None,
    progress: Callable[[int], object] = lambda count: None,
) -> dict[str, float]:
    """Compare every output on random ids, at unpadded positions.

    Args:
        reference: runs the network in PyTorch.
        run: runs the graph.
        atol: maximum absolute difference of outputs up to 10; proportional above.
        max_batch_tokens: skip batches with more tokens.
        progress: called with 1 after each of the `len(batch_shapes(task))` batches.

    Returns:
        The largest difference of each output.

    Raises:
        ParityError: naming the output, the shape of the batch and the difference.
    """
    differences = dict.fromkeys(task.output_names, 0.0)
    for arrays in random_batches(task, max_batch_tokens=max_batch_tokens):
        mask = arrays["attention_mask"].astype(bool)
        rows, length = mask.shape
        expected = reference(arrays)
        try:
            actual = run(arrays)
        except Exception as error:  # ONNX Runtime's exceptions have no common base class
            reason = first_line(error)
            raise ParityError(f"graph rejected: it fails in a batch of {rows} x {length} tokens: {reason}") from error
        for name in task.output_names:
            difference = _difference(name, expected[name], actual.get(name), mask if task.token_outputs else ...)
            if not difference <= atol * max(1.0, np.abs(expected[name]).max() / _LARGE):
                raise ParityError(
                    f"graph rejected: `{name}` differs from PyTorch by `{difference:.2e}` (--atol `{atol:.0e}`) "
                    f"in a batch of {rows} x {length} tokens"
                )
            differences[name] = max(differences[name], difference)
        progress(1)
    return differences


def require_finite(reference: RunModel, names: Sequence[str]) -> RunModel:
    """Wrap PyTorch's network so that it raises ValueError when an output is NaN or infinite."""

    def checked(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        outputs = reference(arrays)
        if broken := next((name for name in names if not np.isfinite(outputs[name]).all()), None):
            raise ValueError(f"the network's output `{broken}` is not finite, even in PyTorch; train it again")
        return outputs

    return checked


def known_outputs(task: AnyTask, reference: RunModel, runs: Sequence[RunModel], *, atol: float) -> KnownOutputs:
    """Return PyTorch's outputs for the known input, and how far from them the graphs may be.

    Args:
        reference: runs the network in PyTorch.
        runs: run the written graphs, which have passed the checks of the export.
        atol: as for `check_parity`.
    """
    features = known_input(task.tokenizer, min(NUM_TOKENS, task.settings.max_seq_length))
    arrays = collate([features], pad_id=task.tokenizer.pad_id)
    expected, graphs = reference(arrays), [run(arrays) for run in runs]
    values, limits = {}, {}
    for name in task.output_names:
        values[name] = tuple(float(f"{value:.8g}") for value in sample(expected[name])[0])
        differences = [float(np.abs(sample(outputs[name])[0] - values[name]).max()) for outputs in graphs]
        limits[name] = max(atol * max(1.0, np.abs(values[name]).max() / _LARGE), _MARGIN * max(differences))
    return KnownOutputs(values=values, atol=limits)


def random_batches(task: AnyTask, *, max_batch_tokens: int | None = None) -> Iterator[dict[str, np.ndarray]]:
    """Yield batches of random ids, of many shapes."""
    rng = np.random.default_rng(0)
    for lengths in batch_shapes(task):
        if max_batch_tokens and len(lengths) * lengths[0] > max_batch_tokens:
            continue
        rows = []
        for length in lengths:
            second = np.arange(length) >= rng.integers(1, length, endpoint=True)
            ids = rng.integers(0, task.tokenizer.vocab_size, length)
            rows.append(Features(input_ids=ids, token_type_ids=second.astype(np.int64)))
        yield collate(rows, pad_id=task.tokenizer.pad_id)


def batch_shapes(task: AnyTask) -> list[tuple[int, ...]]:
    """Return the sequence lengths of each batch to compare, in tokens."""
    rng = np.random.default_rng(0)
    longest = task.settings.max_seq_length
    width = math.prod(task.output_shape(hidden_size=1, vocab_size=task.tokenizer.vocab_size))
    shapes: list[tuple[int, ...]] = []
    for length in sorted({1, 2, 3, longest // 8, longest // 4, longest // 2, longest - 1, longest} - {0}):
        for size in _BATCH_SIZES:
            if size == 1 or (size * length * width <= _MAX_VALUES and size * length**2 <= _MAX_PAIRS):
                shorter = rng.integers(1, max(length, 2), size - 1).tolist()
                shapes += dict.fromkeys([(length,) * size, (length, *shorter)])
    return shapes


def _difference(name: str, expected: np.ndarray, actual: np.ndarray | None, where: Any) -> float:
    if actual is None or actual.shape != expected.shape:
        shape = None if actual is None else list(actual.shape)
        raise ParityError(f"graph rejected: `{name}` has shape `{shape}`; PyTorch gives `{list(expected.shape)}`")
    return float(np.abs(actual[where] - expected[where]).max())
