"""Checks of a corpus before pretraining: next-sentence pairs, text that examples show, whole-word masking."""

from __future__ import annotations

import re
import sys

import numpy as np

from tasks.text.languages import HAN
from training.data.pretraining import PretrainingExamples
from training.text.corpus import Corpus
from training.text.pairs import MIN_CAN_BE_NEXT, MIN_SHOWN

LENGTH_FLAGS = ("--max-seq-length", "--long-seq-length")
"""Flags that set the sequence length of each phase of a run."""
MIN_HAN_FRACTION = 0.1
MIN_PIECE_FRACTION = 0.01
"""Least fraction of tokens that continue a word; 0.1 in English with 30,000 tokens."""
MAX_RATE_ERROR = 0.2
"""Largest difference between the fraction of predicted tokens and the masking rate, as a fraction of the rate."""
NUM_SAMPLES = 200
"""Examples in which predicted tokens are counted."""


def report_pairs(examples: PretrainingExamples, flag: str) -> None:
    """Print statistics of the pairs of an epoch; warn if few can be consecutive, or much text is cut.

    Args:
        flag: flag that sets the sequence length, for the hint.

    Raises:
        ValueError: if no pair can be consecutive, so that all targets are the same.
    """
    statistics, corpus, length = examples.pair_statistics(), examples.corpus, examples.max_seq_length
    if examples.next_sentences:
        found = f"of the sentence pairs of `{corpus.directory}` at {length} tokens can be consecutive"
        remedy = "prepare it with more sentences a document (training.corpus says how), or pretrain with "
        remedy += "--no-next-sentences"
        if not statistics.can_be_next:
            raise ValueError(
                f"none {found} ({corpus.num_single():,} of {corpus.num_documents:,} documents have a single sentence), "
                f"so that every next sentence is random and there is nothing to learn; {remedy}"
            )
        if statistics.can_be_next < MIN_CAN_BE_NEXT:
            guessed = max(statistics.are_next, 1 - statistics.are_next)
            chance = f'always answering "random" is right in {guessed:.1%}'
            _warn(f"{statistics.can_be_next:.1%} {found}: {chance}; {remedy}")
        print(
            f"an epoch at {length} tokens: {statistics.can_be_next:.1%} of the sentence pairs can be consecutive "
            f"({statistics.are_next:.1%} are), {statistics.shown:.1%} of the text is shown",
            flush=True,
        )
    if statistics.shown < MIN_SHOWN:
        print(
            f"note: an epoch at {length} tokens shows {statistics.shown:.1%} of the text, as long sentences are cut; "
            f"put a sentence a line, or raise {flag}",
            flush=True,
        )
    if examples.masking.whole_words:
        _warn_about_fraction(examples, flag)


def _warn_about_fraction(examples: PretrainingExamples, flag: str) -> None:
    """Warn if whole words leave the fraction of predicted tokens far from the masking rate, as long words do."""
    found = [examples.example(0, index) for index in range(min(NUM_SAMPLES, examples.num_examples(0)))]
    fraction = sum(len(x.masked_labels) for x in found) / sum(len(x.input_ids) for x in found)
    rate = examples.masking.rate
    if abs(fraction - rate) > MAX_RATE_ERROR * rate:
        _warn(
            f"{fraction:.1%} of the tokens of `{examples.corpus.directory}` are predicted at {examples.max_seq_length} "
            f"tokens, not {rate:.1%} (first {len(found):,} examples): words have too many tokens for --whole-words, or "
            f"examples too few; pretrain without it, or raise {flag}"
        )


def warn_about_dev_pairs(examples: PretrainingExamples, num_examples: int) -> None:
    """Warn if the first dev examples are little evidence for next sentence prediction: nearly all pairs are random."""
    if not examples.next_sentences:
        return
    fraction = float(examples.nsp_labels(0)[:num_examples].mean())
    name = f"dev corpus `{examples.corpus.directory}`"
    if fraction in (0, 1):
        kind = "random" if fraction else "consecutive"
        _warn(
            f"all sentence pairs of {name} are {kind}: nsp_accuracy is left out; give it documents of several sentences"
        )
    elif examples.pair_statistics().can_be_next < MIN_CAN_BE_NEXT:
        _warn(
            f"{fraction:.1%} of the sentence pairs of {name} are random: "
            'compare nsp_accuracy with always answering "random"'
        )


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr, flush=True)


def whole_words_note(corpus: Corpus) -> str | None:
    """Return why `--whole-words` changes hardly anything on a corpus, judged by its first tokens; None if it does."""
    (ids, continues), tokenizer = corpus.sample_tokens(), corpus.tokenizer
    if not corpus.has_words:
        is_han = [bool(re.fullmatch(f"[{HAN}]", tokenizer.token(index))) for index in range(tokenizer.vocab_size)]
        chinese = float(np.array(is_han)[ids].mean())
        if chinese >= MIN_HAN_FRACTION:
            return (
                f"{chinese:.0%} of the first {len(ids):,} tokens are Chinese characters, each of which is masked as a "
                "word; to mask whole words of Chinese, prepare the corpus with --words jieba"
            )
    fraction = float(continues.mean())
    if fraction >= MIN_PIECE_FRACTION:
        return None
    return f"--whole-words changes hardly anything: {fraction:.1%} of the first {len(ids):,} tokens continue a word"
