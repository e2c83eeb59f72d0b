"""Load the tokenizer of a checkpoint from any of its files, and copy it."""

from __future__ import annotations

import shutil
from pathlib import Path

from tasks.special_tokens import USUAL_NAMES, find_special_tokens
from tasks.tokenizer import Tokenizer
from tasks.tokenizer_files import TOKENIZER_FILE, TOKENIZER_FILES, read_special_names
from training.checkpoint.sentencepiece_tokenizer import convert_sentencepiece, find_sentencepiece


def read_tokenizer(directory: str | Path) -> Tokenizer:
    """Load the tokenizer of a directory; a SentencePiece model is converted.

    Raises:
        ValueError: naming the file that is missing or broken, or that contradicts another.
    """
    path = find_sentencepiece(Path(directory))
    if path is None:
        return Tokenizer.load(directory)
    backend = convert_sentencepiece(path)
    special = find_special_tokens(backend, read_special_names(Path(directory), USUAL_NAMES), str(path))
    return Tokenizer(backend, source=str(path), special=special)


def copy_tokenizer(source: str | Path, directory: Path) -> None:
    """Copy the tokenizer files of a directory into another; a SentencePiece model becomes `tokenizer.json`."""
    for name in TOKENIZER_FILES:
        if (Path(source) / name).is_file():
            shutil.copyfile(Path(source) / name, directory / name)
    if path := find_sentencepiece(Path(source)):
        convert_sentencepiece(path).save(str(directory / TOKENIZER_FILE))
