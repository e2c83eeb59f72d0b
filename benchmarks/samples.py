"""Networks with random weights, text, tokenizers and checkpoints: benchmarks that need no files and no network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from export.evaluation_set import ExportData
from export.pipeline import ExportConfig, export_checkpoint
from tasks.embedding import Embedding, EmbeddingSettings, Pooling
from tasks.text.tokenizer import Tokenizer
from tasks.text.tokenizer_files import TOKENIZER_FILE, build_tokenizer
from training.checkpoint.reader import create_model
from training.checkpoint.task_card import TaskCard
from training.checkpoint.writer import save_checkpoint
from training.model.architectures import ARCHITECTURES
from training.model.heads import BertModel

TINY, TINY_VOCAB_SIZE = (2, 32, 2), 1000
"""Shape (layers, hidden size, heads) and vocabulary of a network that takes nearly no time."""
NUM_SPECIAL = 5
"""Special tokens of `random_network`; its other tokens are `w0`, `w1`, ..."""
WORDS_PER_SENTENCE = (5, 40)
SENTENCES_PER_DOCUMENT = (5, 60)
OPTIONS = {
    "deberta-v2": {
        **{"relative_attention": True, "pos_att_type": "p2c|c2p", "position_buckets": 256, "share_att_key": True},
        **{"norm_rel_ebd": "layer_norm", "position_biased_input": False, "max_position_embeddings": 512},
    }
}
"""Keys of `config.json` in public checkpoints of a family, where transformers has other defaults."""


def random_network(
    shape: tuple[int, int, int], vocab_size: int = 30522, family: str = "bert", pooling: Pooling = "cls"
) -> tuple[BertModel, Embedding]:
    """Return a random network for embeddings and its task.

    Args:
        shape: layers, hidden size and heads.
        family: key of `ARCHITECTURES`.
    """
    layers, hidden, heads = shape
    words = [f"w{number}" for number in range(vocab_size - 5)]
    tokenizer = Tokenizer(build_tokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
    torch.manual_seed(0)
    architecture = ARCHITECTURES[family]
    sizes = {
        "vocab_size": vocab_size,
        "pad_token_id": tokenizer.pad_id,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * hidden,
        "max_position_embeddings": 514,
    }
    named = {architecture.config_keys.get(key, key): size for key, size in sizes.items()}
    config = architecture.read_config(named | OPTIONS.get(family, {}))
    settings = EmbeddingSettings(max_seq_length=512, pooling=pooling)
    return create_model("embedding", config).eval(), Embedding(tokenizer, settings)


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
    lengths = np.random.default_rng(1).integers(*SENTENCES_PER_DOCUMENT, len(texts))
    documents = np.split(np.array([f"{text} ." for text in texts], object), np.cumsum(lengths))
    path.write_text("".join("\n".join(document) + "\n\n" for document in documents if len(document)), "utf-8")


def write_checkpoint(
    directory: Path, shape: tuple[int, int, int] = TINY, vocab_size: int = TINY_VOCAB_SIZE, **network: Any
) -> None:
    """Write the checkpoint of a `random_network`, and its tokenizer to `tokenizer` next to it."""
    model, task = random_network(shape, vocab_size, **{"pooling": "mean", **network})
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
