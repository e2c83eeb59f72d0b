"""Text, tokenizer and checkpoint of random words: benchmarks that need no files and no network."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.int8_graphs import random_network
from export.evaluation_set import ExportData
from export.pipeline import ExportConfig, export_checkpoint
from tasks.tokenizer_files import TOKENIZER_FILE
from training.checkpoint_writer import save_checkpoint
from training.task_card import TaskCard

TINY, TINY_VOCAB_SIZE = (2, 32, 2), 1000
"""Shape (layers, hidden size, heads) and vocabulary of a network that takes nearly no time."""
NUM_SPECIAL = 5
"""Special tokens of `random_network`; its other tokens are `w0`, `w1`, ..."""
WORDS_PER_SENTENCE = (5, 40)
SENTENCES_PER_DOCUMENT = (5, 60)


def sentences(num_sentences: int, vocab_size: int) -> list[str]:
    """Return sentences of random words, of which a few are frequent (Zipf's law), as in real text."""
    rng = np.random.default_rng(0)
    num_words = vocab_size - NUM_SPECIAL
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


def write_checkpoint(directory: Path, shape: tuple[int, int, int] = TINY, vocab_size: int = TINY_VOCAB_SIZE) -> None:
    """Write a random network for embeddings, and its tokenizer to `tokenizer` beside it.

    Args:
        shape: layers, hidden size and heads.
    """
    model, task = random_network(shape, vocab_size, pooling="mean")
    folder = directory.parent / "tokenizer"
    folder.mkdir(parents=True, exist_ok=True)
    task.tokenizer.backend.save(str(folder / TOKENIZER_FILE))
    card = TaskCard(task=task.name, settings=task.settings)
    save_checkpoint(directory, model, tokenizer_from=folder, card=card)


def tiny_model(folder: Path) -> Path:
    """Export a tiny network, write `texts.txt` for it, and return the folder of models."""
    texts = folder / "texts.txt"
    texts.write_text("\n".join(sentences(5000, TINY_VOCAB_SIZE)), encoding="utf-8")
    write_checkpoint(folder / "checkpoint")
    data = ExportData(texts=texts, max_examples=100)
    export_checkpoint(folder / "checkpoint", folder / "models/tiny/1", ExportConfig(tune=False), data=data)
    return folder / "models"
