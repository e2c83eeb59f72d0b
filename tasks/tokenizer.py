"""WordPiece tokenizer of a checkpoint or model directory: ids and offsets, special tokens, assembly of sequences.

from tasks.tokenizer import Tokenizer
tokenizer = Tokenizer.load("runs/demo/checkpoint")
tokenizer.tokenize(["Hello!"])[0].ids
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from tasks.json_files import read_flag, read_json

TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
TOKENIZER_FILES = (TOKENIZER_FILE, TOKENIZER_CONFIG_FILE, "vocab.txt", "special_tokens_map.json")
"""What a checkpoint may hold of its tokenizer."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """One tokenised text, without special tokens."""

    ids: np.ndarray
    """[length] int64"""
    encoding: tokenizers.Encoding
    """What else is known of them."""

    @property
    def offsets(self) -> np.ndarray:
        """[length, 2] int64, code points of the text, end exclusive; made anew each time, as few tasks need them."""
        return np.array(self.encoding.offsets, dtype=np.int64).reshape(-1, 2)

    def __len__(self) -> int:
        return len(self.ids)


class Tokenizer:
    """A Hugging Face `tokenizers` tokenizer with BERT's special tokens. Never pads or truncates by itself."""

    def __init__(self, backend: tokenizers.Tokenizer, *, source: str = "tokenizer") -> None:
        backend.no_padding()
        backend.no_truncation()
        self.backend = backend
        self.vocab_size = 1 + max(backend.get_vocab().values(), default=-1)  # there may be ids without a token
        self.cls_id, self.sep_id, self.pad_id, self.mask_id, self.unk_id = (
            _special_id(backend, token, source) for token in ("[CLS]", "[SEP]", "[PAD]", "[MASK]", "[UNK]")
        )
        unknown = getattr(backend.model, "unk_token", None)
        if unknown is not None and backend.model.token_to_id(unknown) is None:
            raise ValueError(f"the vocabulary of `{source}` lacks its unk_token, `{unknown}`")

    @classmethod
    def load(cls, directory: str | Path) -> Tokenizer:
        """Load `tokenizer.json`, or build the same from `vocab.txt` and `tokenizer_config.json`.

        Raises:
            ValueError: naming the directory, when it holds neither, or the file that is broken or contradicts another.
        """
        directory = Path(directory)
        path = directory / TOKENIZER_FILE
        if path.is_file():
            try:
                backend = tokenizers.Tokenizer.from_file(str(path))
            except BaseException as error:  # tokenizers raises bare Exception, or panics
                if not isinstance(error, Exception) and not is_panic(error):
                    raise
                raise ValueError(f"not a tokenizer file: `{path}` ({error})") from error
            _check_agreement(backend, path, directory / TOKENIZER_CONFIG_FILE)
            return cls(backend, source=str(path))
        if (directory / "vocab.txt").is_file():
            return cls(_from_vocab_txt(directory), source=str(directory / "vocab.txt"))
        raise ValueError(f"no `{TOKENIZER_FILE}` or `vocab.txt` in `{directory}`; a checkpoint needs its tokenizer")

    @property
    def digest(self) -> str:
        """SHA-256 of all that it does with text, hexadecimal."""
        return hashlib.sha256(self.backend.to_str().encode()).hexdigest()

    def tokenize(self, texts: Sequence[str]) -> list[Tokens]:
        """Tokenise texts, without special tokens."""
        return [Tokens(np.array(encoding.ids, dtype=np.int64), encoding) for encoding in self._encode(texts)]

    def _encode(self, texts: Sequence[str]) -> list[tokenizers.Encoding]:
        try:
            if len(texts) == 1:  # two thirds of the time that a batch of one takes
                return [self.backend.encode(texts[0], add_special_tokens=False)]
            return self.backend.encode_batch(list(texts), add_special_tokens=False)
        except BaseException as error:
            if not is_panic(error):
                raise
            raise ValueError(f"the tokenizer cannot read a text: {error}") from error

    @property
    def lowercases(self) -> bool:
        """Whether capitals become small letters before anything else."""
        return self.backend.normalizer is not None and self.backend.normalizer.normalize_str("A") == "a"

    def words(self, text: str) -> list[tuple[int, int]]:
        """Where the words of a text stand that the tokenizer sees, (start, end) in code points, `with_marks`."""
        (encoding,) = self._encode([text])
        bounds: list[tuple[int, int]] = []
        previous = None
        for word, (start, end) in zip(encoding.word_ids, encoding.offsets, strict=True):
            if word == previous:
                start, _ = bounds.pop()
            bounds.append((start, end))
            previous = word
        return with_marks(text, bounds)

    def token(self, token_id: int) -> str:
        """The token of an id; empty for an id without one."""
        return self.backend.id_to_token(token_id) or ""

    def token_id(self, token: str) -> int | None:
        """The id of a token, None where the vocabulary lacks it."""
        return self.backend.token_to_id(token)

    def continues_word(self) -> np.ndarray:
        """[vocabulary] bool: which tokens are pieces (`##ing`) of the word that the token before belongs to."""
        return np.array([self.token(index).startswith("##") for index in range(self.vocab_size)])

    def assemble(self, first_ids: np.ndarray, second_ids: np.ndarray | None = None) -> dict[str, Any]:
        """`[CLS] first [SEP]` or `[CLS] first [SEP] second [SEP]` with token types 0 and 1.

        Returns:
            The fields of `Features`: `input_ids` and `token_type_ids`, each [length] int64.
        """
        parts = [np.array([self.cls_id]), first_ids, np.array([self.sep_id])]
        if second_ids is not None:
            parts += [second_ids, np.array([self.sep_id])]
        input_ids = np.concatenate(parts).astype(np.int64, copy=False)
        token_type_ids = np.zeros(len(input_ids), dtype=np.int64)
        token_type_ids[len(first_ids) + 2 :] = 1
        return {"input_ids": input_ids, "token_type_ids": token_type_ids}


