"""Remarks on texts as a network reads them: how much it does not know, and how much it does not see."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from tasks import AnyTask
from tasks.features import Features

MOST_UNKNOWN = 0.05
"""Fraction of [UNK] among the tokens above which a vocabulary does not suit a text."""


def remark(
    what: str, checkpoint: str | Path, task: AnyTask, examples: Iterable[Sequence[Features]], limit: str = ""
) -> None:
    """Print what of some texts is lost before the network reads them: a warning where more than MOST_UNKNOWN of their
    tokens are [UNK], a note where some were cut.

    Args:
        what: what they are: `training examples`.
        checkpoint: whose vocabulary it is.
        task: how the texts were read.
        examples: the features of each.
        limit: what they had to fit; by default, the task's settings.
    """
    num_examples = num_cut = num_tokens = num_unknown = 0
    for features in examples:
        num_examples += 1
        num_cut += any(item.num_truncated for item in features)
        num_tokens += sum(len(item) for item in features)
        num_unknown += sum(int((item.input_ids == task.tokenizer.unk_id).sum()) for item in features)
    if num_unknown > MOST_UNKNOWN * num_tokens:
        print(
            f"warning: {num_unknown / num_tokens:.0%} of the tokens of the {what} are [UNK]: the vocabulary of "
            f"`{checkpoint}` lacks their words or their script; take a checkpoint that knows them",
            file=sys.stderr,
        )
    if num_cut:
        length = "max_query_length" if task.name == "spans" else "max_seq_length"
        limit = limit or f"{length} {getattr(task.settings, length)}"
        print(f"note: {num_cut:,} of {num_examples:,} {what} were cut to fit {limit}", flush=True)
