"""Load the tokenizer of a checkpoint from any of its files, and copy it.

`tasks` reads `tokenizer.json` and `vocab.txt`. transformers, which is loaded here and nowhere else in `training`,
converts SentencePiece models, and `vocab.json` with `merges.txt`.
"""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import tokenizers

from tasks.base import first_line
from tasks.text.tokenizer import Tokenizer
from tasks.text.tokenizer_files import (
    CONFIG_FILE,
    SAVE_FAST,
    TOKENIZER_CONFIG_FILE,
    TOKENIZER_FILE,
    TOKENIZER_FILES,
    check_agreement,
    find_unconverted,
    is_rust_panic,
    read_special_names,
    read_tokenizer_class,
)

_INEXACT = "The sentencepiece tokenizer that you are converting"
"""Start of transformers' warning that a converted tokenizer gives other tokens, as with byte fallback."""


def read_tokenizer(directory: str | Path) -> Tokenizer:
    """Load the tokenizer of a directory; files of other tokenizers are converted.

    Raises:
        ValueError: naming the file that is missing or broken, or that contradicts another.
    """
    path = find_unconverted(Path(directory))
    if path is None:
        return Tokenizer.load(directory)
    backend = _convert(path)
    return Tokenizer(backend, source=str(path), names=read_special_names(Path(directory)))


def copy_tokenizer(source: str | Path, directory: Path) -> None:
    """Copy the tokenizer files of a directory into another; what is converted becomes `tokenizer.json`."""
    for name in TOKENIZER_FILES:
        if (Path(source) / name).is_file():
            shutil.copyfile(Path(source) / name, directory / name)
    if path := find_unconverted(Path(source)):
        _convert(path).save(str(directory / TOKENIZER_FILE))


def _convert(path: Path) -> tokenizers.Tokenizer:
    """Return the fast tokenizer that transformers makes of the files next to a file, if it can do so exactly."""
    directory = path.parent
    for file in (TOKENIZER_CONFIG_FILE, CONFIG_FILE):
        read_tokenizer_class(directory / file)
    try:
        import transformers
    except ImportError as error:
        raise ValueError(
            f"`{path}` is converted by transformers, which is missing; pip install 'transformers>=4.57,<4.58'"
        ) from error
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", _INEXACT)
            fast = transformers.AutoTokenizer.from_pretrained(directory, trust_remote_code=False, local_files_only=True)
        # A file would round the scores, and change the digest.
        backend = tokenizers.Tokenizer.from_str(fast.backend_tokenizer.to_str())
    except BaseException as error:  # tokenizers raises bare Exception, or panics
        if not isinstance(error, Exception) and not is_rust_panic(error):
            raise
        raise ValueError(f"transformers cannot convert `{path}` ({first_line(error)}); {SAVE_FAST}") from error
    finally:
        transformers.logging.set_verbosity(verbosity)
    check_agreement(backend, path, directory / TOKENIZER_CONFIG_FILE)
    return backend
