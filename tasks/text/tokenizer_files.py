"""Tokenizer files of a checkpoint or model directory: reading, checking, and building from a vocabulary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tokenizers

from tasks.text.json_files import open_regular, read_flag, read_optional_json
from tasks.text.sequence_template import bert_template

TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
VOCAB_FILE = "vocab.txt"
BPE_FILES = ("vocab.json", "merges.txt")
SPECIAL_TOKENS_MAP_FILE = "special_tokens_map.json"
ADDED_TOKENS_FILE = "added_tokens.json"
CONFIG_FILE = "config.json"
SENTENCEPIECE_FILES = ("sentencepiece.bpe.model", "spiece.model", "spm.model", "tokenizer.model")
"""Names of SentencePiece models."""
TOKENIZER_FILES = (TOKENIZER_FILE, TOKENIZER_CONFIG_FILE, VOCAB_FILE, *BPE_FILES, SPECIAL_TOKENS_MAP_FILE)
"""Files of a checkpoint that define its tokenizer; any may be missing."""
MAX_FILE_BYTES, MAX_ADDED_TOKENS = 32 * 2**20, 100_000
"""Limits of `tokenizer.json` and of files with a vocabulary. Reading one holds the interpreter lock, and stops all
threads, for about 50 ms a MB."""
MAX_CONFIG_BYTES = 2**20
"""Largest `tokenizer_config.json`."""

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""Special tokens of BERT."""
USUAL_NAMES = {
    "pad_token": ("[PAD]", "<pad>"),
    "unk_token": ("[UNK]", "<unk>"),
    "mask_token": ("[MASK]", "<mask>"),
}
"""Role of a special token -> its usual names, for files that name none, as in a model directory."""
_BERT_TOKENIZERS = {
    *("PreTrained", "Auto", "Bert", "DistilBert", "Electra", "MobileBert", "ConvBert", "SqueezeBert", "RetriBert"),
    *("LayoutLM", "Lxmert", "DPRQuestionEncoder", "DPRContextEncoder", "DPRReader"),
}
"""Tokenizer classes of transformers, without `Tokenizer` and `Fast`, that read `vocab.txt` as BERT does, or as any."""
_NORMALIZER_FIELDS = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
"""Keys of `tokenizer_config.json` -> fields of the BertNormalizer in `tokenizer.json` with the same meaning."""
SAVE_FAST = f"save the tokenizer as `{TOKENIZER_FILE}` (transformers: `save_pretrained` of a fast tokenizer)"
"""Remedy for tokenizers that are not read."""


def load_backend(directory: str | Path) -> tuple[tokenizers.Tokenizer, Path]:
    """Load `tokenizer.json`, or build the same from `vocab.txt`.

    Returns:
        The tokenizer, and the file it came from.

    Raises:
        ValueError: naming the file that is missing or broken, or that contradicts another.
    """
    directory = Path(directory)
    path, vocab_path = directory / TOKENIZER_FILE, directory / VOCAB_FILE
    if path.is_file():
        _check_size(path)
        backend = _read_tokenizer_file(path)
        check_agreement(backend, path, directory / TOKENIZER_CONFIG_FILE)
        return backend, path
    if (found := find_unconverted(directory)) is None and vocab_path.is_file():
        _check_classes(directory)
        _check_size(vocab_path)
        return _read_vocab_file(vocab_path), vocab_path
    if found:
        raise ValueError(f"`{found}` is read only by training and export, which convert it; {SAVE_FAST}")
    if not directory.is_dir():
        raise ValueError(f"no such directory: `{directory}`; it should have a `{TOKENIZER_FILE}` or `{VOCAB_FILE}`")
    raise ValueError(f"no `{TOKENIZER_FILE}` or `{VOCAB_FILE}` in `{directory}`; a checkpoint needs its tokenizer")


def find_unconverted(directory: Path) -> Path | None:
    """Return the file that must be converted first; None with `tokenizer.json`, or with `vocab.txt` alone."""
    if (directory / TOKENIZER_FILE).is_file():
        return None
    found = next((directory / name for name in SENTENCEPIECE_FILES if (directory / name).is_file()), None)
    is_bpe = not (directory / VOCAB_FILE).is_file() and all((directory / name).is_file() for name in BPE_FILES)
    return directory / BPE_FILES[0] if found is None and is_bpe else found


