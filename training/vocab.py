"""Train a WordPiece vocabulary.

python -m training.vocab --data corpus.txt --out build/tokenizer --vocab-size 8192
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tokenizers

from tasks.files import atomic_directory, check_free
from tasks.tokenizer import TOKENIZER_FILE, build_tokenizer
from training.command import command, parse
from training.limits import NOT_NEGATIVE, Limits, check_numbers
from training.progress import Progress
from training.text.documents import find_files, read_blocks

SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_TOO_LONG = re.compile(r"[A-Za-z0-9]{101,}")
"""Words that become [UNK] anyway; in long ones the trainer would be busy for hours."""


@dataclass(frozen=True, kw_only=True)
class VocabRecipe:
    """Train a WordPiece vocabulary from text and write it as a tokenizer directory."""

    data: tuple[Path, ...]
    """Text, JSONL or Parquet files, or directories of them."""
    out: Path
    """Directory to write: tokenizer.json, tokenizer_config.json, vocab.txt."""
    vocab_size: Annotated[int, Limits(least=1, most=2**20)] = 30522
    """Tokens in the vocabulary, the five special ones included."""
    lowercase: bool = True
    """Lower-case text and strip accents (an uncased model)."""
    min_frequency: Annotated[int, Limits(least=0, most=2**31)] = 2
    """Pieces seen less often are left out."""
    sample_bytes: Annotated[int, NOT_NEGATIVE] = 0
    """Learn from about this much of the files, spread evenly over them; 0 for all. Memory grows with the number of
    different words (0.3 GB for 200 MB of English), time with the text (6 minutes a GB)."""
    replace: bool = False
    """Overwrite the directory."""

    def __post_init__(self) -> None:
        check_numbers(self)


def train_vocab(recipe: VocabRecipe) -> tokenizers.Tokenizer:
    """Train the vocabulary and write the tokenizer directory.

    Raises:
        ValueError: for data that cannot be read or is too little.
    """
    check_free(recipe.out, replace=recipe.replace)
    files = find_files(recipe.data)
    backend = build_tokenizer(SPECIAL_TOKENS, lowercase=recipe.lowercase)
    alphabet = _alphabet(files, backend, recipe)
    # Given as special tokens, single characters get ids in a fixed order; the trainer by itself numbers them by the
    # order of a hash table, and breaks ties by number, so that no two runs would agree.
    first_tokens = [*SPECIAL_TOKENS, *alphabet.letters, *(f"##{letter}" for letter in alphabet.letters)]
    if len(first_tokens) >= recipe.vocab_size:
        raise ValueError(
            f"vocab_size `{recipe.vocab_size}` is too small: {len(first_tokens)} are characters and specials"
        )
    room = recipe.vocab_size - len(first_tokens)
    num_kept = min(room, max(alphabet.num_common_words, int(alphabet.share_of_words * room)), len(alphabet.words))
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=recipe.vocab_size - num_kept,
        min_frequency=recipe.min_frequency,
        special_tokens=first_tokens,
        limit_alphabet=0,
        continuing_subword_prefix="##",
        show_progress=False,
    )
    backend.train_from_iterator(_documents(files, "vocabulary", recipe.sample_bytes), trainer)
    pieces = sorted(backend.get_vocab(), key=backend.token_to_id)
    vocab = [*pieces, *alphabet.words[: recipe.vocab_size - len(pieces)]]
    trained = build_tokenizer(vocab, lowercase=recipe.lowercase)
    with atomic_directory(recipe.out, replace=recipe.replace) as directory:
        write_tokenizer(directory, trained, lowercase=recipe.lowercase)
    if len(vocab) < recipe.vocab_size:
        print(f"note: {_why_fewer(recipe, alphabet)}", file=sys.stderr)
    return trained


@dataclass(frozen=True, kw_only=True)
class _Alphabet:
    """The characters that occur often enough."""

    letters: list[str]
    """What words are made of, as many as a 32nd of the vocabulary."""
    num_left_out: int
    """Letters beyond that; words with them become [UNK]."""
    words: list[str]
    """What the tokenizer makes a word each (Chinese characters), the commonest first."""
    num_common_words: int
    """How many of these are among the commonest characters, as many as a 32nd of the vocabulary."""
    share_of_words: float
    """How much of all words of the text these are."""


def _alphabet(files: list[Path], backend: tokenizers.Tokenizer, recipe: VocabRecipe) -> _Alphabet:
    normalize = backend.normalizer.normalize_str
    counts: Counter[str] = Counter()
    num_words = 0
    for document in _documents(files, "alphabet", recipe.sample_bytes):
        text = normalize(" ".join(document))
        counts.update(text)
        num_words += len(text.split())
    if not counts:
        raise ValueError(f"no text in {', '.join(f'`{path}`' for path in files)}")
    limit = max(64, recipe.vocab_size // 32)
    often = (char for char, count in counts.items() if count >= recipe.min_frequency and not char.isspace())
    common = sorted(often, key=lambda char: (-counts[char], char))
    words = [char for char in common if normalize(char) == f" {char} "]
    letters = [char for char in common if normalize(char) != f" {char} "]
    return _Alphabet(
        letters=sorted(letters[:limit]),
        num_left_out=len(letters[limit:]),
        words=words,
        num_common_words=len({*words} & {*common[:limit]}),
        share_of_words=sum(counts[char] for char in words) / max(1, num_words),
    )


def _why_fewer(recipe: VocabRecipe, alphabet: _Alphabet) -> str:
    fewer = f"fewer than the {recipe.vocab_size} asked for"
    if alphabet.num_left_out:
        return (
            f"{fewer}: {alphabet.num_left_out:,} characters that occur {recipe.min_frequency} times were left out, as "
            "at most a 32nd of the vocabulary are letters; raise --vocab-size"
        )
    return f"{fewer}: no other piece occurs {recipe.min_frequency} times; give more text, or lower --min-frequency"


def write_tokenizer(directory: Path, backend: tokenizers.Tokenizer, *, lowercase: bool) -> None:
    """Write the tokenizer files of a checkpoint into an existing directory."""
    backend.save(str(directory / TOKENIZER_FILE))
    vocab = sorted(backend.get_vocab(), key=backend.token_to_id)
    (directory / "vocab.txt").write_text("".join(f"{token}\n" for token in vocab), encoding="utf-8")
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    config = {"tokenizer_class": "BertTokenizer", "do_lower_case": lowercase, "model_max_length": 512}
    config |= dict(zip(names, SPECIAL_TOKENS, strict=True))
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _documents(files: list[Path], label: str, sample_bytes: int) -> Iterator[list[str]]:
    total = sum(path.stat().st_size for path in files)
    share = min(1.0, sample_bytes / total) if sample_bytes and total else 1.0
    num_read = num_taken = 0
    with Progress(label, unit="byte", total=total) as bar:
        for block in (block for path in files for block in read_blocks(path)):
            if num_taken <= share * num_read:
                num_taken += block.num_file_bytes
                for document in block.documents():
                    yield [_TOO_LONG.sub(" ", sentence) for sentence in document]
            num_read += block.num_file_bytes
            bar.update(block.num_file_bytes)


@command
def main() -> None:
    """Command line."""
    recipe = parse(VocabRecipe, "training.vocab", __doc__)
    backend = train_vocab(recipe)
    print(f"{backend.get_vocab_size()} tokens -> {recipe.out}")


if __name__ == "__main__":
    main()
