"""Tokenizers give the ids of transformers, and unsupported tokenizers are refused."""

import json
import re
import shutil
import unicodedata

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, BertTokenizer, BertTokenizerFast

from tasks.text import tokenizer_files
from tasks.text.tokenizer import Tokenizer
from tasks.text.tokenizer_files import build_tokenizer

ODD_TEXTS = [
    "",
    " \t\r\n\u00a0\u3000",
    "UNwant\u00e9d,running",
    "caf\u00e9 cafe\u0301 \u00c5ngstr\u00f6m A\u030angstro\u0308m",
    "ah\u535a\u63a8zz \u4e2d\u6587 \u30cf\u30ed\u30fc \uac01\uac02",
    "\U00020000\U0002a6df",
    "a\x00b\x01c\ufffdd\u200be\u00adf\x7fg\x85h",
    "line\u2028paragraph\u2029separators\x0b\x0c",
    "\U0001f44d\U0001f3fd \U0001f468\u200d\U0001f469\u200d\U0001f467 e\u0301\u0308\u0323 \U0001f642!",
    "\u05e9\u05c1\u05b8\u05dc\u05d5\u05b9\u05dd \u0645\u0631\u062d\u0628\u0627 \u202eabc\u202c",
    "a" * 100 + " " + "a" * 101 + " " + "b" * 5000,
    "[MASK] a[MASK]b [mask] [ MASK ] [CLS]x[SEP] [PAD][UNK] [MASK",
    "\u0130stanbul \u1e9e \ufb01 \u01c5 \u00df",
    "don't (stop)... \u00abquoted\u00bb \u3001 \u00bfqu\u00e9? $5 a_b ^~`|<>=+",
]
"""Empty, white space, accents, CJK, control characters, separators, emoji, right-to-left, long words, specials."""


@pytest.fixture(scope="module", params=[True, False], ids=["uncased", "cased"])
def lowercase(request):
    return request.param


@pytest.fixture(scope="module")
def reference(lowercase, vocab, tmp_path_factory):
    """transformers' fast and slow tokenizers, and the directory with the saved fast one."""
    directory = tmp_path_factory.mktemp("tokenizer")
    (directory / "vocab.txt").write_text("\n".join(vocab) + "\n", encoding="utf-8")
    arguments = {"vocab_file": str(directory / "vocab.txt"), "do_lower_case": lowercase}
    fast = BertTokenizerFast(**arguments)
    fast.save_pretrained(directory)
    return fast, BertTokenizer(**arguments), directory


@pytest.fixture(scope="module", params=["tokenizer.json", "vocab.txt"])
def loaded(request, reference, tmp_path_factory):
    """Tokenizer loaded from tokenizer.json or vocab.txt."""
    directory = tmp_path_factory.mktemp("loaded")
    for name in (request.param, "tokenizer_config.json"):
        (directory / name).write_bytes((reference[2] / name).read_bytes())
    return Tokenizer.load(directory)


def assert_ids_equal_slow(tokenizer, slow, text):
    """Check ids against the slow tokenizer, on text composed with NFC as the slow one does."""
    text = unicodedata.normalize("NFC", text)

    assert tokenizer.tokenize([text])[0].ids.tolist() == slow.encode(text, add_special_tokens=False, verbose=False)


def assert_equals_fast(tokenizer, fast, text):
    expected = fast(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    tokens = tokenizer.tokenize([text])[0]

    assert tokens.ids.tolist() == expected["input_ids"]
    assert [tuple(pair) for pair in tokens.offsets.tolist()] == expected["offset_mapping"]


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_odd_texts_equal_both_of_transformers(loaded, reference, text):
    """Ids and offsets of unusual texts equal the fast tokenizer's, and ids the slow one's."""
    fast, slow, _ = reference

    assert_equals_fast(loaded, fast, text)
    assert_ids_equal_slow(loaded, slow, text)


@settings(max_examples=75)
@given(text=st.text(max_size=60))
def test_any_text_equals_the_fast_tokenizer(loaded, reference, text):
    """Ids and offsets equal the fast tokenizer's for any Unicode text."""
    assert_equals_fast(loaded, reference[0], text)


FAMILIAR = st.text(
    st.sampled_from("aAzZ09 éÉñüß.,!?'-$[]() \t\n\u00a0中文博ハあ각жЖЯבשםمر\u0301\u0308👍🙂ﬁ«»、"),
    max_size=60,
)


@settings(max_examples=75)
@given(text=FAMILIAR)
def test_familiar_text_equals_the_slow_tokenizer(loaded, reference, text):
    """Ids equal the slow tokenizer's in scripts for which fast and slow agree."""
    assert_ids_equal_slow(loaded, reference[1], text)


TEST_VOCAB = ["[UNK]", "[CLS]", "[SEP]", "want", "##want", "##ed", "wa", "un", "runn", "##ing", ",", "[PAD]", "[MASK]"]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("UNwant\u00e9d,running", "un ##want ##ed , runn ##ing"),
        ("", ""),
        ("unwanted running", "un ##want ##ed runn ##ing"),
        ("unwantedX running", "[UNK] runn ##ing"),
    ],
)
def test_reference_vectors(text, tokens):
    """WordPiece tokens equal those of tokenization_test.py in google-research/bert."""
    tokenizer = Tokenizer(build_tokenizer(TEST_VOCAB))

    assert [tokenizer.token(token_id) for token_id in tokenizer.tokenize([text])[0].ids] == tokens.split()


