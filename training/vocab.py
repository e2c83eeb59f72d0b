"""Train a WordPiece vocabulary.

python -m training.vocab --data corpus.txt --out build/tokenizer --vocab-size 8192
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import tokenizers
import tyro

from tasks.files import atomic_directory
from tasks.tokenizer import TOKENIZER_FILE, build_tokenizer
from training.command import command
from training.documents import find_files, read_documents
from training.progress import Progress

SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@dataclass(frozen=True, kw_only=True)
class VocabRecipe:
    """Train a WordPiece vocabulary from text and write it as a tokenizer directory."""

    data: tuple[Path, ...]
    """Text, JSONL or Parquet files, or directories of them."""
    out: Path
    """Directory to write: tokenizer.json, tokenizer_config.json, vocab.txt."""
    vocab_size: int = 30522
    """Tokens in the vocabulary, the five special ones included."""
    lowercase: bool = True
    """Lower-case text and strip accents (an uncased model)."""
    min_frequency: int = 2
    """Pieces seen less often are left out."""
    replace: bool = False
    """Overwrite the directory."""


def train_vocab(recipe: VocabRecipe) -> tokenizers.Tokenizer:
    """Train the vocabulary and write the tokenizer directory.

    Raises:
        ValueError: for data that cannot be read or is too little.
    """
    files = find_files(recipe.data)
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=recipe.vocab_size,
        min_frequency=recipe.min_frequency,
        special_tokens=SPECIAL_TOKENS,
        continuing_subword_prefix="##",
        show_progress=False,
    )
    backend = build_tokenizer(SPECIAL_TOKENS, lowercase=recipe.lowercase)
    backend.train_from_iterator(_sentences(files), trainer)
    vocab = sorted(backend.get_vocab(), key=backend.token_to_id)
    if len(vocab) <= len(SPECIAL_TOKENS):
        raise ValueError(f"no text in {', '.join(f'`{path}`' for path in files)}")
    trained = build_tokenizer(vocab, lowercase=recipe.lowercase)
    with atomic_directory(recipe.out, replace=recipe.replace) as directory:
        write_tokenizer(directory, trained, lowercase=recipe.lowercase)
    return trained


def write_tokenizer(directory: Path, backend: tokenizers.Tokenizer, *, lowercase: bool) -> None:
    """Write the tokenizer files of a checkpoint into an existing directory."""
    backend.save(str(directory / TOKENIZER_FILE))
    vocab = sorted(backend.get_vocab(), key=backend.token_to_id)
    (directory / "vocab.txt").write_text("".join(f"{token}\n" for token in vocab), encoding="utf-8")
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    config = {"tokenizer_class": "BertTokenizer", "do_lower_case": lowercase, "model_max_length": 512}
    config |= dict(zip(names, SPECIAL_TOKENS, strict=True))
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _sentences(files: list[Path]) -> Iterator[list[str]]:
    with Progress("vocabulary", unit="document") as bar:
        for path in files:
            for document in read_documents(path):
                bar.update(1)
                yield document


@command
def main() -> None:
    """Command line."""
    recipe = tyro.cli(VocabRecipe, description=__doc__)
    backend = train_vocab(recipe)
    print(f"{backend.get_vocab_size()} tokens -> {recipe.out}")


if __name__ == "__main__":
    main()
