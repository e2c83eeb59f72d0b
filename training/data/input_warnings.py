"""Remarks on texts as a network reads them: how much it does not know, and how much it does not see."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tasks import AnyTask
from tasks.features import Features

MOST_UNKNOWN = 0.05
"""Fraction of [UNK] among the tokens above which a vocabulary does not suit a text."""


def remark(
    what: str, checkpoint: str | Path, task: AnyTask, examples: Iterable[Sequence[Features]], limit: str = ""
) -> dict[str, Any]:
    """Print what of some texts is lost before the network reads them: a warning where more than MOST_UNKNOWN of their
    tokens are [UNK], a note where some were cut.

    Args:
        what: what they are: `training examples`.
        checkpoint: whose vocabulary it is.
        task: how the texts were read.
        examples: the features of each.
        limit: what they had to fit; by default, the task's settings.

    Returns:
        What is recorded of the cuts: `num_cut` of `num_examples`, and the `limit`.
    """
    num_examples = num_cut = num_tokens = num_unknown = 0
    for features in examples:
        num_examples += 1
        num_cut += is_cut(features)
        num_tokens += sum(len(item) for item in features)
        num_unknown += sum(int((item.input_ids == task.tokenizer.unk_id).sum()) for item in features)
    if num_unknown > MOST_UNKNOWN * num_tokens:
        print(
            f"warning: {num_unknown / num_tokens:.0%} of the tokens of the {what} are [UNK]: the vocabulary of "
            f"`{checkpoint}` lacks their words or their script; take a checkpoint that knows them",
            file=sys.stderr,
        )
    limit = limit or limit_of(task)
    if num_cut:
        print(f"note: {num_cut:,} of {num_examples:,} {what} were cut to fit {limit}", flush=True)
    return {"num_cut": num_cut, "num_examples": num_examples, "limit": limit}


def limit_of(task: AnyTask) -> str:
    """The setting that cuts texts, and its value: of spans it is questions, as contexts are read in windows."""
    name = "max_query_length" if task.name == "spans" else "max_seq_length"
    return f"{name} {getattr(task.settings, name)}"


def is_cut(features: Sequence[Features]) -> bool:
    """Whether an example lost tokens that did not fit."""
    return any(item.num_truncated for item in features)
