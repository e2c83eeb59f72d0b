"""More texts to distil on: words replaced by what a masked LM finds probable in their place.

Variants have no labels: only the teacher says what they mean. They are kept beside the outputs of teachers.

Source: TinyBERT (Jiao et al. 2020), section 3.2.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tasks.batching import RunModel, predict
from tasks.files import atomic_write
from tasks.json_files import read_json
from tasks.masked_lm import ClozeExample, MaskedLM, MaskPrediction
from training.distillation.outputs import record_digest
from training.progress_bar import ProgressBar

REPLACED = 0.4
"""Probability of a word to be replaced, as in TinyBERT."""
CANDIDATES = 15
"""Most probable tokens that a replacement is drawn from, as in TinyBERT."""
LONGEST = 64
"""Words of a text that can be replaced, from its beginning: masks must be among the tokens that fit."""
_CHUNK = 1024


def text_variants(
    folder: Path,
    made_from: dict[str, Any],
    texts: Sequence[str],
    count: int,
    load: Callable[[], tuple[MaskedLM, RunModel]],
) -> list[list[str]]:
    """Return `count` variants of each text, or those that an earlier call has written.

    Args:
        folder: folder for the outputs of teachers.
        made_from: everything that the variants depend on, as JSON.
        texts: texts to change.
        count: variants of each text.
        load: function that loads the masked LM; not called if the variants are there.
    """
    path = folder / f"variants-{record_digest(made_from)}.json"
    if not path.is_file():
        task, run = load()
        found: list[list[str]] = [[] for _ in texts]
        with ProgressBar("variants", unit="text", total=count * len(texts)) as bar:
            for number in range(count):
                for first in range(0, len(texts), _CHUNK):
                    chunk = texts[first : first + _CHUNK]
                    for place, text in enumerate(replace_words(task, run, chunk, seed=(number, first)), start=first):
                        found[place].append(text)
                    bar.update(len(chunk))
        atomic_write(path, json.dumps({**made_from, "variants": found}, ensure_ascii=False).encode())
    variants: list[list[str]] = read_json(path)["variants"]
    return variants


def replace_words(task: MaskedLM, run: RunModel, texts: Sequence[str], *, seed: Sequence[int]) -> list[str]:
    """Return each text with some words replaced; a text without words, or without room for a mask, stays as it is."""
    rng = np.random.default_rng(list(seed))
    chosen = [_choose(task.tokenizer.word_offsets(text), text, rng) for text in texts]
    mask = task.tokenizer.mask_token
    masked = [_put(text, spans, [mask] * len(spans)) for text, spans in zip(texts, chosen, strict=True)]
    with_masks = [number for number, spans in enumerate(chosen) if spans and _has_mask(task, masked[number])]
    predictions = predict(task, [ClozeExample(masked[number]) for number in with_masks], run, chunk_size=32)
    found = list(texts)
    for number, prediction in zip(with_masks, predictions, strict=True):
        spans, text = chosen[number][: len(prediction.log_probs)], texts[number]
        words = [_draw(task, prediction, place, text[start:end], rng) for place, (start, end) in enumerate(spans)]
        found[number] = _put(text, spans, words)
    return found


def _choose(offsets: np.ndarray, text: str, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Return the spans of some words, at least one if there are any."""
    words = [(int(start), int(end)) for start, end in offsets[:LONGEST] if text[start:end].isalnum()]
    if not words:
        return []
    always = int(rng.integers(len(words)))
    return [word for number, word in enumerate(words) if rng.random() < REPLACED or number == always]


def _put(text: str, spans: Sequence[tuple[int, int]], words: Sequence[str]) -> str:
    """Return a text with other words at some spans, which are in order."""
    parts, last = [], 0
    for (start, end), word in zip(spans, words, strict=True):
        parts += [text[last:start], word]
        last = end
    return "".join([*parts, text[last:]])


def _has_mask(task: MaskedLM, text: str) -> bool:
    features = task.tokenizer.tokenize([text], ids_only=True)[0]
    return bool((features.ids[: task.tokenizer.single.capacity(task.settings.max_seq_length)] == task.mask_id).any())


def _draw(task: MaskedLM, prediction: MaskPrediction, mask: int, word: str, rng: np.random.Generator) -> str:
    """Draw a whole word among the most probable tokens, by probability; the word itself if there is none."""
    decode = task.tokenizer.backend.decode
    found = [(decode([token]).strip(), score) for token, score in prediction.top(mask, CANDIDATES)]
    words = [(other, score) for other, score in found if other.isalnum()]
    if not words:
        return word
    scores = np.array([score for _, score in words])
    drawn = words[int(rng.choice(len(words), p=scores / scores.sum()))][0]
    return drawn.capitalize() if word.istitle() and drawn.islower() else drawn
