"""Split long texts into pieces that byte-level BPE and SentencePiece tokenizers turn into the same tokens.

These tokenizers begin a word at a single space between two visible characters, so text is split before such a space.
That is exact where three things hold, and the tokenizer's own file shows whether they do:

- the normalizer works on characters (or grapheme clusters) by themselves, and leaves one space there. Pairs of
  characters are tried with the backend itself: there is no Unicode table here.
- the pre-tokenizer ends a word there, whatever came before.
- no added token ("[SEP]") spans the position or ends there.

Texts without such spaces are not split.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

import tokenizers

from tasks.text._splitter import PIECE_CHARS, Piece

_SPACES = " \t\n\r\u00a0\u3000"
_CANDIDATE = re.compile(rf"(?<=\S)[{_SPACES}](?=\S)")
_MAX_CANDIDATES = 32
"""Maximum number of candidates in a piece to try, the last ones first."""
_MAX_SPANNING = 32
"""Maximum number of added tokens with a space in them."""
_MAX_KNOWN = 2**16
"""Maximum number of characters whose properties are kept, so that strangers cannot fill the memory."""
_CLUSTER_CHARS = 6
"""`Precompiled` replaces a grapheme cluster as a whole if it has fewer bytes than this."""
_WORD_MARK = "▁"
_SPANS_SPACE = re.compile(rf"[^\s{_WORD_MARK}]\s")
_LOCAL_NORMALIZERS = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "Precompiled", "Strip"}
"""Normalizers whose output around a space depends only on the adjacent characters."""
_PRE_TOKENIZERS = (["ByteLevel"], ["Metaspace"], ["WhitespaceSplit", "Metaspace"], ["Punctuation", "Metaspace"])
"""Pre-tokenizers that end a word before a space."""
_POST_PROCESSORS = {"BertProcessing", "RobertaProcessing", "ByteLevel", "TemplateProcessing"}


class SpaceSplitter:
    """Splitter of long texts, for one tokenizer: before spaces."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        """Prepare the splitter for a tokenizer that `can_split_at_spaces` accepts."""
        self._normalizer, self._pre_tokenizer = backend.normalizer, backend.pre_tokenizer
        self._spanning = _spanning_tokens(backend)
        added = [token.content for token in backend.get_added_tokens_decoder().values()]
        self._last_chars = {item[-1] for content in added for item in (content, self._normalize(content)) if item}
        """Last characters of added tokens. What follows such a token is not part of the text before it."""
        self._ends_words = functools.lru_cache(_MAX_KNOWN)(self._can_end)
        self._begins_words = functools.lru_cache(_MAX_KNOWN)(self._can_begin)
        types = [part["type"] for part in _parts(backend.pre_tokenizer, "pretokenizers")]
        mark = "Ġ" if types == ["ByteLevel"] else _WORD_MARK
        self.space_id: int | None = None if "WhitespaceSplit" in types else backend.token_to_id(mark)
        """Id of the token of a space by itself, which is behind that space in the text; None if it is elsewhere."""

    def split(self, text: str) -> Iterator[Piece]:
        """Split a text. The tokens of its pieces, in order, equal the tokens of the text."""
        start = 0
        while start < len(text):
            end = self._find_end(text, start)
            yield Piece(text[start:end], start)
            start = end

    def _find_end(self, text: str, start: int) -> int:
        limit = start + PIECE_CHARS
        if len(text) <= limit:
            return len(text)
        found = [match.start() for match in _CANDIDATE.finditer(text, start + 1, limit)]
        further = (match.start() for match in _CANDIDATE.finditer(text, limit - 1))
        for position in itertools.chain(reversed(found[-_MAX_CANDIDATES:]), further):
            if self._can_split_before(text, position):
                return position
        return len(text)

    def _can_split_before(self, text: str, position: int) -> bool:
        """Return whether the text has the same tokens if it is split before the space at a position."""
        return (
            self._ends_words(text[position - 1])
            and self._begins_words(text[position : position + 2])
            and self._is_inside_text(text[max(0, position - _CLUSTER_CHARS) : position])
            and not any(
                text.find(item, max(0, position - len(item) + 1), position + len(item) - 1) >= 0
                for item in self._spanning
            )
        )

    def _can_end(self, char: str) -> bool:
        """Return whether a character ends a word if a space follows."""
        if not _is_plain(char) or char in self._last_chars:
            return False
        return self._words(f"{char} a") == self._words(char) + self._words(" a")

    def _can_begin(self, pair: str) -> bool:
        """Return whether a space, which stays one, begins a word with the character behind it."""
        if not _is_plain(pair[1]):
            return False
        following = self._normalize(pair[1])
        space = self._normalize(f"a{pair}").removeprefix("a").removesuffix(following)
        is_one_space = len(space) == 1 and space.isspace() and following != "" and not following[0].isspace()
        return is_one_space and self._words(f"a{pair}") == self._words("a") + self._words(pair)

    def _is_inside_text(self, text: str) -> bool:
        """Return whether a text, once normalized, ends with a visible character, and not with an added token."""
        if any("\ud800" <= char <= "\udfff" for char in text):  # the backend refuses them, later
            return False
        last = self._normalize(text)[-1:]
        return last not in self._last_chars | {"", _WORD_MARK} and not last.isspace()

    def _words(self, text: str) -> list[str]:
        return [word for word, _ in self._pre_tokenizer.pre_tokenize_str(self._normalize(text))]

    def _normalize(self, text: str) -> str:
        return text if self._normalizer is None else str(self._normalizer.normalize_str(text))


def can_split_at_spaces(backend: tokenizers.Tokenizer) -> bool:
    """Return whether a space ends a word for a tokenizer, whatever surrounds it."""
    pre_tokenizer = _parts(backend.pre_tokenizer, "pretokenizers")
    normalized = [token.content for token in backend.get_added_tokens_decoder().values() if token.normalized]
    if backend.normalizer is not None:  # these tokens are found in normalized text
        normalized += [backend.normalizer.normalize_str(content) for content in normalized]
    return (
        [part["type"] for part in pre_tokenizer] in _PRE_TOKENIZERS
        and all(part.get("use_regex", True) and part.get("split", True) for part in pre_tokenizer)
        and all(part.get("replacement", _WORD_MARK) == _WORD_MARK for part in pre_tokenizer)
        and all(map(_is_local, _parts(backend.normalizer, "normalizers")))
        and all(part["type"] in _POST_PROCESSORS for part in _parts(backend.post_processor, "processors"))
        and (backend.normalizer is None or not any(map(_SPANS_SPACE.search, normalized)))
        and len(_spanning_tokens(backend)) <= _MAX_SPANNING
    )


def _parts(component: Any, key: str) -> list[dict[str, Any]]:
    """Return the definitions of a component of a tokenizer, or of its parts; empty for none."""
    definition = json.loads(component.__getstate__()) if component is not None else {}
    return definition[key] if definition.get("type") == "Sequence" else [definition] if definition else []


def _is_local(normalizer: Mapping[str, Any]) -> bool:
    if normalizer["type"] != "Replace":
        return normalizer["type"] in _LOCAL_NORMALIZERS
    pattern, content = normalizer["pattern"], normalizer["content"]
    if pattern == {"Regex": " {2,}"}:
        return content in (" ", _WORD_MARK)
    texts = [pattern.get("String", ""), content]
    return all(text and not any(char.isspace() or char == _WORD_MARK for char in text) for text in texts)


def _is_plain(char: str) -> bool:
    """Return whether a character is a letter, number, punctuation mark or symbol by itself."""
    return unicodedata.category(char)[0] in "LNPS" and char != _WORD_MARK


def _spanning_tokens(backend: tokenizers.Tokenizer) -> list[str]:
    """Return the added tokens that a space divides."""
    added = backend.get_added_tokens_decoder().values()
    return [token.content for token in added if _SPANS_SPACE.search(token.content)]
