"""Keep the word pieces of a BERT checkpoint that texts use most: a third of the vocabulary is most of all text.

    python -m recipes.mini.trim build/mini/teachers/minilm build/mini/minilm-trimmed --vocab-size 10752 --data texts.txt

Words whose piece is dropped are split into smaller pieces that stay. The result has the layout of the checkpoint.
docs/experiments/retrieval.md has what that costs.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordPiece

from tasks.bundle.files import atomic_directory
from tasks.schema import Bounds
from tasks.text.json_files import read_json
from training.command_line.command import command, parse
from training.data.columns import Columns
from training.data.table_examples import read_text_pairs

SIZES = (24_000, 18_000, 15_000, 13_000, 12_000, 11_400, 11_000)
"""Sizes in which the vocabulary shrinks: the splits of dropped words make other pieces more frequent."""
WORD_EMBEDDINGS = "embeddings.word_embeddings.weight"
UNUSED = ("pooler.", "embeddings.position_ids")
"""Starts of the names of weights that sentence vectors do not need."""
KEPT_FILES = ("modules.json", "sentence_bert_config.json", "tokenizer_config.json", "1_Pooling/config.json")
"""Files that stay as they are, if there are any."""


@dataclass(frozen=True, kw_only=True)
class TrimArguments:
    """Keep the word pieces that texts use most."""

    checkpoint: Annotated[Path, tyro.conf.Positional]
    """BERT network in the layout of transformers or sentence-transformers."""
    out: Annotated[Path, tyro.conf.Positional]
    """Folder to write; an existing one is kept."""
    data: tuple[Path, ...]
    """Texts, one a line, or tables with a column `text`."""
    vocab_size: Annotated[int, Bounds(least=1000)] = 10_752
    """Word pieces to keep, with special tokens and all single ASCII characters."""


def count_words(tokenizer: Tokenizer, texts: Iterable[str]) -> Counter[str]:
    """Return how often texts have each word, as the tokenizer splits and normalises them."""
    words: Counter[str] = Counter()
    for text in texts:
        words.update(w for w, _ in tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(text)))
    return words


def choose(words: Mapping[str, int], vocabulary: Collection[str], size: int, always: Collection[str]) -> set[str]:
    """Return the pieces to keep.

    Args:
        words: frequencies.
        vocabulary: all pieces.
        size: number of pieces to keep.
        always: pieces to keep, whatever their frequency.
    """
    kept = {*vocabulary}
    for target in (*(each for each in SIZES if each > size), size):
        counts: Counter[str] = Counter()
        model = WordPiece({piece: number for number, piece in enumerate(kept)}, max_input_chars_per_word=1000)
        for word, number in words.items():
            for piece in model.tokenize(word):
                counts[piece.value] += number
        order = [piece for piece, _ in counts.most_common() if piece not in always]
        kept = {*always, *order[: target - len(always)]}
    return kept


def trimmed(tokenizer: Mapping[str, Any], ids: list[int]) -> dict[str, Any]:
    """Return `tokenizer.json` with only some tokens, numbered anew in their order."""
    tokens = {number: token for token, number in tokenizer["model"]["vocab"].items()}
    vocab = {tokens[old]: new for new, old in enumerate(ids)}
    added = [token | {"id": vocab[token["content"]]} for token in tokenizer["added_tokens"]]
    post = dict(tokenizer["post_processor"])
    if "special_tokens" in post:
        marks = post["special_tokens"].items()
        post["special_tokens"] = {key: mark | {"ids": [vocab[t] for t in mark["tokens"]]} for key, mark in marks}
    post |= {key: [post[key][0], vocab[post[key][0]]] for key in ("cls", "sep") if key in post}
    changed = {"model": tokenizer["model"] | {"vocab": vocab}, "added_tokens": added, "post_processor": post}
    return dict(tokenizer) | changed | {"truncation": None, "padding": None}


def trim(checkpoint: Path, out: Path, words: Mapping[str, int], size: int) -> None:
    """Write a checkpoint with the `size` pieces of its vocabulary that words need most."""
    tokenizer = read_json(checkpoint / "tokenizer.json")
    vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
    always = {token["content"] for token in tokenizer["added_tokens"]}
    always |= {token for token in vocabulary if token.isascii() and len(token.removeprefix("##")) == 1}
    kept = choose(words, vocabulary, size, always)
    ids = sorted(vocabulary[token] for token in kept)
    weights = load_file(checkpoint / "model.safetensors")
    weights = {name: value for name, value in weights.items() if not name.startswith(UNUSED)}
    words_of = next(name for name in weights if name.endswith(WORD_EMBEDDINGS))
    weights[words_of] = weights[words_of][ids].contiguous()
    with atomic_directory(out) as folder:
        for name in KEPT_FILES:
            if (checkpoint / name).exists():
                (folder / name).parent.mkdir(exist_ok=True)
                shutil.copy(checkpoint / name, folder / name)
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        new = trimmed(tokenizer, ids)
        (folder / "tokenizer.json").write_text(json.dumps(new, ensure_ascii=False), encoding="utf-8")
        config = read_json(checkpoint / "config.json") | {"vocab_size": len(ids)}
        (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")


@command
def main() -> None:
    """Command line."""
    arguments = parse(TrimArguments, "recipes.mini.trim", __doc__)
    if not arguments.out.exists():
        tokenizer = Tokenizer.from_file(str(arguments.checkpoint / "tokenizer.json"))
        texts = (text for path in arguments.data for text, _ in read_text_pairs(path, Columns()))
        trim(arguments.checkpoint, arguments.out, count_words(tokenizer, texts), arguments.vocab_size)
    print(f"checkpoint -> {arguments.out}")


if __name__ == "__main__":
    main()
