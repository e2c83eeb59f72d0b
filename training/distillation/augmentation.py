"""More texts to distil on: words replaced by what a masked LM finds probable in their place.

Variants have no labels: only the teacher says what they mean. They are kept beside the outputs of teachers.

Source: TinyBERT (Jiao et al. 2020), section 3.2.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tasks.base import Outputs
from tasks.batching import RunModel, predict
from tasks.features import Features
from tasks.files import atomic_write
from tasks.json_files import read_json
from tasks.masked_lm import ClozeExample, MaskedLM, MaskedLMSettings
from tasks.tokenizer import Tokenizer
from training.checkpoint import load_model, load_tokenizer, read_shape
from training.distillation.outputs import record_digest
from training.evaluate import torch_run
from training.progress_bar import ProgressBar

REPLACED = 0.4
"""Probability of a word to be replaced, as in TinyBERT."""
CANDIDATES = 15
"""Most probable tokens that a replacement is drawn from, as in TinyBERT."""
LONGEST = 64
"""Words of a text that can be replaced, from its beginning: masks must be among the tokens that fit."""
_CHUNK = 1024


@dataclass(frozen=True)
class Candidates:
    """Most probable tokens at each mask of a text."""

    tokens: np.ndarray
    """[masks, candidates] token ids, the most probable first."""
    scores: np.ndarray
    """[masks, candidates] float32, logits of the tokens."""


class MaskedWords(MaskedLM):
    """Masked LM of which only the most probable tokens are kept, which are few numbers to copy from a GPU."""

    def __init__(self, tokenizer: Tokenizer, settings: MaskedLMSettings) -> None:
        super().__init__(tokenizer, settings)
        self._words: dict[int, str] = {}

    def word_of(self, token_id: int) -> str:
        """Return the text of a token, without spaces around it."""
        if token_id not in self._words:
            self._words[token_id] = self.tokenizer.backend.decode([token_id]).strip()
        return self._words[token_id]

    def decode(self, example: ClozeExample, features: Sequence[Features], outputs: Sequence[Outputs]) -> Candidates:  # type: ignore[override]
        """Return the candidates at each mask of a text."""
        masks = np.flatnonzero(features[0].input_ids == self.mask_id)
        found = {name: output[masks] for name, output in outputs[0].items()}
        return Candidates(found["tokens"].astype(np.int64), found["scores"])


class _TopTokens(nn.Module):
    """Network whose outputs are the most probable tokens at each position."""

    def __init__(self, network: nn.Module, vocab_size: int) -> None:
        super().__init__()
        self.network = network
        self.vocab_size = vocab_size

    def forward(self, **inputs: Tensor) -> dict[str, Tensor]:
        logits = self.network(**inputs)["logits"][..., : self.vocab_size]
        scores, tokens = logits.topk(min(CANDIDATES, self.vocab_size))
        return {"tokens": tokens, "scores": scores}


def load_masked_words(checkpoint: Path, device: torch.device | str = "cpu") -> tuple[MaskedWords, RunModel]:
    """Load a checkpoint as a masked LM that proposes words."""
    settings = MaskedLMSettings(max_seq_length=min(512, read_shape(checkpoint).num_positions))
    task = MaskedWords(load_tokenizer(checkpoint), settings)
    network = _TopTokens(load_model(checkpoint, task.name), task.tokenizer.vocab_size)
    return task, torch_run(network, task, device)


def text_variants(
    folder: Path,
    made_from: dict[str, Any],
    texts: Sequence[str],
    count: int,
    load: Callable[[], tuple[MaskedWords, RunModel]],
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


def replace_words(task: MaskedWords, run: RunModel, texts: Sequence[str], *, seed: Sequence[int]) -> list[str]:
    """Return each text with some words replaced.

    A text without words, without room for a mask, or with the mask token in it stays as it is.
    """
    rng, mask = np.random.default_rng(list(seed)), task.tokenizer.mask_token
    chosen = [[] if mask in text else _choose(task.tokenizer.word_offsets(text), text, rng) for text in texts]
    masked = [_put(text, spans, [mask] * len(spans)) for text, spans in zip(texts, chosen, strict=True)]
    with_masks = [number for number, spans in enumerate(chosen) if spans and _has_mask(task, masked[number])]
    predictions = predict(task, [ClozeExample(masked[number]) for number in with_masks], run)
    found = list(texts)
    for number, prediction in zip(with_masks, predictions, strict=True):
        spans, text = chosen[number][: len(prediction.tokens)], texts[number]
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


def _has_mask(task: MaskedWords, text: str) -> bool:
    features = task.tokenizer.tokenize([text], ids_only=True)[0]
    return bool((features.ids[: task.tokenizer.single.capacity(task.settings.max_seq_length)] == task.mask_id).any())


def _draw(task: MaskedWords, candidates: Candidates, mask: int, word: str, rng: np.random.Generator) -> str:
    """Draw a whole word among the most probable tokens, by probability; the word itself if there is none."""
    words = [task.word_of(int(token)) for token in candidates.tokens[mask]]
    usable = [number for number, other in enumerate(words) if other.isalnum()]
    if not usable:
        return word
    scores = candidates.scores[mask][usable].astype(np.float64)
    weights = np.exp(scores - scores.max())
    drawn = words[usable[int(rng.choice(len(usable), p=weights / weights.sum()))]]
    return drawn.capitalize() if word.istitle() and drawn.islower() else drawn
