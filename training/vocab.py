"""Train a WordPiece vocabulary.

python -m training.vocab --data corpus.txt --out build/tokenizer --vocab-size 8192
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tokenizers

from tasks.bundle.files import atomic_directory, check_output_path
from tasks.schema import Bounds
from tasks.text.tokenizer_files import TOKENIZER_CONFIG_FILE, TOKENIZER_FILE, build_tokenizer
from training.command_line.bounds import NOT_NEGATIVE, check_numbers
from training.command_line.command import command, parse
from training.command_line.progress_bar import ProgressBar
from training.text.documents import find_files, read_blocks

SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_TOO_LONG = re.compile(r"[A-Za-z0-9]{101,}")
"""Words that become [UNK] anyway; very long ones would keep the trainer busy for hours."""
LONGEST_WORD = 100
"""Longest word in characters that WordPiece looks up; longer ones become one [UNK]."""
COVERAGE = 0.9995
"""Fraction of the letters of the text that get tokens; SentencePiece's default."""
MOST_LOST = 0.005
"""Warn if a larger fraction of characters is in no token, or in words that are too long."""
MOST_MERGED = 0.01
"""Print a note if a larger fraction of words becomes another word without accents."""
WORDS_COMPARED = 2**20
"""Number of words, from the beginning of the text, that are compared without accents."""


@dataclass(frozen=True, kw_only=True)
class VocabRecipe:
    """Train a WordPiece vocabulary on text and write a tokenizer directory."""

    data: tuple[Path, ...]
    """Text, JSONL or Parquet files, or directories of them."""
    out: Path
    """Directory to write: tokenizer.json, tokenizer_config.json, vocab.txt."""
    vocab_size: Annotated[int, Bounds(least=1, most=2**20)] = 30522
    """Number of tokens, including the five special ones."""
    lowercase: bool = True
    """Lower-case text and strip accents, for an uncased model."""
    keep_accents: bool = False
    """Keep accents and other marks of lower-cased text, for languages in which they distinguish words (schön and schon,
    パンダ and ハンタ). A cased vocabulary (--no-lowercase) keeps them anyway."""
    min_frequency: Annotated[int, Bounds(least=0, most=2**31)] = 2
    """Drop pieces that occur less often."""
    sample_bytes: Annotated[int, NOT_NEGATIVE] = 0
    """Train on a sample of about this many bytes, spread evenly over the files; 0 for all. Memory grows with the number
    of different words (0.3 GB for 200 MB of English), time with the text (6 minutes a GB)."""
    replace: bool = False
    """Overwrite the directory."""

    def __post_init__(self) -> None:
        check_numbers(self)

    @property
    def strip_accents(self) -> bool | None:
        """Setting of BERT's tokenizer; None means the same as `lowercase`."""
        return False if self.keep_accents else None


def train_vocab(recipe: VocabRecipe) -> tokenizers.Tokenizer:
    """Train the vocabulary and write the tokenizer directory.

    Raises:
        ValueError: if the data cannot be read, or vocab_size is too small for its characters.
    """
    check_output_path(recipe.out, replace=recipe.replace)
    files = find_files(recipe.data)
    build = partial(build_tokenizer, lowercase=recipe.lowercase, strip_accents=recipe.strip_accents)
    backend = build(SPECIAL_TOKENS)
    alphabet = _alphabet(files, backend, recipe)
    # As special tokens, single characters get ids in a fixed order. The trainer numbers them in the order of a hash
    # table and breaks ties by number, so each run would give another vocabulary.
    first_tokens = [*SPECIAL_TOKENS, *alphabet.letters, *(f"##{letter}" for letter in alphabet.letters)]
    if len(first_tokens) >= recipe.vocab_size:
        raise ValueError(
            f"vocab_size `{recipe.vocab_size}` is too small: {len(first_tokens)} tokens are characters or special"
        )
    room = recipe.vocab_size - len(first_tokens)
    num_reserved = min(room, max(alphabet.num_common_words, int(alphabet.word_fraction * room)), len(alphabet.words))
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=recipe.vocab_size - num_reserved,
        min_frequency=recipe.min_frequency,
        special_tokens=first_tokens,
        limit_alphabet=0,
        continuing_subword_prefix="##",
        show_progress=False,
    )
    backend.train_from_iterator(_documents(files, "vocabulary", recipe.sample_bytes), trainer)
    pieces = sorted(backend.get_vocab(), key=backend.token_to_id)
    rest = (token for letter in alphabet.left_out for token in (letter, f"##{letter}"))
    vocab = list(islice(chain(pieces, alphabet.words, rest), recipe.vocab_size))
    trained = build(vocab)
    with atomic_directory(recipe.out, replace=recipe.replace) as directory:
        trained.save(str(directory / TOKENIZER_FILE))
        (directory / "vocab.txt").write_text("".join(f"{token}\n" for token in vocab), encoding="utf-8")
        (directory / TOKENIZER_CONFIG_FILE).write_text(json.dumps(_config(recipe), indent=2) + "\n", encoding="utf-8")
    for message in _warnings(recipe, alphabet, vocab):
        print(message, file=sys.stderr)
    return trained


def _config(recipe: VocabRecipe) -> dict[str, Any]:
    """Return the values of tokenizer_config.json."""
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    config = {"tokenizer_class": "BertTokenizer", "do_lower_case": recipe.lowercase, "model_max_length": 512}
    if recipe.strip_accents is not None:
        config["strip_accents"] = recipe.strip_accents
    return config | dict(zip(names, SPECIAL_TOKENS, strict=True))


