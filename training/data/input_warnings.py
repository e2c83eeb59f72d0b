"""Checks of the tokens that a network reads: unknown words and truncated texts."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tasks import AnyTask
from tasks.features import Features

MAX_UNKNOWN_FRACTION = 0.05
"""Warn if a larger fraction of the tokens is [UNK]."""


def report_inputs(
    name: str, checkpoint: str | Path, task: AnyTask, examples: Iterable[Sequence[Features]], limit: str = ""
) -> dict[str, Any]:
    """Warn if many tokens are [UNK], and print a note if examples were truncated.

    Args:
        name: name of the examples, such as `training examples`.
        checkpoint: checkpoint with the vocabulary.
        task: task that encoded the examples.
        examples: features of each example.
        limit: length that the examples had to fit; by default, from the task's settings.

    Returns:
        The record of truncation: `num_cut` of `num_examples`, and the `limit`.
    """
    num_examples = num_truncated = num_tokens = num_unknown = 0
    for features in examples:
        num_examples += 1
        num_truncated += is_truncated(features)
        num_tokens += sum(len(item) for item in features)
        num_unknown += sum(int((item.input_ids == task.tokenizer.unk_id).sum()) for item in features)
    if num_unknown > MAX_UNKNOWN_FRACTION * num_tokens:
        print(
            f"warning: {num_unknown / num_tokens:.0%} of the tokens of the {name} are [UNK]: the vocabulary of "
            f"`{checkpoint}` lacks their words or their script; use another checkpoint",
            file=sys.stderr,
        )
    limit = limit or length_limit(task)
    if num_truncated:
        print(f"note: {num_truncated:,} of {num_examples:,} {name} were cut to fit {limit}", flush=True)
    return {"num_cut": num_truncated, "num_examples": num_examples, "limit": limit}


def length_limit(task: AnyTask) -> str:
    """Return the setting that truncates texts, with its value."""
    name = task.length_setting if getattr(task.settings, task.length_setting) else "max_seq_length"
    return f"{name} {getattr(task.settings, name)}"


def is_truncated(features: Sequence[Features]) -> bool:
    """Return whether an example lost tokens that did not fit."""
    return any(item.num_truncated for item in features)