def test_accents_and_cjk_follow_the_configuration(vocab, tmp_path):
    """`vocab.txt` is read with strip_accents and tokenize_chinese_chars of tokenizer_config.json."""
    (tmp_path / "vocab.txt").write_text("\n".join(vocab), encoding="utf-8")
    config = {"do_lower_case": True, "strip_accents": False, "tokenize_chinese_chars": False}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    fast = BertTokenizerFast(vocab_file=str(tmp_path / "vocab.txt"), **config)

    for text in ["h\u00e9llo \u00c9", "\u4e2d\u6587"]:
        assert_equals_fast(Tokenizer.load(tmp_path), fast, text)


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_only_line_ends_separate_the_tokens_of_vocab_txt(tmp_path, newline):
    """Other Unicode line separators may be part of a token, so that ids do not shift."""
    vocab = [*TEST_VOCAB, "\u2028x", "\x85", "last"]
    (tmp_path / "vocab.txt").write_text(newline.join(vocab) + newline, encoding="utf-8", newline="")
    tokenizer = Tokenizer.load(tmp_path)

    assert tokenizer.token_id("last") == vocab.index("last")
    assert tokenizer.vocab_size == len(vocab)


def test_tokens_that_were_added_beside_vocab_txt(vocab, tmp_path):
    """Added tokens that vocab.txt lacks are refused, because their ids would change silently."""
    (tmp_path / "vocab.txt").write_text("\n".join(vocab) + "\n", encoding="utf-8")
    (tmp_path / "added_tokens.json").write_text(json.dumps({vocab[7]: 7}))

    assert Tokenizer.load(tmp_path).vocab_size == len(vocab)

    slow = BertTokenizer(vocab_file=str(tmp_path / "vocab.txt"))
    slow.add_tokens(["<e1>"])
    slow.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"added_tokens.json` adds `<e1>`, which is not in it; save the tokenizer as"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer_config.json", "config.json"])
@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"tokenizer_class": "BertJapaneseTokenizer"}, "names `BertJapaneseTokenizer`, which is not BERT's"),
        ({"tokenizer_class": "XLNetTokenizerFast"}, "names `XLNetTokenizerFast`, which is not BERT's"),
        (
            {"auto_map": {"AutoTokenizer": ["tokenization_kobert.KoBertTokenizer", None]}},
            "needs tokenizer code of its own",
        ),
        ({"tokenizer_class": "BertTokenizer"}, None),
        ({"tokenizer_class": "DistilBertTokenizerFast"}, None),
        ({"tokenizer_class": None, "auto_map": {"AutoModel": "modeling_own.Model"}}, None),
    ],
)
def test_a_vocabulary_of_another_tokenizer_is_refused(vocab, tmp_path, name, config, message):
    """A vocab.txt of a tokenizer other than BERT's is refused without a tokenizer.json."""
    (tmp_path / "vocab.txt").write_text("\n".join(vocab))
    (tmp_path / name).write_text(json.dumps(config))
    if message:
        with pytest.raises(ValueError, match=re.escape(f"`{tmp_path / name}` ")) as caught:
            Tokenizer.load(tmp_path)
        assert message in str(caught.value)
        build_tokenizer(vocab).save(str(tmp_path / "tokenizer.json"))
    assert len(Tokenizer.load(tmp_path).tokenize(["hello"])[0]) == 1