@dataclass(frozen=True, kw_only=True)
class _Alphabet:
    """Characters of the text that occur at least `min_frequency` times."""

    counts: Mapping[str, int]
    """Counts of all characters except white space."""
    num_in_long_words: int
    """Number of characters in words longer than LONGEST_WORD."""
    letters: list[str]
    """Characters of words: as many as COVERAGE needs, but at least 1/32 and at most 1/4 of the vocabulary."""
    left_out: list[str]
    """Other letters, most frequent first; they fill the vocabulary if pieces leave room."""
    words: list[str]
    """Characters that the tokenizer makes a word each (Chinese characters), most frequent first."""
    num_common_words: int
    """Number of these among the most frequent characters, up to 1/32 of the vocabulary."""
    word_fraction: float
    """Fraction of these among all words of the text."""
    merged: Mapping[str, Counter[str]]
    """Words without accents -> counts of the words of the text that become them."""


def _alphabet(files: list[Path], backend: tokenizers.Tokenizer, recipe: VocabRecipe) -> _Alphabet:
    normalize = backend.normalizer.normalize_str
    keep_accents = build_tokenizer(SPECIAL_TOKENS, lowercase=recipe.lowercase, strip_accents=False).normalizer
    counts: Counter[str] = Counter()
    merged: defaultdict[str, Counter[str]] = defaultdict(Counter)
    num_words = num_in_long_words = 0
    num_to_compare = WORDS_COMPARED if recipe.lowercase and not recipe.keep_accents else 0
    for document in _documents(files, "alphabet", recipe.sample_bytes):
        text = " ".join(document)
        bare_text = normalize(text)
        bare_words = bare_text.split()
        counts.update(bare_text)
        num_words += len(bare_words)
        for word in filter(lambda word: len(word) > LONGEST_WORD, bare_words):
            parts = (part for part, _ in backend.pre_tokenizer.pre_tokenize_str(word))
            num_in_long_words += sum(len(part) for part in parts if len(part) > LONGEST_WORD)
        if num_to_compare > 0:
            words = keep_accents.normalize_str(text).split()
            if len(words) == len(bare_words):  # else an accent was a separate word
                num_to_compare -= len(words)
                for bare, word in zip(bare_words, words, strict=True):
                    merged[bare][word] += 1
    if not counts:
        raise ValueError(f"no text in {', '.join(f'`{path}`' for path in files)}")
    counts = Counter({char: count for char, count in counts.items() if not char.isspace()})
    often = (char for char, count in counts.items() if count >= recipe.min_frequency)
    common = sorted(often, key=lambda char: (-counts[char], char))
    words = [char for char in common if normalize(char) == f" {char} "]
    letters = [char for char in common if normalize(char) != f" {char} "]
    covered = np.cumsum([counts[char] for char in letters])
    num_needed = int(np.searchsorted(covered, COVERAGE * covered[-1])) + 1 if letters else 0
    limit = max(64, recipe.vocab_size // 32)
    num_letters = max(limit, min(num_needed, recipe.vocab_size // 4))
    return _Alphabet(
        counts=counts,
        num_in_long_words=num_in_long_words,
        letters=sorted(letters[:num_letters]),
        left_out=letters[num_letters:],
        words=words,
        num_common_words=len({*words} & {*common[:limit]}),
        word_fraction=sum(counts[char] for char in words) / max(1, num_words),
        merged=merged,
    )


def _warnings(recipe: VocabRecipe, alphabet: _Alphabet, vocab: Sequence[str]) -> Iterator[str]:
    """Yield warnings and notes about a vocabulary that does not fit the text."""
    if len(vocab) < recipe.vocab_size:
        yield (
            f"note: {len(vocab)} tokens instead of {recipe.vocab_size}: no other piece occurs {recipe.min_frequency} "
            "times; add text, or lower --min-frequency"
        )
    num_chars, known = sum(alphabet.counts.values()), {*vocab}
    lost = sum(count for char, count in alphabet.counts.items() if char not in known) / num_chars
    if lost > MOST_LOST:
        yield (
            f"warning: {lost:.1%} of the characters of the text are in no token, so that their words become [UNK]; "
            "raise --vocab-size, or lower --min-frequency"
        )
    if alphabet.num_in_long_words > MOST_LOST * num_chars:
        yield (
            f"warning: {alphabet.num_in_long_words / num_chars:.1%} of the characters of the text are in words of more "
            f"than {LONGEST_WORD} characters, which become [UNK]; segment text that is written without spaces"
        )
    merged = alphabet.merged
    num_words = sum(words.total() for words in merged.values())
    rarer = {bare: words.total() - max(words.values()) for bare, words in merged.items() if len(words) > 1}
    if (num_merged := sum(rarer.values())) > MOST_MERGED * num_words:
        first = sorted(rarer, key=lambda bare: (-rarer[bare], bare))[:3]
        pairs = ", ".join(" and ".join(f"`{word}`" for word, _ in merged[bare].most_common(2)) for bare in first)
        yield (
            f"note: without accents {num_merged / num_words:.1%} of the words become other words of the text "
            f"({pairs}); --keep-accents keeps them apart"
        )


def _documents(files: list[Path], label: str, sample_bytes: int) -> Iterator[list[str]]:
    total = sum(path.stat().st_size for path in files)
    fraction = min(1.0, sample_bytes / total) if sample_bytes and total else 1.0
    num_read = num_taken = 0
    with ProgressBar(label, unit="byte", total=total) as bar:
        for block in (block for path in files for block in read_blocks(path)):
            if num_taken <= fraction * num_read:
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
