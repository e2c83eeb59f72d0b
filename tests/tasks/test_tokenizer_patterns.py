"""Patterns and words of tokenizers that take far longer than a text is long."""

from __future__ import annotations

import pytest
import tokenizers
from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers

from tasks.text.tokenizer import Tokenizer
from tasks.text.tokenizer_files import build_tokenizer
from tasks.text.tokenizer_patterns import find_slow_text

SLOW = [
    r"(a+)+$",
    r"(a|aa)+$",
    r"(\w+\s?)*$",
    r"(.*a){20}",
    r"([a-z]+)*\d",
    r"(\d+)*\.",
    r"(\p{L}|\p{Ll})+\d",
    r"(foo|foofoo)+$",
    r"xyz(a|aa)+$",
    r"(?:\p{L}+['’]?)+\d",
    r"(\s|\n)+x",
    r"(x+x+)+y",
    r"(a*)+$",
    r"(.*),(.*),(.*)X$",
    r"\s+$",
    r"\s*\n",
    r"<[^>]*>",
    r"\p{L}+(?=\d)",
]
"""Patterns whose time doubles with each character, or grows with a power of the length."""

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
UPPER, LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
ENDS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
USUAL = {
    "GPT-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "cl100k": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|"
    r"\s*[\r\n]|\s+(?!\S)|\s",
    "Llama 3": rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{ENDS}",
    "Qwen 2": rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{ENDS}",
    "o200k": rf"[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]*[{LOWER}]+{CONTRACTIONS}?|[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]+[{LOWER}]*"
    rf"{CONTRACTIONS}?|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{ENDS}",
    "DeepSeek V3": r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{ENDS}",
    "DeepSeek V3, Chinese": "[一-龥\u3040-ゟ゠-ヿ]+",
    "DeepSeek V3, numbers": r"\p{N}{1,3}",
    "CLIP": r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
    "CLIP, spaces": r"\s+",
    "BLOOM": r" ?[^(\s|[.,!?…。，、।۔،])]+",
    "XLM-R and T5": " {2,}",
    "Falcon": "[0-9][0-9][0-9]",
    "GPT-SW3": r"\n| {2,}|\d",
    "ALBERT": "``|''",
}


@pytest.mark.parametrize("pattern", SLOW)
def test_slow_patterns_are_found(pattern):
    """A text on which a pattern takes too long is found."""
    assert find_slow_text(pattern)


@pytest.mark.parametrize("name", USUAL)
def test_patterns_of_known_tokenizers_are_accepted(name):
    """Patterns of published tokenizers are accepted."""
    assert find_slow_text(USUAL[name]) == ""


@pytest.mark.parametrize("place", ["normalizer", "pre_tokenizer"])
def test_a_slow_pattern_is_refused(place, tmp_path):
    """A file with a slow pattern is refused in one line that names both, wherever the pattern stands."""
    backend = build_tokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])
    pattern = Regex("(\n|\n\n)+x")
    if place == "normalizer":
        backend.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(pattern, "b")])
    else:
        parts = [pre_tokenizers.Sequence([pre_tokenizers.Split(pattern, "isolated")]), pre_tokenizers.Whitespace()]
        backend.pre_tokenizer = pre_tokenizers.Sequence(parts)
    backend.save(str(tmp_path / "tokenizer.json"))

    with pytest.raises(
        ValueError, match=r"^`.*tokenizer.json` has the pattern `\(.*\)\+x`, which takes too long"
    ) as caught:
        Tokenizer.load(tmp_path)
    assert "\n" not in str(caught.value)


def test_long_words_are_refused(tmp_path):
    """A limit of WordPiece's words that takes seconds a word is refused."""
    model = tokenizers.models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]", max_input_chars_per_word=10**6)
    backend = tokenizers.Tokenizer(model)
    backend.add_special_tokens([AddedToken("[PAD]", special=True)])
    backend.save(str(tmp_path / "tokenizer.json"))

    with pytest.raises(ValueError, match="has max_input_chars_per_word `1000000`; at most 1000 are allowed"):
        Tokenizer.load(tmp_path)
