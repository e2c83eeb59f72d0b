"""Masked passages of running text, to evaluate a masked LM."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from tasks.masked_lm import ClozeExample
from tasks.text.tokenizer import Tokenizer
from training.data.pretraining import random_generator
from training.text.documents import read_documents

MAX_PASSAGE_TOKENS = 96


def read_cloze(
    path: Path, tokenizer: Tokenizer, *, max_tokens: int = MAX_PASSAGE_TOKENS, max_examples: int = 1000
) -> list[ClozeExample]:
    """Read passages of a text file as `cloze_examples`."""
    return list(itertools.islice(cloze_examples(_passages(path, tokenizer, max_tokens), tokenizer), max_examples))


def cloze_examples(texts: Iterable[str], tokenizer: Tokenizer) -> Iterator[ClozeExample]:
    """Mask 15% of the tokens of each text, the same tokens at each call.

    Only tokens that are a whole word or sign are masked, so that the text with [MASK] is the input that the model
    reads. Texts without such tokens, and texts that contain [MASK], are skipped.
    """
    assert tokenizer.mask_id is not None  # tasks with masks check it
    number, mask = 0, tokenizer.token(tokenizer.mask_id)
    for text in texts:
        tokens = tokenizer.tokenize([text])[0]
        is_first = np.append(~tokenizer.continues_word(tokens.ids), True)
        is_whole = is_first[:-1] & is_first[1:] & (tokens.ids != tokenizer.filler_id)
        whole = np.flatnonzero(is_whole)
        rng = random_generator(0, 0, stream=7, index=number)
        chosen = sorted(rng.permutation(whole)[: max(1, round(0.15 * len(tokens)))])
        if not chosen or tokenizer.mask_id in tokens.ids:
            continue
        number += 1
        hidden = tuple(tokenizer.token(int(tokens.ids[index])) for index in chosen)
        for index in reversed(chosen):
            start, end = tokens.offsets[index]
            text = f"{text[:start]}{mask}{text[end:]}"
        yield ClozeExample(text=text, tokens=hidden)


def _passages(path: Path, tokenizer: Tokenizer, max_tokens: int) -> Iterator[str]:
    """Yield runs of whole sentences of one document, as long as fit."""
    for document in read_documents(path):
        passage: list[str] = []
        size = 0
        for sentence, tokens in zip(document, tokenizer.tokenize(document), strict=True):
            if passage and size + len(tokens) > max_tokens:
                yield " ".join(passage)
                passage, size = [], 0
            if len(tokens) <= max_tokens:
                passage.append(sentence)
                size += len(tokens)
        if passage:
            yield " ".join(passage)
