"""Check that outputs of models are finite: weights that are damaged, or too large for fp16, give NaN and infinities."""

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
from tasks.regression import Regression


def check_outputs(model: Model, outputs: Sequence[Outputs], place: str) -> None:
    """Check the outputs of a model for the sequences of one input, before they are decoded.

    Args:
        outputs: not checked for masked language models, which give a hundred thousand numbers a token of which few are
            used, nor for embeddings, where all numbers come back in the prediction.
        place: path of the input in the request.

    Raises:
        UnusableOutputError: as `check_arrays`.
    """
    if model.task.name in (MaskedLM.name, Embedding.name):
        return
    arrays = [array for output in outputs for array in output.values()]
    if model.task.name == MultipleChoice.name:  # one number a choice
        arrays = [np.concatenate([array.ravel() for array in arrays])]
    check_arrays(model, arrays, place)


def check_prediction(model: Model, task: AnyTask, prediction: Any, place: str) -> None:
    """Check a decoded prediction.

    Args:
        task: the model's, with what the request asks for.
        place: path of the input in the request.

    Raises:
        UnusableOutputError: when something is NaN or infinite, or a vector that is to have length 1 has none.
    """
    if task.name == MaskedLM.name:
        check_arrays(model, [prediction.log_probs], place)
    elif task.name == Embedding.name:
        if 0 < float(prediction @ prediction) < np.inf:  # so all of it is finite: the common case, in one step
            return
        check_arrays(model, [prediction], place)
        if task.settings.normalize and not prediction.any():
            raise _error(model, place, "a vector of zeros, which cannot have length 1")


def check_arrays(model: Model, arrays: Iterable[np.ndarray], place: str) -> None:
    """Check outputs of a model.

    Raises:
        UnusableOutputError: when something is NaN or infinite; a logit may be negative infinity, which is a score of 0,
            beside others that are finite.
    """
    is_sound = _are_finite if model.task.name in (Embedding.name, Regression.name) else _are_logits
    for array in arrays:
        if not is_sound(array):
            raise _error(model, place, "numbers that are not finite")


def _are_finite(array: np.ndarray) -> bool:
    return bool(np.isfinite(array).all())


def _are_logits(array: np.ndarray) -> bool:
    return not array.size or bool(np.isfinite(array.max(axis=-1)).all())  # the maximum of what holds NaN is NaN


def _error(model: Model, place: str, what: str) -> UnusableOutputError:
    return UnusableOutputError(
        Violation(place, f"{model} gave {what}: its weights are damaged, or its precision is too low for this input")
    )
