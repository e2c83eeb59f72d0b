"""Tests of word boundaries in text that is written without spaces."""

import importlib.metadata
import importlib.util
import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tasks.text.languages import HAN
from tasks.text.tokenizer import Tokenizer
from tasks.text.tokenizer_files import build_tokenizer
from tests.toy_tokenizers import KINDS
from training.text.sentence_encoder import SentenceEncoder, WordEncoder
from training.text.words import SEGMENTERS, Segmenter, load_segmenter, name_with_version

needs_jieba = pytest.mark.skipif(importlib.util.find_spec("jieba") is None, reason="pip install --group chinese")

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abe12,.#。！ａはかがす", "ab"]
VOCAB += "##a ##b ##e ##ab ##1 ##2 ##か ##が ##す".split()
VOCAB += dict.fromkeys("今天我们在北京大学图书馆读气很好研究生命的起源来到网易杭厦")
CHARACTERS = [
    *"今天北京大学図館ab1,.#。！はがすスabcé１２ＡａⅣ々〇ω",
    *"\U00020000\U0002a6d6\U00030000\uf900\ufa0e\u2f00豈",
    *"\u0301\u3099\ufe00\U000e0100\u200b\u200d\ufeff\ufffd\0",
    *"  \u3000\u00a0\t\u2028",
]
mixed = st.lists(
    st.one_of(st.sampled_from([*CHARACTERS, "[MASK]", "[UNK]", "北京大学", "ab"]), st.characters(codec="utf-8"))
).map("".join)


@pytest.fixture(scope="module", autouse=True)
def pairs():
    """Register a segmenter that cuts after every second character."""
    with pytest.MonkeyPatch.context() as patch:
        split = lambda text: re.findall("..?", text, re.DOTALL)  # noqa: E731
        patch.setitem(SEGMENTERS, "pairs", Segmenter(lambda: split, HAN))
        yield
    load_segmenter.cache_clear()


def encoder(words, **options):
    return WordEncoder(Tokenizer(build_tokenizer(VOCAB, **options)), name_with_version(words))


def words_of(words, sentence):
    """Return the tokens of a sentence, with a space before each word."""
    ids, continues = (with_words := encoder(words)).encode_words(sentence)
    tokens = [with_words._backend.id_to_token(int(token_id)) for token_id in ids]
    return "".join(token if more else f" {token}" for token, more in zip(tokens, continues, strict=True)).strip()


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("words", ["pairs", "spaces", pytest.param("jieba", marks=needs_jieba)])
@given(sentence=mixed)
@example(sentence="今天ab北京")
@example(sentence="北京大学\U00020000\U0002a6d6学")
@example(sentence="北京 \u3000大学，はが すabが す")
@example(sentence="北\ufe00京[MASK]大\u0301学")
@example(sentence="")
def test_words_begin_at_tokens_and_all_tokens_are_in_one(sentence, words, lowercase):
    """Chinese words begin where the segmenter cuts, others at tokens without `##`; ids are the tokenizer's."""
    with_words = encoder(words, lowercase=lowercase)
    split, letters = load_segmenter(name_with_version(words))
    ids, continues = with_words.encode_words(sentence)
    found = split(sentence)
    text, starts = "".join(found), np.cumsum([0, *map(len, found)])
    (expected,) = Tokenizer(with_words._backend).tokenize([text])
    is_letter = re.compile(f"[{letters}]").match

    assert text == (sentence if words != "spaces" else re.sub(rf"(?<=[{letters}])\s+(?=[{letters}])", "", sentence))
    assert ids.tolist() == expected.ids.tolist()
    assert ids.dtype == with_words.id_type
    assert continues.dtype == bool
    assert len(continues) == len(ids)
    for place, token_id in enumerate(ids):
        begin, before = expected.offsets[place][0], expected.offsets[place - 1][1]
        if place == 0:
            assert not continues[place]
        elif begin == before and is_letter(text[begin]) and is_letter(text[begin - 1]):
            assert continues[place] == (begin not in starts)
        else:
            assert continues[place] == VOCAB[token_id].startswith("##")


