"""Tests of whole-word masking in text without spaces, and of the note if it has little effect."""

import re

import numpy as np
import pytest

from tasks.text.tokenizer_files import SPECIAL_TOKENS, build_tokenizer
from tests.families import vocabulary
from tests.toy_tokenizers import TEXT
from training.corpus import CorpusRecipe, prepare_corpus
from training.data.pretraining import Masking, PretrainingExamples
from training.data.pretraining_warnings import report_pairs, whole_words_note
from training.text.corpus import Corpus
from training.vocab import VocabRecipe, train_vocab

CHINESE = "我们 在 图书馆 读书 。\n研究 生命 的 起源 ， 今天 天气 很 好 。\n他 说 tokenizer 好用 ！\n" * 3
WORDS = ("图书馆", "生命")


def prepare(folder, name, text, tokenizer_dir, words):
    (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    recipe = {"data": (folder / f"{name}.txt",), "tokenizer": tokenizer_dir, "words": words, "num_workers": 1}
    prepare_corpus(CorpusRecipe(**recipe, out=folder / name))
    return Corpus(folder / name)


@pytest.fixture(scope="module")
def chinese(tmp_path_factory):
    """Return the corpus of a segmented text, with its words and without."""
    folder = tmp_path_factory.mktemp("chinese")
    text = "\n".join([CHINESE] * 20)
    (folder / "text.txt").write_text(text, encoding="utf-8")
    train_vocab(VocabRecipe(data=(folder / "text.txt",), out=folder / "tokenizer", vocab_size=60, min_frequency=1))
    return [prepare(folder, f"{words}", text, folder / "tokenizer", words) for words in ("spaces", None)]


def parts(example, tokenizer):
    """Yield the start of each part and its tokens before masking."""
    ids = example.input_ids.copy()
    ids[example.masked_positions] = example.masked_labels
    ends = np.flatnonzero(ids == tokenizer.token_id("[SEP]"))
    for start, end in zip([1, *(ends[:-1] + 1)], ends, strict=True):
        yield start, [tokenizer.token(int(token_id)) for token_id in ids[start:end]]


def test_characters_of_a_word_are_masked_together(chinese):
    """All characters of a word are masked together, as in Chinese-BERT-wwm, and independently without words."""
    split = {corpus.has_words: 0 for corpus in chinese}
    for corpus in chinese:
        examples = PretrainingExamples(corpus, max_seq_length=48, masking=Masking(rate=0.3, whole_words=True))
        for number in range(60):
            example = examples.example(0, number)
            for start, tokens in parts(example, corpus.tokenizer):
                text = "".join(token.removeprefix("##")[0] for token in tokens)  # a character a token
                for word in WORDS:
                    place = text.find(word)
                    if place >= 0:
                        among = np.isin(np.arange(len(word)) + place + start, example.masked_positions)
                        split[corpus.has_words] += among.any() and not among.all()

    assert split[True] == 0
    assert split[False] > 10


def test_the_parts_of_a_pair_are_not_one_word(chinese):
    """A new word begins at each part and after a truncated word, and [CLS] and [SEP] belong to no word."""
    corpus = chinese[0]
    examples = PretrainingExamples(corpus, max_seq_length=12, masking=Masking(whole_words=True))
    document = [(0, 0, 3), (1, 0, 3)]
    lengths = [len(corpus.tokens(*part)) for part in document]
    inner = [np.flatnonzero(corpus.continues_word(*part)) for part in document]
    kept = [np.arange(places[0], length) for places, length in zip(inner, lengths, strict=True)]
    input_ids = np.zeros(sum(map(len, kept)) + 3, np.int64)
    continues = examples._continues_word(document, kept, input_ids, corpus.tokenizer.pair)

    second = len(kept[0]) + 2

    assert not continues[[0, 1, second - 1, second, -1]].any()
    for start, tokens, part in ((1, kept[0], document[0]), (second, kept[1], document[1])):
        expected = corpus.continues_word(*part)[tokens[1:]]
        assert continues[start + 1 : start + len(tokens)].tolist() == expected.tolist()


def test_whole_words_that_change_little_are_noted(corpus, text_file, chinese, tmp_path):
    """A note names Chinese text without words and the flag that keeps them, or a vocabulary of whole words."""
    train_vocab(VocabRecipe(data=(text_file,), out=tmp_path / "tokenizer", vocab_size=200, min_frequency=1))
    whole = prepare(tmp_path, "whole", text_file.read_text(), tmp_path / "tokenizer", None)
    with_words, without = chinese
    note = whole_words_note(without)

    assert whole_words_note(with_words) is whole_words_note(corpus) is None
    assert note.startswith("83% of the first 1,800 tokens are Chinese characters")
    assert note.endswith("prepare the corpus with --words jieba")
    assert "changes hardly anything: 0.0% of the first" in whole_words_note(whole)


@pytest.mark.parametrize("kind", ["roberta", "modernbert", "xlm-roberta"])
def test_whole_words_keep_the_masking_rate(kind, tmp_path, capsys):
    """Words of tokens of bytes and of SentencePiece are masked whole in any script, at the masking rate."""
    vocabulary(kind).save(str(tmp_path / "tokenizer.json"))
    text = "\n\n".join("\n".join([*TEXT[:5], "привет мир", "hello world"]) for _ in range(20))
    corpus = prepare(tmp_path, "text", text, tmp_path, None)
    examples = PretrainingExamples(corpus, max_seq_length=256, masking=Masking(whole_words=True))
    report_pairs(examples, "--max-seq-length")
    decode = vocabulary(kind).decode

    for number in range(20):
        example = examples.example(0, number)
        ids = example.input_ids.copy()
        ids[example.masked_positions] = example.masked_labels
        hidden = np.zeros(len(ids), bool)
        hidden[example.masked_positions] = True
        edges = np.flatnonzero(np.diff(hidden)) + 1
        assert "\ufffd" not in "".join(decode(part.tolist()) for part in np.split(ids, edges))
    output = capsys.readouterr()
    assert "are predicted at" not in output.err


def test_a_fraction_far_from_the_masking_rate_is_warned_of(tmp_path, capsys):
    """One line says that words are too long for the masking rate, with both fractions and the remedy."""
    build_tokenizer([*SPECIAL_TOKENS, "a", "##a"]).save(str(tmp_path / "tokenizer.json"))
    corpus = prepare(tmp_path, "text", "\n\n".join([f"{'a' * 30} a\na a {'a' * 40}"] * 9), tmp_path, None)
    report_pairs(PretrainingExamples(corpus, max_seq_length=96, masking=Masking(whole_words=True)), "--long-seq-length")

    line = capsys.readouterr().err[-400:].partition("warning: ")[2]
    assert re.fullmatch(
        r"4\.\d% of the tokens of `.*text` are predicted at 96 tokens, not 15\.0% \(first \d+ examples\): "
        r"words have too many .*, or raise --long-seq-length\n",
        line,
    )
