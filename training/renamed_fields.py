"""Old names of recipe fields and scores, so that files of earlier versions go on loading."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

RENAMED_FIELDS = {
    "long_share": "long_fraction",
    "mask_share": "mask_fraction",
    "random_share": "random_fraction",
    "detector_weight": "discriminator_weight",
}
"""Old -> new names of recipe fields. The flags have these names, with hyphens."""
RENAMED_SCORES = {
    "no context": "unigram baseline",
    "detector": "discriminator",
    "detector_loss": "discriminator_loss",
    "detector_accuracy": "discriminator_accuracy",
    "eval_detector_loss": "eval_discriminator_loss",
    "eval_detector_accuracy": "eval_discriminator_accuracy",
}
"""Old -> new names of losses and scores, in task.json and metrics.jsonl."""


def with_new_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object with the new name of each field, at any depth."""
    names = RENAMED_FIELDS | RENAMED_SCORES
    return {
        names.get(name, name): with_new_names(value) if isinstance(value, Mapping) else value
        for name, value in values.items()
    }