@given(sentence=st.lists(st.sampled_from([*"abeé12,.#  [", "ab", "[MASK]", "в", "가", "हि"])).map("".join))
def test_text_with_spaces_is_as_before(sentence):
    """Text with spaces gives the tokenizer's ids and words with any segmenter."""
    for words in ("pairs", "spaces"):
        with_words = encoder(words)
        ids, continues = with_words.encode_words(sentence)
        (expected,) = SentenceEncoder(Tokenizer(build_tokenizer(VOCAB))).encode([sentence])
        assert ids.tolist() == expected.tolist()
        assert continues.tolist() == [VOCAB[token_id].startswith("##") for token_id in ids]


@needs_jieba
@pytest.mark.parametrize(
    ("sentence", "words"),
    [
        ("我们在图书馆读书。", "我们 在 图书馆 读书 。"),
        ("研究生命的起源", "研究 生命 的 起源"),
        ("来到网易杭研大厦", "来到 网易 杭研 大厦"),  # `杭研` is in no dictionary
        ("今天abab12很好", "今天 ab##ab##1##2 很 好"),
        ("今天 天气", "今天 天气"),
        ("\U00020000北京ａ", "[UNK] 北京 ａ"),
    ],
)
def test_words_of_jieba(sentence, words):
    """jieba finds words inside and outside its dictionary, mixed with other text."""
    assert words_of("jieba", sentence) == words


@pytest.mark.parametrize(
    ("sentence", "words"),
    [
        ("我们 在 北京大学  图书馆\u3000读书 。", "我们 在 北京大学 图书馆 读书 。"),
        ("今天 ab ab12 很 好", "今天 ab ab##1##2 很 好"),
        ("今天 は 北京 が す", "今天 は 北京 か ##す"),
        ("はが すが", "は##か ##す##か"),
    ],
)
def test_words_between_spaces(sentence, words):
    """Spaces between Chinese characters separate words and give no tokens."""
    assert words_of("spaces", sentence) == words


@needs_jieba
def test_jieba_is_quiet_and_writes_no_file(tmp_path):
    """jieba prints nothing, writes no cache, and reads no cache of another user."""
    (tmp_path / "jieba.cache").write_bytes(b"other")
    code = "from training.text.words import *; print(load_segmenter(name_with_version('jieba'))[0]('北京大学'))"
    environment = {"TMPDIR": str(tmp_path), "PYTHONPATH": ":".join(sys.path), "PYTHONUTF8": "1"}
    command = [sys.executable, "-W", "error", "-c", code]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)

    assert (ran.stdout, ran.stderr) == ("['北京大学']\n", "")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"other"]


def test_without_jieba_the_group_is_named(monkeypatch):
    """A missing jieba is an error that names the command to install it."""

    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    with pytest.raises(ChildProcessError, match=r"--words jieba needs `jieba`: .* --group chinese"):
        name_with_version("jieba")


def test_another_version_on_another_machine_is_refused(monkeypatch):
    """A node with another version of jieba is refused."""
    monkeypatch.setattr("importlib.metadata.version", lambda name: "9.1")
    with pytest.raises(ChildProcessError, match=r"has jieba 9\.1, but the command was started with jieba 9\.0"):
        load_segmenter("jieba 9.0")


@pytest.mark.parametrize("kind", ["byte_bpe", "modernbert"])
def test_words_of_tokenizers_of_bytes(kind):
    """A word has all bytes of its characters; seams at which a token begins are found."""
    with_words = WordEncoder(Tokenizer(KINDS[kind]()), "pairs")

    ids, continues = with_words.encode_words("北京今天 ab京,ж京")

    found = [with_words._backend.decode(part.tolist()) for part in np.split(ids, np.flatnonzero(~continues)[1:])]
    assert found == ["北京", "今天", " ab", "京", ",", "ж", "京"]
    assert with_words.find_seams(ids).sum() == 2  # not in `北京`, whose second token begins inside of 京