def build_tokenizer(
    vocab: Sequence[str], *, lowercase: bool = True, strip_accents: bool | None = None, split_cjk: bool = True
) -> tokenizers.Tokenizer:
    """Build BERT's tokenizer: clean, split CJK, lower-case and strip accents, split punctuation, WordPiece.

    Args:
        vocab: tokens; the position of a token is its id.
        strip_accents: None for the value of `lowercase`, as in the reference code.

    Raises:
        ValueError: naming the special tokens that the vocabulary lacks.
    """
    token_ids = {token: index for index, token in enumerate(vocab)}
    if missing := [token for token in SPECIAL_TOKENS if token not in token_ids]:
        raise ValueError(f"the vocabulary lacks {', '.join(f'`{token}`' for token in missing)}")
    backend = tokenizers.Tokenizer(
        tokenizers.models.WordPiece(token_ids, unk_token="[UNK]", max_input_chars_per_word=100)
    )
    backend.normalizer = tokenizers.normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=split_cjk, strip_accents=strip_accents, lowercase=lowercase
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    backend.decoder = tokenizers.decoders.WordPiece(prefix="##")
    backend.post_processor = bert_template(backend)
    backend.add_special_tokens([tokenizers.AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    return backend


def is_rust_panic(error: BaseException) -> bool:
    """Return whether an error is a Rust panic. Its class is not an `Exception`, and no module exports it."""
    return type(error).__name__ == "PanicException"


@contextmanager
def panics_as_errors(problem: str = "the tokenizer cannot read a text") -> Iterator[None]:
    """Raise ValueError, the problem first, for a Rust panic."""
    try:
        yield
    except BaseException as error:
        if not is_rust_panic(error):
            raise
        raise ValueError(f"{problem}: {error}") from error


def _check_size(path: Path) -> None:
    """Refuse a file that would stop all other threads for seconds, or is not a regular file (`open_regular`)."""
    num_bytes, num_added = path.stat().st_size, 0
    if num_bytes > MAX_FILE_BYTES:
        raise ValueError(f"`{path}` has {num_bytes} bytes, {MAX_FILE_BYTES} fit; make a smaller vocabulary")
    with open_regular(path) as file:
        while block := file.read(2**20):
            num_added += block.count(b'"single_word"')  # once in each added token
    if num_added > MAX_ADDED_TOKENS:
        raise ValueError(
            f"`{path}` has {num_added} added tokens, {MAX_ADDED_TOKENS} fit; move them into the vocabulary itself"
        )


def _read_tokenizer_file(path: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except BaseException as error:  # tokenizers raises bare Exception, or panics
        if not isinstance(error, Exception) and not is_rust_panic(error):
            raise
        raise ValueError(f"not a tokenizer file: `{path}` ({error})") from error


def check_agreement(backend: tokenizers.Tokenizer, path: Path, config_path: Path) -> None:
    """Refuse a `tokenizer.json` that divides text differently from the files next to it, which transformers obeys."""
    config = _read_config(config_path)
    _check_added_names(backend, path, config)
    if dropout := getattr(backend.model, "dropout", None):
        raise ValueError(
            f"`{path}` has a dropout of `{dropout:g}` for BPE, so a text has other tokens each time; set it to null"
        )
    if read_flag(config, "split_special_tokens", config_path):
        raise ValueError(f"unsupported split_special_tokens `true` in `{config_path}`; remove it")
    splitter = backend.pre_tokenizer
    if "add_prefix_space" in config and isinstance(splitter, tokenizers.pre_tokenizers.ByteLevel):
        add_space = read_flag(config, "add_prefix_space", config_path)
        if add_space != splitter.add_prefix_space:
            raise _contradiction("add_prefix_space", add_space, path, config_path)
    _check_normalizer(backend.normalizer, path, config, config_path)


def _contradiction(key: str, value: Any, path: Path, config_path: Path) -> ValueError:
    return ValueError(
        f"`{config_path}` has {key} `{str(value).lower()}`, and `{path}` the opposite; "
        "correct the file that differs from training"
    )


def _check_added_names(backend: tokenizers.Tokenizer, path: Path, config: Mapping[str, Any]) -> None:
    """Refuse a tokenizer without the tokens that the files next to it add, as text would not be divided at them."""
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    for key in ("added_tokens_decoder", "extra_special_tokens", "additional_special_tokens"):
        given = config.get(key) or []
        tokens = list(given.values()) if isinstance(given, dict) else given
        names = [token.get("content") if isinstance(token, dict) else token for token in tokens]
        if missing := next((name for name in names if name not in known), None):
            raise ValueError(
                f"`{path.with_name(TOKENIZER_CONFIG_FILE)}` adds `{missing}` ({key}), which is no added token of "
                f"`{path}`; {SAVE_FAST}"
            )
    added = path.with_name(ADDED_TOKENS_FILE)
    if "added_tokens_decoder" in config:  # counts instead
        return
    if missing := next((name for name in read_optional_json(added) if name not in known), None):
        raise ValueError(f"`{added}` adds `{missing}`, which is no added token of `{path}`; {SAVE_FAST}")


def _check_normalizer(normalizer: Any, path: Path, config: Mapping[str, Any], config_path: Path) -> None:
    if config.get("tokenizer_class") == "PreTrainedTokenizerFast":  # ignores these keys
        return
    for key, name in _NORMALIZER_FIELDS.items():
        if key in config and isinstance(normalizer, tokenizers.normalizers.BertNormalizer):
            pair = [config[key], getattr(normalizer, name)]
            if key == "strip_accents":  # null stands for the value of `lowercase`
                pair = [normalizer.lowercase if value is None else value for value in pair]
            if pair[0] != pair[1]:
                raise _contradiction(key, config[key], path, config_path)


def _check_classes(directory: Path) -> None:
    """Refuse a `vocab.txt` of another tokenizer than BERT's: text would silently become other tokens."""
    for file in (TOKENIZER_CONFIG_FILE, CONFIG_FILE):
        name = read_tokenizer_class(directory / file)
        if name is not None and name.removesuffix("Fast").removesuffix("Tokenizer") not in _BERT_TOKENIZERS:
            raise ValueError(f"`{directory / file}` names `{name}`, which is not BERT's tokenizer; {SAVE_FAST}")


def read_tokenizer_class(path: Path) -> str | None:
    """Return the tokenizer class of transformers that a file names; None if it names none.

    Raises:
        ValueError: if the file is broken, or needs custom code.
    """
    values = read_optional_json(path, MAX_CONFIG_BYTES)
    name, code = values.get("tokenizer_class"), values.get("auto_map")
    if isinstance(code, dict) and "AutoTokenizer" in code:
        raise ValueError(f"`{path}` needs tokenizer code of its own (auto_map), which is not run; {SAVE_FAST}")
    return name if isinstance(name, str) else None


def _read_vocab_file(path: Path) -> tokenizers.Tokenizer:
    config = _read_config(path.with_name(TOKENIZER_CONFIG_FILE))
    try:
        # Not `splitlines()`: a token may contain U+2028, U+0085 and similar characters.
        vocab = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        _check_added_tokens(vocab, path.with_name(ADDED_TOKENS_FILE))
        return build_tokenizer(
            vocab,
            lowercase=config.get("do_lower_case", True),
            strip_accents=config.get("strip_accents"),
            split_cjk=config.get("tokenize_chinese_chars", True),
        )
    except ValueError as error:
        raise ValueError(f"broken vocabulary `{path}`: {error}") from error


def read_special_names(directory: Path) -> dict[str, str]:
    """Return the special tokens that the files of a checkpoint name: `pad_token` -> `<pad>`.

    Raises:
        ValueError: if a file is broken.
    """
    names: dict[str, str] = {}
    for file in (SPECIAL_TOKENS_MAP_FILE, TOKENIZER_CONFIG_FILE):
        path = directory / file
        values = read_optional_json(path, MAX_CONFIG_BYTES)
        for role in USUAL_NAMES:
            value = values.get(role)
            content = value.get("content") if isinstance(value, dict) else value
            if content is not None and not isinstance(content, str):
                raise ValueError(f"broken `{path}`: `{role}` must be a token, not `{str(value)[:60]}`")
            if content:
                names[role] = content
    return names


def _check_added_tokens(vocab: Sequence[str], path: Path) -> None:
    """Refuse added tokens that are not in the vocabulary under their id."""
    for token, token_id in read_optional_json(path).items():
        if not isinstance(token_id, int) or vocab[token_id : token_id + 1] != [token]:
            raise ValueError(f"`{path}` adds `{token}`, which is not in it; {SAVE_FAST}")


def _read_config(path: Path) -> dict[str, Any]:
    config = read_optional_json(path, MAX_CONFIG_BYTES)
    for key in _NORMALIZER_FIELDS:
        if key != "strip_accents" or config.get(key) is not None:
            read_flag(config, key, path)
    return config
