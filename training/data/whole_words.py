"""Corpora in which whole-word masking changes hardly anything."""

from __future__ import annotations

import re

import numpy as np

from tasks.languages import HAN
from tasks.tokenizer import Tokenizer
from training.corpus import Corpus

MUCH_CHINESE = 0.1
FEW_PIECES = 0.01
"""English over 30,000 pieces has 0.1."""


def whole_words_note(corpus: Corpus) -> str | None:
    """Say why `--whole-words` changes hardly anything, by the first tokens of a corpus; None where it does."""
    ids, continues = corpus.sample_tokens()
    if continues is None:
        chinese = float(_is_han(corpus.tokenizer)[ids].mean())
        if chinese >= MUCH_CHINESE:
            return (
                f"{chinese:.0%} of the first {len(ids):,} tokens are Chinese characters, each of which is masked as a "
                "word; to mask their words whole, prepare the corpus with --words jieba"
            )
        continues = corpus.tokenizer.continues_word()[ids]
    share = float(continues.mean())
    if share >= FEW_PIECES:
        return None
    return f"--whole-words changes hardly anything: {share:.1%} of the first {len(ids):,} tokens continue a word"


def _is_han(tokenizer: Tokenizer) -> np.ndarray:
    """[vocabulary] bool: which tokens are a Chinese character."""
    han = re.compile(f"[{HAN}]")
    return np.array([bool(han.fullmatch(tokenizer.token(index))) for index in range(tokenizer.vocab_size)])
