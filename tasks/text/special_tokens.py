"""Special tokens of a tokenizer by role: padding, unknown words, masks.

A checkpoint names them in `tokenizer_config.json` or `special_tokens_map.json`. A model directory has only
`tokenizer.json`, where they are found by their usual names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import tokenizers

USUAL_NAMES = {
    "pad_token": ("[PAD]", "<pad>"),
    "unk_token": ("[UNK]", "<unk>"),
    "mask_token": ("[MASK]", "<mask>"),
}
"""Role -> usual names of the token, for tokenizers whose files name none."""


@dataclass(frozen=True)
class SpecialTokens:
    """Ids of special tokens by role."""

    pad_id: int
    """Padding; 0 in a tokenizer without such a token, since padding is never attended to."""
    unk_id: int
    """Unknown words; -1 in a tokenizer that has a token for every byte."""
    mask_id: int | None
    """Masked tokens; None in a tokenizer without masks."""


def find_special_tokens(
    backend: tokenizers.Tokenizer, names: Mapping[str, str], source: str = "tokenizer"
) -> SpecialTokens:
    """Find the special tokens of a tokenizer.

    Args:
        names: role -> token, from `tokenizer_files.read_special_names`; other roles are found by their usual names.
        source: name of the file, for errors.

    Raises:
        ValueError: if a named token is not in the vocabulary.
    """
    names = dict(names)
    if unknown := getattr(backend.model, "unk_token", None):
        names["unk_token"] = unknown
    ids: dict[str, int | None] = {}
    for role, usual in USUAL_NAMES.items():
        if role in names and backend.token_to_id(names[role]) is None:
            raise ValueError(f"the vocabulary of `{source}` lacks its {role}, `{names[role]}`")
        candidates = [names[role]] if role in names else usual
        ids[role] = next((index for token in candidates if (index := backend.token_to_id(token)) is not None), None)
    unk_id = ids["unk_token"]
    return SpecialTokens(ids["pad_token"] or 0, -1 if unk_id is None else unk_id, ids["mask_token"])
