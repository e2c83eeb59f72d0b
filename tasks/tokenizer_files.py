"""Tokenizer files of a checkpoint or model directory: reading, checking, and building from a vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers

from tasks.json_files import read_flag, read_json
from tasks.text_streams import refuse_wide

TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
TOKENIZER_FILES = (TOKENIZER_FILE, TOKENIZER_CONFIG_FILE, "vocab.txt", "special_tokens_map.json")
"""What a checkpoint may hold of its tokenizer."""
MAX_FILE_BYTES, MAX_ADDED_TOKENS = 32 * 2**20, 100_000
"""Limits of a tokenizer file. Reading one holds the interpreter lock, some 50 ms for each MB: all threads wait."""
MAX_CONFIG_BYTES = 2**20
"""Largest `tokenizer_config.json`."""


def _check_size(path: Path) -> None:
    """Refuse a file that would stop all other threads for seconds."""
    num_bytes, num_added = path.stat().st_size, 0
    if num_bytes > MAX_FILE_BYTES:
        raise ValueError(f"`{path}` has {num_bytes} bytes, {MAX_FILE_BYTES} fit; make a smaller vocabulary")
    with path.open("rb") as file:
        while block := file.read(2**20):
            num_added += block.count(b'"single_word"')  # of which each has one
    if num_added > MAX_ADDED_TOKENS:
        raise ValueError(
            f"`{path}` has {num_added} added tokens, {MAX_ADDED_TOKENS} fit; let the vocabulary itself hold them"
        )


def load_backend(directory: str | Path) -> tuple[tokenizers.Tokenizer, Path]:
    """Load `tokenizer.json`, or build the same from `vocab.txt` and `tokenizer_config.json`.

    Returns:
        The tokenizer, and the file it came from.

    Raises:
        ValueError: naming the directory, when it holds neither, or the file that is broken or contradicts another.
    """
    directory = Path(directory)
    path = directory / TOKENIZER_FILE
    if path.is_file():
        _check_size(path)
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except BaseException as error:  # tokenizers raises bare Exception, or panics
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            raise ValueError(f"not a tokenizer file: `{path}` ({error})") from error
        _check_agreement(backend, path, directory / TOKENIZER_CONFIG_FILE)
        return backend, path
    if (directory / "vocab.txt").is_file():
        for name in (TOKENIZER_CONFIG_FILE, "config.json"):
            _check_class(directory / name)
        return _from_vocab_txt(directory), directory / "vocab.txt"
    raise ValueError(f"no `{TOKENIZER_FILE}` or `vocab.txt` in `{directory}`; a checkpoint needs its tokenizer")


def is_panic(error: BaseException) -> bool:
    """Whether an error is a panic of Rust, whose class is no `Exception` and exported by no module."""
    return type(error).__name__ == "PanicException"


def _from_vocab_txt(directory: Path) -> tokenizers.Tokenizer:
    vocab_path = directory / "vocab.txt"
    config = _read_config(directory / TOKENIZER_CONFIG_FILE)
    try:
        # not splitlines(): a token may hold U+2028, U+0085 and their like
        refuse_wide(vocab_path.read_bytes(), "it")
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


_SAME = {
    *("PreTrained", "Auto", "Bert", "DistilBert", "Electra", "MobileBert", "ConvBert", "SqueezeBert", "RetriBert"),
    *("LayoutLM", "Lxmert", "DPRQuestionEncoder", "DPRContextEncoder", "DPRReader"),
}
"""Classes of transformers, without `Tokenizer` and `Fast`, that read a `vocab.txt` as BERT does, or say nothing."""


def _check_class(path: Path) -> None:
    """Refuse a vocabulary whose tokenizer is another one than BERT's: its words would silently become other tokens."""
    values = read_json(path, MAX_CONFIG_BYTES) if path.is_file() else {}
    if not isinstance(values, dict):
        return
    name, code = values.get("tokenizer_class"), values.get("auto_map")
    if isinstance(code, dict) and "AutoTokenizer" in code:
        raise ValueError(f"`{path}` takes its tokenizer from code of its own (auto_map), which is not run; {_SAVE_IT}")
    if isinstance(name, str) and name.removesuffix("Fast").removesuffix("Tokenizer") not in _SAME:
        raise ValueError(f"`{path}` names `{name}`, which divides words otherwise than BERT's tokenizer; {_SAVE_IT}")


_SAVE_IT = (
    f"`{TOKENIZER_FILE}`, where the checkpoint can have one, would tell how (`save_pretrained` of a fast tokenizer)"
)


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
    config = read_json(path, MAX_CONFIG_BYTES)
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