def test_duplicate_tokens_in_vocab_txt(tmp_path):
    """The last of duplicate tokens counts, as in transformers, and the vocabulary keeps its size."""
    vocab = [*TEST_VOCAB, "twice", "once", "twice"]
    (tmp_path / "vocab.txt").write_text("\n".join(vocab), encoding="utf-8")
    tokenizer = Tokenizer.load(tmp_path)

    assert tokenizer.token_id("twice") == len(vocab) - 1
    assert tokenizer.token(len(vocab) - 3) == ""
    assert tokenizer.vocab_size == len(vocab)


@pytest.mark.parametrize(
    "config",
    [
        *({"do_lower_case": flag} for flag in (True, False)),
        *({"strip_accents": flag} for flag in (True, False)),
        *({"tokenize_chinese_chars": flag} for flag in (True, False)),
        *({"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": flag} for flag in (True, False)),
    ],
)
def test_a_configuration_that_transformers_obeys_must_agree(reference, config, tmp_path):
    """A configuration that contradicts tokenizer.json is refused."""
    shutil.copytree(reference[2], tmp_path, dirs_exist_ok=True)
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    normalizers = [
        tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")).normalizer,
        AutoTokenizer.from_pretrained(tmp_path).backend_tokenizer.normalizer,
    ]
    ours, theirs = (normalizer.normalize_str("Éa博É") for normalizer in normalizers)

    if ours == theirs:
        Tokenizer.load(tmp_path)
    else:
        with pytest.raises(ValueError, match=rf"has {[*config][-1]} `\w+`, and `.*tokenizer\.json` the opposite"):
            Tokenizer.load(tmp_path)


def test_a_pattern_that_panics_is_one_line(vocab):
    """A regular expression that exceeds its retry limit is a one-line error."""
    backend = build_tokenizer(vocab)
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex("(a+)+$"), "isolated")

    with pytest.raises(ValueError, match=r"the tokenizer cannot read a text: .*retry-limit"):
        Tokenizer(backend).tokenize(["a" * 40 + "!"])


def test_never_pads_or_truncates(vocab):
    """Padding and truncation of a tokenizer.json are switched off."""
    backend = build_tokenizer(vocab)
    backend.enable_padding(length=10)
    backend.enable_truncation(max_length=4)

    assert [len(tokens) for tokens in Tokenizer(backend).tokenize(["a", "a a a a a a", ""])] == [1, 6, 0]


PANIC = (
    b'{"version": "1.0", "model": {"type": "WordPiece", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"},'
    b' "normalizer": {"type": "Precompiled", "precompiled_charsmap": "/////w=="}}'
)
"""File that makes the Rust code panic."""
BROKEN = {
    "nothing": ({}, "no `tokenizer.json` or `vocab.txt`"),
    "cut json": ({"tokenizer.json": b'{"version": "1.0", "mod'}, "not a tokenizer file"),
    "panic": ({"tokenizer.json": PANIC}, "not a tokenizer file"),
    "no mask": ({"vocab.txt": b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n"}, "lacks `[MASK]`"),
    "binary vocabulary": ({"vocab.txt": b"\xff\xfe"}, "broken vocabulary"),
    "broken config": ({"vocab.txt": b"a\n", "tokenizer_config.json": b"{"}, "broken JSON in"),
    "endless config": ({"vocab.txt": b"a\n", "tokenizer_config.json": b"[" * 100_000}, "broken JSON in"),
    "wrong case": ({"vocab.txt": b"a\n", "tokenizer_config.json": b'{"do_lower_case": "no"}'}, "do_lower_case must be"),
}


@pytest.mark.parametrize(("files", "message"), BROKEN.values(), ids=BROKEN)
def test_broken_directories(tmp_path, files, message):
    """Broken tokenizer files are a one-line error with the directory or file."""
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)

    with pytest.raises(ValueError, match="`") as caught:
        Tokenizer.load(tmp_path)

    assert message in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "most", "message"),
    [("MAX_FILE_BYTES", 1000, r"has \d+ bytes, 1000 fit"), ("MAX_ADDED_TOKENS", 7, "has 8 added tokens, 7 fit")],
)
def test_vocabularies_that_take_seconds_to_read_are_refused(vocab, tmp_path, monkeypatch, name, most, message):
    """Huge vocabularies are refused before they are read, because reading blocks all threads."""
    backend = build_tokenizer(vocab)
    backend.add_tokens(["<e1>", "<e2>", "<e3>"])
    backend.save(str(tmp_path / "tokenizer.json"))
    assert Tokenizer.load(tmp_path).vocab_size == len(vocab) + 3
    monkeypatch.setattr(tokenizer_files, name, most)

    with pytest.raises(ValueError, match=rf"tokenizer.json` {message}"):
        Tokenizer.load(tmp_path)
