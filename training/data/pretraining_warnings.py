"""Remarks on the pairs of pretraining: whether next sentences can be learnt, and how much of the text is shown."""

from __future__ import annotations

import sys

from training.data.pretraining import PretrainingExamples
from training.text.pairs import MIN_CAN_BE_NEXT, MIN_SHOWN, PairStatistics

LENGTH_FLAGS = ("--max-seq-length", "--long-seq-length")
"""They set the lengths of the phases of a run."""


def remark_on_pairs(examples: PretrainingExamples, flag: str) -> None:
    """Print what the pairs of an epoch are and show.

    Args:
        flag: sets their length.

    Raises:
        ValueError: when no pair can be next, so that all targets are the same.
    """
    summary = examples.summary()
    if examples.next_sentences:
        _check_next(examples, summary)
        print(
            f"an epoch at {examples.max_seq_length} tokens: {summary.can_be_next:.1%} of the pairs can be next "
            f"({summary.are_next:.1%} are), {summary.shown:.1%} of the text is shown",
            flush=True,
        )
    if summary.shown < MIN_SHOWN:
        print(
            f"note: an epoch at {examples.max_seq_length} tokens shows {summary.shown:.1%} of the text, as long "
            f"sentences are cut; put a sentence a line, or raise {flag}",
            flush=True,
        )


def _check_next(examples: PretrainingExamples, summary: PairStatistics) -> None:
    if summary.can_be_next >= MIN_CAN_BE_NEXT:
        return
    found = f"of the pairs of `{examples.corpus.directory}` at {examples.max_seq_length} tokens can be next"
    remedy = (
        "prepare it with more sentences a document (training.corpus says how), or pretrain with --no-next-sentences"
    )
    if summary.can_be_next:
        guessed = max(summary.are_next, 1 - summary.are_next)
        _warn(f'{summary.can_be_next:.1%} {found}: always answering "random" is right in {guessed:.1%}; {remedy}')
        return
    raise ValueError(
        f"none {found} ({examples.corpus.num_single():,} of {examples.corpus.num_documents:,} documents have a single "
        f"sentence), so that every next sentence is random and there is nothing to learn; {remedy}"
    )


def remark_on_dev_pairs(examples: PretrainingExamples, num_examples: int) -> None:
    """Warn where the first examples, on which a run is evaluated, tell nothing of next sentences, or little."""
    if not examples.next_sentences:
        return
    fraction = float(examples.nsp_labels(0)[:num_examples].mean())
    name = f"dev corpus `{examples.corpus.directory}`"
    if fraction in (0, 1):
        kind = "random" if fraction else "next"
        _warn(f"all pairs of {name} are {kind}: nsp_accuracy is left out; give it documents of several sentences")
    elif examples.summary().can_be_next < MIN_CAN_BE_NEXT:
        _warn(f'{fraction:.1%} of the pairs of {name} are random: compare nsp_accuracy with always answering "random"')


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr, flush=True)
