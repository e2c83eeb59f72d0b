"""Check that outputs of models are finite. Damaged weights, or weights too large for fp16, give NaN and infinities."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from serving.core.errors import UnusableOutputError, Violation
from serving.core.models import Model
from tasks.base import AnyTask, Outputs
from tasks.embedding import Embedding
from tasks.masked_lm import MaskedLM
from tasks.multiple_choice import MultipleChoice
from tasks.ranking import Ranking
from tasks.regression import Regression
from tasks.token_embedding import TokenEmbedding
from tasks.zero_shot import ZeroShot


def check_outputs(model: Model, outputs: Sequence[Outputs], path: str) -> None:
    """Check the outputs of a model for one input, before they are decoded.

    `check_prediction` checks two tasks after decoding instead: masked LM, which uses few of its hundred thousand logits
    per token, and embedding, whose prediction holds all outputs.

    Args:
        model: model that computed the outputs.
        outputs: outputs for each sequence of the input.
        path: path of the input in the request.

    Raises:
        UnusableOutputError: as `check_arrays`.
    """
    if model.task.name in (MaskedLM.name, Embedding.name):
        return
    arrays = [array for output in outputs for array in output.values()]
    if model.task.name == MultipleChoice.name:  # one number for each choice
        arrays = [np.concatenate([array.ravel() for array in arrays])]
    check_arrays(model, arrays, path)


def check_prediction(model: Model, task: AnyTask, prediction: Any, path: str) -> None:
    """Check a decoded prediction.

    Args:
        model: model that computed it.
        task: task of the model, with the options of the request.
        prediction: result of the task's `decode`.
        path: path of the input in the request.

    Raises:
        UnusableOutputError: when a number is NaN or infinite, or a vector of zeros cannot be normalised.
    """
    if task.name == MaskedLM.name:
        check_arrays(model, [prediction.log_probs], path)
    elif task.name == Ranking.name:
        if not _are_finite(prediction):  # logarithms of odds of labels whose logit is minus infinity
            raise _error(model, path, "NaN or infinity")
    elif task.name == ZeroShot.name:
        if not _are_finite(prediction.scores):
            raise _error(model, path, "NaN or infinity")
    elif task.name == Embedding.name:
        if 0 < float(prediction @ prediction) < np.inf:  # then all numbers are finite; one step for the common case
            return
        check_arrays(model, [prediction], path)
        if task.settings.normalize and not prediction.any():
            raise _error(model, path, "a vector of zeros, which cannot be normalised")


def check_arrays(model: Model, arrays: Iterable[np.ndarray], path: str) -> None:
    """Check arrays that a model computed for one input.

    Raises:
        UnusableOutputError: when a number is NaN or infinite. A logit may be negative infinity (a score of 0) if others
            beside it are finite.
    """
    is_valid = _are_finite if model.task.name in (Embedding.name, TokenEmbedding.name, Regression.name) else _are_logits
    for array in arrays:
        if not is_valid(array):
            raise _error(model, path, "NaN or infinity")


def _are_finite(array: np.ndarray) -> bool:
    return bool(np.isfinite(array).all())


def _are_logits(array: np.ndarray) -> bool:
    return not array.size or bool(np.isfinite(array.max(axis=-1)).all())  # the maximum with a NaN is NaN


def _error(model: Model, path: str, what: str) -> UnusableOutputError:
    return UnusableOutputError(
        Violation(path, f"{model} returned {what}: its weights are damaged, or its precision is too low for this input")
    )
