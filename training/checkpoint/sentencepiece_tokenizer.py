"""Convert the SentencePiece models of known families into tokenizers, with the ids and offsets of transformers.

Checkpoints of XLM-RoBERTa, CamemBERT, ALBERT and DeBERTa (v2, v3) may hold a SentencePiece model instead of
`tokenizer.json`. Its pieces get the ids that the family gives them: fairseq's special tokens come first in XLM-RoBERTa
and CamemBERT, and DeBERTa's [MASK] comes last.

Sources: `convert_slow_tokenizer` in transformers 4.57; Kudo and Richardson 2018, arXiv:1808.06226.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from tasks.json_files import read_flag, read_optional_json
from tasks.regular import read_regular
from tasks.tokenizer_files import (
    BPE_FILES,
    CONFIG_FILE,
    MAX_CONFIG_BYTES,
    MAX_FILE_BYTES,
    SAVE_FAST,
    SENTENCEPIECE_FILES,
    TOKENIZER_CONFIG_FILE,
    TOKENIZER_FILE,
    VOCAB_FILE,
    is_rust_panic,
    read_tokenizer_class,
    short_class_name,
)
from training.checkpoint.added_tokens import ADDITIONAL, DECODER, add_named_tokens

SPACE = "▁"
"""Stands for a space in pieces."""
_CONTROL, _USER_DEFINED = 3, 4
"""Types of pieces that are never part of a longer piece."""
_UNUSED_PENALTY = 100
"""Subtracted from the score of pieces that a family never uses."""

_Pieces = list[tuple[str, float]]
"""Pieces and their scores; the position of a piece is its id."""
_Normalizers = Callable[[Mapping[str, bool], list[normalizers.Normalizer]], list[normalizers.Normalizer]]


@dataclass(frozen=True, kw_only=True)
class _Family:
    """Tokenizer of a family: ids of pieces, special tokens, normalizers and template."""

    file: str
    pieces: Callable[[_Pieces], _Pieces]
    """Return the vocabulary for the pieces of a file."""
    tokens: Mapping[str, AddedToken | str]
    """Role -> special token, unless the checkpoint names another."""
    template: tuple[str, str]
    """Sequences of a single text and of a pair."""
    additional: tuple[str, ...] = ()
    """Special tokens without a role."""
    flags: Mapping[str, bool] = field(default_factory=dict)
    """Keys of `tokenizer_config.json` that are read, and their defaults."""
    first_pieces: tuple[str, ...] = ()
    """Pieces that the file must begin with, because `pieces` replaces them."""
    unk_id: int | None = None
    """Id of unknown pieces; None for the one that the file names."""
    normalizers: _Normalizers
    """Return the normalizers, given the values of `flags` and the normalizer of the file, if it has one."""


def _xlm_roberta_pieces(pieces: _Pieces) -> _Pieces:
    return [*((token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")), *pieces[3:], ("<mask>", 0.0)]


def _camembert_pieces(pieces: _Pieces) -> _Pieces:
    first = [(token, 0.0) for token in ("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>")]
    return [*first, ("<unk>NOTUSED", -float(_UNUSED_PENALTY)), *pieces[1:], ("<mask>", 0.0)]


def _albert_pieces(pieces: _Pieces) -> _Pieces:
    """Make pieces such as `9,` unlikely, so that a comma behind a digit is a token of its own."""
    return [
        (piece, score - _UNUSED_PENALTY if piece[-1:] == "," and piece[-2:-1].isdigit() else score)
        for piece, score in pieces
    ]


def _roberta_normalizers(
    flags: Mapping[str, bool], charsmap: list[normalizers.Normalizer]
) -> list[normalizers.Normalizer]:
    return [*charsmap, normalizers.Strip(left=False, right=True), normalizers.Replace(Regex(" {2,}"), SPACE)]


def _albert_normalizers(
    flags: Mapping[str, bool], charsmap: list[normalizers.Normalizer]
) -> list[normalizers.Normalizer]:
    return [
        normalizers.Replace("``", '"'),
        normalizers.Replace("''", '"'),
        *([] if flags["keep_accents"] else [normalizers.NFKD(), normalizers.StripAccents()]),
        *([normalizers.Lowercase()] if flags["do_lower_case"] else []),
        *charsmap,
        normalizers.Replace(Regex(" {2,}"), " "),
    ]


def _deberta_normalizers(
    flags: Mapping[str, bool], charsmap: list[normalizers.Normalizer]
) -> list[normalizers.Normalizer]:
    return [
        *([normalizers.Lowercase()] if flags["do_lower_case"] else []),
        normalizers.Strip(),
        *charsmap,
        normalizers.Replace(Regex(" {2,}"), " "),
    ]


_ROBERTA_TOKENS: dict[str, AddedToken | str] = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "sep_token": "</s>",
    "pad_token": "<pad>",
    "cls_token": "<s>",
    "mask_token": AddedToken("<mask>", lstrip=True, normalized=False, special=True),
}
"""Roles in the order in which transformers adds tokens that are not in the vocabulary."""
_ROBERTA_TEMPLATE = ("<s> $A </s>", "<s> $A </s> </s> $B </s>")
_BERT_TOKENS: dict[str, AddedToken | str] = {
    "bos_token": "[CLS]",
    "eos_token": "[SEP]",
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}
_BERT_TEMPLATE = ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1")

_FAMILIES = {
    "XLMRoberta": _Family(
        file="sentencepiece.bpe.model",
        pieces=_xlm_roberta_pieces,
        tokens=_ROBERTA_TOKENS,
        template=_ROBERTA_TEMPLATE,
        first_pieces=("<unk>", "<s>", "</s>"),
        unk_id=3,
        normalizers=_roberta_normalizers,
    ),
    "Camembert": _Family(
        file="sentencepiece.bpe.model",
        pieces=_camembert_pieces,
        tokens=_ROBERTA_TOKENS,
        additional=("<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"),
        template=_ROBERTA_TEMPLATE,
        first_pieces=("<unk>",),
        unk_id=3,
        normalizers=_roberta_normalizers,
    ),
    "Albert": _Family(
        file="spiece.model",
        pieces=_albert_pieces,
        tokens=_BERT_TOKENS
        | {
            "unk_token": "<unk>",
            "pad_token": "<pad>",
            "mask_token": AddedToken("[MASK]", lstrip=True, normalized=False),
        },
        template=_BERT_TEMPLATE,
        flags={"do_lower_case": True, "keep_accents": False},
        normalizers=_albert_normalizers,
    ),
    "DebertaV2": _Family(
        file="spm.model",
        pieces=lambda pieces: pieces,
        tokens=_BERT_TOKENS | {"unk_token": AddedToken("[UNK]", normalized=True, special=True)},
        template=_BERT_TEMPLATE,
        flags={"do_lower_case": False, "split_by_punct": False},
        normalizers=_deberta_normalizers,
    ),
}
"""Tokenizer class in transformers, without `Tokenizer` and `Fast` -> tokenizer of the family."""
_CLASS_OF_MODEL_TYPE = {
    "xlm-roberta": "XLMRoberta",
    "camembert": "Camembert",
    "albert": "Albert",
    "deberta-v2": "DebertaV2",
}
"""`model_type` -> tokenizer class of checkpoints that name none."""
_ONLY: dict[str, Any] = {
    "add_prefix_space": True,
    "do_lower_case": False,
    "extra_special_tokens": {},
    "keep_accents": True,
    "remove_space": True,
    "sp_model_kwargs": {},
    "split_by_punct": False,
    "split_special_tokens": False,
    "truncation_side": "right",
    "vocab_type": "spm",
}
"""Keys of `tokenizer_config.json` -> the only value that is computed here, unless the family reads the key."""
_WITHOUT_EFFECT = {
    *("clean_up_tokenization_spaces", "chat_template", "from_slow", "full_tokenizer_file", "init_inputs", "legacy"),
    *("local_files_only", "max_len", "max_length", "model_input_names", "model_max_length", "name_or_path"),
    *(
        "pad_to_multiple_of",
        "pad_token_type_id",
        "padding",
        "padding_side",
        "processor_class",
        "special_tokens_map_file",
    ),
    *("stride", "tokenizer_class", "tokenizer_file", "truncation", "truncation_strategy", "use_fast", "vocab_file"),
}
"""Keys of `tokenizer_config.json` that change no ids."""


def find_sentencepiece(directory: Path) -> Path | None:
    """Return the SentencePiece model that is the tokenizer of a checkpoint; None if another file is.

    Raises:
        ValueError: if a file is broken, or if there is only a SentencePiece model, and of an unknown family.
    """
    found = next((directory / name for name in SENTENCEPIECE_FILES if (directory / name).is_file()), None)
    if found is None or (directory / TOKENIZER_FILE).is_file():
        return None
    name = _tokenizer_class(directory)
    if name in _FAMILIES and (directory / _FAMILIES[name].file).is_file():
        return directory / _FAMILIES[name].file
    if any((directory / other).is_file() for other in (VOCAB_FILE, BPE_FILES[0])):
        return None
    converted = ", ".join(f"{name}'s `{family.file}`" for name, family in _FAMILIES.items())
    raise ValueError(
        f"`{found}` is a SentencePiece model of {f'`{name}`' if name else 'an unknown family'}, and these are "
        f"converted: {converted}; {SAVE_FAST}"
    )


def convert_sentencepiece(path: Path) -> tokenizers.Tokenizer:
    """Convert the SentencePiece model of a checkpoint, which `find_sentencepiece` returned.

    Raises:
        ValueError: naming the file that is broken, or the setting that is not computed here.
    """
    family, config_path = _FAMILIES[_tokenizer_class(path.parent)], path.with_name(TOKENIZER_CONFIG_FILE)
    config = read_optional_json(config_path, MAX_CONFIG_BYTES)
    _check_settings(config, family, config_path)
    flags = {key: read_flag(config, key, config_path, default=default) for key, default in family.flags.items()}
    backend = _convert_model(_read_model(path), family, flags, path)
    add_named_tokens(backend, path.parent, config, family.tokens, family.additional)
    _set_template(backend, family, path)
    return tokenizers.Tokenizer.from_str(backend.to_str())  # a file would round the scores, and change the digest


def _tokenizer_class(directory: Path) -> str:
    """Return the tokenizer class, a key of `_FAMILIES`, that files name or imply; empty if they do not."""
    for file in (TOKENIZER_CONFIG_FILE, CONFIG_FILE):
        if name := read_tokenizer_class(directory / file):
            return short_class_name(name)
    return _CLASS_OF_MODEL_TYPE.get(
        str(read_optional_json(directory / CONFIG_FILE, MAX_CONFIG_BYTES).get("model_type")), ""
    )


def _check_settings(config: Mapping[str, Any], family: _Family, path: Path) -> None:
    """Raise for settings that may change ids and are not computed here."""
    known = {*family.flags, *family.tokens, ADDITIONAL, DECODER, *_WITHOUT_EFFECT}
    for key, value in config.items():
        if key not in known and value is not None and not (key in _ONLY and value == _ONLY[key]):
            raise ValueError(f"`{path}` has {key} `{json.dumps(value)[:60]}`, which is not read; {SAVE_FAST}")


# The model


def _read_model(path: Path) -> Any:
    """Return a SentencePiece model as a `ModelProto`.

    Raises:
        ValueError: if it is broken, or has an option that is not converted.
    """
    from google.protobuf.message import DecodeError
    from sentencepiece import sentencepiece_model_pb2

    try:
        proto = sentencepiece_model_pb2.ModelProto.FromString(read_regular(path, MAX_FILE_BYTES))  # type: ignore[attr-defined]
    except (DecodeError, ValueError) as error:
        raise ValueError(f"broken SentencePiece model `{path}`: {error}") from error
    trainer, normalizer = proto.trainer_spec, proto.normalizer_spec
    if not proto.pieces:
        raise ValueError(f"broken SentencePiece model `{path}`: it has no pieces")
    unknown = {
        f"model_type {trainer.ModelType.Name(trainer.model_type)}": trainer.model_type != trainer.UNIGRAM,
        "byte_fallback": trainer.byte_fallback,
        "treat_whitespace_as_suffix": trainer.treat_whitespace_as_suffix,
        "no add_dummy_prefix": not normalizer.add_dummy_prefix,
        "no escape_whitespaces": not normalizer.escape_whitespaces,
    }
    if found := next((name for name, is_set in unknown.items() if is_set), None):
        raise ValueError(f"the SentencePiece model `{path}` has {found}, which is not converted; {SAVE_FAST}")
    return proto


def _convert_model(proto: Any, family: _Family, flags: Mapping[str, bool], path: Path) -> tokenizers.Tokenizer:
    _check_first_pieces(proto, family, path)
    pieces = family.pieces([(piece.piece, piece.score) for piece in proto.pieces])
    unk_id = proto.trainer_spec.unk_id if family.unk_id is None else family.unk_id
    try:
        backend = tokenizers.Tokenizer(models.Unigram(pieces, unk_id, byte_fallback=False))
        charsmap = proto.normalizer_spec.precompiled_charsmap
        steps = family.normalizers(flags, [normalizers.Precompiled(charsmap)] if charsmap else [])
    except BaseException as error:  # tokenizers raises bare Exception, or panics
        if not isinstance(error, Exception) and not is_rust_panic(error):
            raise
        raise ValueError(f"broken SentencePiece model `{path}`: {error}") from error
    backend.add_tokens(
        [
            AddedToken(piece.piece, normalized=False, special=piece.type == _CONTROL)
            for piece in proto.pieces
            if piece.type in (_CONTROL, _USER_DEFINED)
        ]
    )
    backend.normalizer = normalizers.Sequence(steps)
    spaces = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always")
    marks = [pre_tokenizers.Punctuation(behavior="isolated")] if flags.get("split_by_punct") else []
    backend.pre_tokenizer = pre_tokenizers.Sequence([*marks, spaces]) if "split_by_punct" in flags else spaces
    backend.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme="always")
    return backend


def _check_first_pieces(proto: Any, family: _Family, path: Path) -> None:
    first = tuple(piece.piece for piece in proto.pieces[: len(family.first_pieces)])
    if first != family.first_pieces:
        expected = ", ".join(f"`{piece}`" for piece in family.first_pieces)
        raise ValueError(f"the SentencePiece model `{path}` does not begin with {expected}; it is of another family")


def _set_template(backend: tokenizers.Tokenizer, family: _Family, path: Path) -> None:
    tokens = dict.fromkeys(part for part in family.template[0].split() if not part.startswith("$"))
    ids = {token: backend.token_to_id(token) for token in tokens}
    if missing := next((token for token, index in ids.items() if index is None), None):
        raise ValueError(f"the vocabulary of `{path}` lacks `{missing}`; it is of another family")
    single, pair = family.template
    backend.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=list(ids.items()))
