"""Add the special and other tokens that the files of a checkpoint name to a converted tokenizer.

`tokenizer_config.json` names special tokens by role and may list all added tokens (`added_tokens_decoder`). Without
such a list, `special_tokens_map.json` and `added_tokens.json` count. Tokens are added in the order of transformers,
which decides their ids.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import tokenizers
from tokenizers import AddedToken

from tasks.json_files import read_optional_json
from tasks.tokenizer_files import (
    ADDED_TOKENS_FILE,
    MAX_CONFIG_BYTES,
    SAVE_FAST,
    SPECIAL_TOKENS_MAP_FILE,
    TOKENIZER_CONFIG_FILE,
)

ADDITIONAL, DECODER = "additional_special_tokens", "added_tokens_decoder"
"""Keys of `tokenizer_config.json`: special tokens without a role, and all added tokens by id."""
_FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")

_Token: TypeAlias = AddedToken | str
"""A special token; one without settings of its own is a string, and is not added twice."""


def add_named_tokens(
    backend: tokenizers.Tokenizer,
    directory: Path,
    config: Mapping[str, Any],
    defaults: Mapping[str, Any],
    additional: Iterable[str],
) -> None:
    """Add tokens to a tokenizer.

    Args:
        config: values of `tokenizer_config.json`.
        defaults: role -> special token of the family, in the order in which they are added.
        additional: special tokens of the family without a role.

    Raises:
        ValueError: if a file is broken, or names an id that the token does not get.
    """
    defaults = {**defaults, ADDITIONAL: list(additional)}
    if DECODER in config:
        path = directory / TOKENIZER_CONFIG_FILE
        added = _read_decoder(config[DECODER], path)
        by_name = {token.content: token for token in added.values()}
        special = [by_name.get(str(token), token) for token in _special_tokens(config, defaults, path)]
    else:
        path = directory / ADDED_TOKENS_FILE
        map_path = directory / SPECIAL_TOKENS_MAP_FILE
        named = {**config, **_mark_special(read_optional_json(map_path, MAX_CONFIG_BYTES))}
        special = _special_tokens(
            named, defaults, map_path if map_path.is_file() else map_path.with_name(TOKENIZER_CONFIG_FILE)
        )
        explicit = _special_tokens({**dict.fromkeys(defaults), **named}, defaults, map_path)
        added = _read_added(path, set(map(str, explicit)))
    _add(backend, added, special)
    _check_ids(backend, added, path)


def _mark_special(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: {**value, "special": True} if isinstance(value, dict) else value for key, value in values.items()}


def _read_decoder(values: Any, path: Path) -> dict[int, AddedToken]:
    if not isinstance(values, dict) or not all(key.isdecimal() for key in values):
        raise ValueError(f"broken `{path}`: `{DECODER}` must map ids to tokens")
    return {int(key): _to_added_token(value, DECODER, path) for key, value in values.items()}


def _read_added(path: Path, special: set[str]) -> dict[int, AddedToken]:
    """Return the tokens of `added_tokens.json` by id."""
    added = {}
    for token, token_id in read_optional_json(path, MAX_CONFIG_BYTES).items():
        if not isinstance(token_id, int):
            raise ValueError(f"broken `{path}`: the id of `{token}` must be a number")
        is_special = token in special
        added[token_id] = AddedToken(token, normalized=not is_special, special=is_special)
    return added


def _special_tokens(values: Mapping[str, Any], defaults: Mapping[str, Any], path: Path) -> list[_Token]:
    """Return the special tokens that files name by role, or the defaults, each once."""
    tokens: list[_Token] = []
    for role, default in defaults.items():
        found = values.get(role, default)
        if role != ADDITIONAL:
            tokens += [_to_special_token(found, default, role, path)] if found else []
        elif isinstance(found or [], list):
            tokens += [_to_special_token(item, "", role, path) for item in found or []]
        else:
            raise ValueError(f"broken `{path}`: `{role}` must be a list of tokens")
    unique: dict[str, _Token] = {}
    for token in tokens:
        unique.setdefault(str(token), token)
    return list(unique.values())


def _to_special_token(value: Any, default: _Token, role: str, path: Path) -> _Token:
    """Convert a token of a file. A string has the settings of the family's own token of this role."""
    if isinstance(value, AddedToken):
        return copy.deepcopy(value)
    if not isinstance(value, str):
        return _to_added_token(value, role, path)
    if not isinstance(default, AddedToken):
        return value
    return AddedToken(value, lstrip=default.lstrip, normalized=default.normalized, special=default.special)


def _to_added_token(value: Any, key: str, path: Path) -> AddedToken:
    flags = {name: value[name] for name in _FLAGS if name in value} if isinstance(value, dict) else {}
    if not flags.keys() <= set(_FLAGS) or not all(isinstance(flag, bool) for flag in flags.values()):
        raise ValueError(f"broken `{path}`: the settings of a token of `{key}` must be true or false")
    if not isinstance(value, dict) or not isinstance(value.get("content"), str) or not value["content"]:
        raise ValueError(f"broken `{path}`: `{key}` must be a token, not `{str(value)[:60]}`")
    return AddedToken(value["content"], **flags)


def _add(backend: tokenizers.Tokenizer, added: Mapping[int, AddedToken], special: Iterable[_Token]) -> None:
    known = list(backend.get_added_tokens_decoder().values())
    tokens: list[_Token] = [token for _, token in sorted(added.items()) if repr(token) not in set(map(repr, known))]
    present = [*(token.content for token in known), *map(str, tokens)]
    # An `AddedToken` never equals a string: one with settings of its own is added again.
    tokens += [token for token in special if token not in present and token not in tokens]
    names = set(map(str, special))
    for number, token in enumerate(tokens):
        item = AddedToken(token) if isinstance(token, str) else token
        item.special = item.special or item.content in names
        tokens[number] = item
    backend.add_tokens(tokens)


def _check_ids(backend: tokenizers.Tokenizer, added: Mapping[int, AddedToken], path: Path) -> None:
    for token_id, token in added.items():
        if (found := backend.token_to_id(token.content)) != token_id:
            raise ValueError(
                f"`{path}` adds `{token.content}` with id {token_id}, where the vocabulary gives it {found}; "
                f"{SAVE_FAST}"
            )
