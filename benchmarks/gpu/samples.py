"""Text, tokenizer and checkpoint of random words: the benchmark needs no files and no network."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.gpu.settings import GpuSettings
from benchmarks.int8_graphs import random_network
from tasks.tokenizer import Tokenizer
from training.checkpoint_writer import save_checkpoint
from training.task_card import TaskCard

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS_PER_SENTENCE = (5, 40)
SENTENCES_PER_DOCUMENT = (5, 60)


def sentences(num_sentences: int, vocab_size: int) -> list[str]:
    """Return sentences of random words, of which a few are frequent (Zipf's law), as in real text."""
    rng = np.random.default_rng(0)
    num_words = vocab_size - len(SPECIAL)
    frequency = 1 / np.arange(1, num_words + 1)
    lengths = rng.integers(*WORDS_PER_SENTENCE, num_sentences)
    words = rng.choice(num_words, lengths.sum(), p=frequency / frequency.sum())
    parts = np.split(words, np.cumsum(lengths)[:-1])
    return [" ".join(f"w{word}" for word in part) for part in parts]


def write_documents(path: Path, texts: list[str]) -> None:
    """Write texts as documents, one sentence a line, with empty lines between documents."""
    rng, position = np.random.default_rng(1), 0
    with path.open("w", encoding="utf-8") as file:
        while position < len(texts):
            end = position + int(rng.integers(*SENTENCES_PER_DOCUMENT))
            file.write("\n".join(f"{text} ." for text in texts[position:end]) + "\n\n")
            position = end


def write_checkpoint(directory: Path, settings: GpuSettings) -> Tokenizer:
    """Write a random network for embeddings, and return its tokenizer."""
    model, task = random_network(next(iter(settings.shapes.values())), settings.vocab_size, pooling="mean")
    folder = directory.parent / "tokenizer"
    folder.mkdir(parents=True, exist_ok=True)
    task.tokenizer.backend.save(str(folder / "tokenizer.json"))
    card = TaskCard(task=task.name, settings=task.settings)
    save_checkpoint(directory, model, tokenizer_from=folder, card=card)
    return task.tokenizer