def is_panic(error: BaseException) -> bool:
    """Whether an error is a panic of Rust, whose class is no `Exception` and exported by no module."""
    return type(error).__name__ == "PanicException"


_FIRST_MARK = "\u0300"


def with_marks(text: str, bounds: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Places (start, end) in a text, in its order, each with the combining marks behind it that are in no place: an
    accent on the last letter may be a code point of its own, which the tokenizer drops."""
    if text.isascii():
        return list(bounds)
    limits = [*(start for start, _ in bounds), len(text)][1:]
    return [(start, _end_of_marks(text, end, limit)) for (start, end), limit in zip(bounds, limits, strict=True)]


def _end_of_marks(text: str, end: int, limit: int) -> int:
    while end < limit and text[end] >= _FIRST_MARK and unicodedata.category(text[end]).startswith("M"):
        end += 1
    return end


def _special_id(backend: tokenizers.Tokenizer, token: str, source: str) -> int:
    token_id = backend.token_to_id(token)
    if token_id is None:
        raise ValueError(
            f"the vocabulary of `{source}` lacks `{token}`; only BERT's WordPiece tokenizers are supported"
        )
    return token_id


def _from_vocab_txt(directory: Path) -> tokenizers.Tokenizer:
    vocab_path = directory / "vocab.txt"
    config = _read_config(directory / TOKENIZER_CONFIG_FILE)
    try:
        # not splitlines(): a token may hold U+2028, U+0085 and their like
        vocab = vocab_path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        _check_added(vocab, directory / "added_tokens.json")
        return build_tokenizer(
            vocab,
            lowercase=config.get("do_lower_case", True),
            strip_accents=config.get("strip_accents"),
            split_cjk=config.get("tokenize_chinese_chars", True),
        )
    except ValueError as error:
        raise ValueError(f"broken vocabulary `{vocab_path}`: {error}") from error


def _check_added(vocab: Sequence[str], path: Path) -> None:
    """Whether tokens that were added to a vocabulary stand in it."""
    for token, token_id in (read_json(path) if path.is_file() else {}).items():
        if not isinstance(token_id, int) or vocab[token_id : token_id + 1] != [token]:
            raise ValueError(
                f"`{path}` adds `{token}`, which is not in it; save the tokenizer as `{TOKENIZER_FILE}` "
                "(transformers: `AutoTokenizer.from_pretrained(...).save_pretrained(...)`)"
            )


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    config = read_json(path)
    for key in _NORMALIZER_KEYS:
        if key != "strip_accents" or config.get(key) is not None:
            read_flag(config, key, path)
    return config


_NORMALIZER_KEYS = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
"""Of `tokenizer_config.json` -> those of a BertNormalizer in `tokenizer.json`, which say the same."""


def _check_agreement(backend: tokenizers.Tokenizer, path: Path, config_path: Path) -> None:
    """Refuse a `tokenizer.json` that normalises otherwise than its configuration, which transformers obeys, says."""
    config, normalizer = _read_config(config_path), backend.normalizer
    if config.get("tokenizer_class") == "PreTrainedTokenizerFast":  # to which that says nothing
        return
    for key, name in _NORMALIZER_KEYS.items():
        if key in config and isinstance(normalizer, tokenizers.normalizers.BertNormalizer):
            pair = [config[key], getattr(normalizer, name)]
            if key == "strip_accents":  # null is as lowercase says
                pair = [normalizer.lowercase if value is None else value for value in pair]
            if pair[0] != pair[1]:
                said = str(config[key]).lower()
                raise ValueError(
                    f"`{config_path}` says {key} `{said}` where `{path}` does otherwise; "
                    "change the one that was not there in training"
                )


def build_tokenizer(
    vocab: Sequence[str], *, lowercase: bool = True, strip_accents: bool | None = None, split_cjk: bool = True
) -> tokenizers.Tokenizer:
    """BERT's tokenizer over a vocabulary: clean, split CJK, lower-case and strip accents, split punctuation, WordPiece.

    Args:
        vocab: tokens; the position of a token is its id.
        strip_accents: None ties it to `lowercase`, as the reference code does.
    """
    token_ids = {token: index for index, token in enumerate(vocab)}
    missing = [token for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if token not in token_ids]
    if missing:
        raise ValueError(f"the vocabulary lacks {', '.join(f'`{token}`' for token in missing)}")
    backend = tokenizers.Tokenizer(
        tokenizers.models.WordPiece(token_ids, unk_token="[UNK]", max_input_chars_per_word=100)
    )
    backend.normalizer = tokenizers.normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=split_cjk, strip_accents=strip_accents, lowercase=lowercase
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    backend.decoder = tokenizers.decoders.WordPiece(prefix="##")
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", token_ids["[CLS]"]), ("[SEP]", token_ids["[SEP]"])],
    )
    backend.add_special_tokens(
        [tokenizers.AddedToken(token, special=True) for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")]
    )
    return backend
