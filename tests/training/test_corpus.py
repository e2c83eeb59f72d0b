"""Tests of corpora and vocabularies."""

import importlib.metadata
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from transformers import BertTokenizerFast

from tasks.text.tokenizer import Tokenizer
from tests.commands import call
from tests.toy import make_text
from training.corpus import CorpusRecipe, main, prepare_corpus
from training.text.corpus import Corpus
from training.text.documents import read_documents
from training.vocab import VocabRecipe, train_vocab


def test_corpus_holds_the_tokens_of_the_text(corpus, text_file, tokenizer_dir):
    """The shards hold the tokens of every document and sentence."""
    tokenizer = Tokenizer.load(tokenizer_dir)
    documents = list(read_documents(text_file))

    assert len(corpus.info["shards"]) > 1
    assert corpus.num_documents == len(documents)
    for number, document in enumerate(documents):
        ids = [item.ids for item in tokenizer.tokenize(document)]
        assert np.diff(corpus.sentence_ends(number)).tolist() == [len(item) for item in ids]
        np.testing.assert_array_equal(corpus.tokens(number, 0, len(ids)), np.concatenate(ids))
        np.testing.assert_array_equal(corpus.tokens(number, 2, 4), np.concatenate(ids[2:4]))
    assert corpus.token_counts().sum() == corpus.info["num_tokens"]


def test_workers_change_nothing(corpus_dir, text_file, tokenizer_dir, tmp_path):
    """Two worker processes write the same shards as one."""
    recipe = CorpusRecipe(
        data=(text_file,), tokenizer=tokenizer_dir, out=tmp_path / "two", chunk_bytes=4000, num_workers=2
    )
    prepare_corpus(recipe)

    assert Corpus(tmp_path / "two").info == Corpus(corpus_dir).info


def test_failure_leaves_nothing_behind(tokenizer_dir, tmp_path):
    """A malformed text leaves no partial corpus."""
    (tmp_path / "bad.txt").write_bytes(b"Fine words.\n\nnot \xff fine\n")

    with pytest.raises(ValueError, match="line 3"):
        prepare_corpus(CorpusRecipe(data=(tmp_path / "bad.txt",), tokenizer=tokenizer_dir, out=tmp_path / "out"))
    assert [path.name for path in tmp_path.iterdir()] == ["bad.txt"]


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_same_command_goes_on_after_an_interruption(text_file, tokenizer_dir, tmp_path):
    """A restarted command keeps finished shards and writes the same corpus as an undisturbed one."""
    (tmp_path / "long.txt").write_text(text_file.read_text() * 20)
    fields = {"data": (tmp_path / "long.txt",), "tokenizer": tokenizer_dir, "chunk_bytes": 4000}
    arguments = f"--data {tmp_path}/long.txt --tokenizer {tokenizer_dir} --chunk-bytes 4000 --num-workers 2".split()
    out, partial = tmp_path / "out", tmp_path / "out.partial"
    with subprocess.Popen(
        [sys.executable, "-m", "training.corpus", *arguments, "--out", str(out)], stderr=subprocess.PIPE
    ) as process:
        while len(list(partial.glob("*.arrow"))) < 5:
            assert process.poll() is None
            time.sleep(0.002)
        process.kill()
    kept = {path.name: path.stat().st_mtime_ns for path in partial.glob("*.arrow")}
    (partial / ".shard-00000.arrow.x").touch()

    assert process.returncode == -signal.SIGKILL
    assert not out.exists()
    with pytest.raises(ValueError, match=r"`.*out.partial` is unfinished and was started with different chunk_bytes"):
        prepare_corpus(CorpusRecipe(**fields | {"chunk_bytes": 5000}, out=out))
    prepare_corpus(CorpusRecipe(**fields, out=out, num_workers=1))
    prepare_corpus(CorpusRecipe(**fields, out=tmp_path / "whole", num_workers=1))
    assert kept.items() <= {path.name: path.stat().st_mtime_ns for path in out.iterdir()}.items()
    assert contents(out) == contents(tmp_path / "whole")
    assert not partial.exists()


def test_replace_starts_again_from_other_text(text_file, tokenizer_dir, tmp_path):
    """`replace` starts again from shards of other text, which never get into the corpus."""
    recipe = CorpusRecipe(data=(text_file,), tokenizer=tokenizer_dir, out=tmp_path / "out", num_workers=1, replace=True)
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "made_from.json").write_text('{"data": "other"}')
    (tmp_path / "out.partial" / "shard-00000.arrow").write_text("other")
    prepare_corpus(recipe)

    Corpus(tmp_path / "out").verify()


def run_main(text, tokenizer_dir, directory, monkeypatch, capsys):
    """Return the output of `training.corpus` for a text."""
    (directory / "a.txt").write_text(text, encoding="utf-8")
    arguments = f"--data {directory}/a.txt --tokenizer {tokenizer_dir} --out {directory}/out --num-workers 1".split()
    monkeypatch.setattr(sys, "argv", ["command", *arguments])
    main()
    return capsys.readouterr()


LONG = " ".join(["cat"] * 300) + "\n" + "\n".join(["the dog"] * 9)
UNSUITABLE = {
    "repeated": (
        "\n".join([make_text(30, seed=5)] * 2),
        "50.0% of tokens in repeated sentences, 50.0% in repeated documents",
        ["much of the text occurs more than once"],
    ),
    "foreign": (
        "много слов the cat " * 50,
        "",
        ["33.3% of tokens are [UNK]", "a sentence has 300 tokens on average", "the text is a single document"],
    ),
    "single sentences": (
        "\n\n".join(line for line in make_text(4, seed=3).splitlines() if line),
        "48 of 48 documents (100.0%) have a single sentence",
        ["about 0.0% of sentence pairs can be consecutive (48 of 48 documents have a single sentence): if sentence"],
    ),
    "long sentences": (
        "\n\n".join([LONG] * 20),
        "",
        ["much", "an epoch of examples of 128 tokens shows about"],
    ),
    "suitable": (make_text(40, seed=0), "0 of 40 documents (0.0%) have a single sentence", []),
}


@pytest.mark.parametrize(("text", "printed", "warnings"), UNSUITABLE.values(), ids=UNSUITABLE)
def test_unsuitable_text_gets_warnings(text, printed, warnings, tokenizer_dir, tmp_path, monkeypatch, capsys):
    """The command describes the text, and warns of what pretraining will not learn from, with a remedy."""
    said = run_main(text, tokenizer_dir, tmp_path, monkeypatch, capsys)

    found = [line.removeprefix("warning: ") for line in said.err.splitlines() if line.startswith("warning: ")]
    assert printed in said.out
    assert len(found) == len(warnings), found
    assert all(line.startswith(start) for line, start in zip(found, warnings, strict=True)), found


def test_damage_is_found(corpus_dir, tmp_path, monkeypatch, capfd):
    """Opening a corpus detects exchanged shards and another tokenizer; `verify` also detects a changed byte."""
    directory = shutil.copytree(corpus_dir, tmp_path / "corpus")
    shards = sorted(directory.glob("*.arrow"))
    intact = call(main, ["verify", str(directory)], monkeypatch, capfd)
    with open(shards[1], "r+b") as file:
        file.seek(1000)
        file.write(b"\x05")
    damaged = call(main, ["verify", str(directory)], monkeypatch, capfd)

    assert intact.stdout == f"{len(shards)} shards are intact: `{directory}`\n"
    assert "shard-00001.arrow` does not match corpus.json" in damaged.stderr
    shutil.copyfile(shards[0], shards[1])
    with pytest.raises(ValueError, match=r"shard-00001.arrow` does not match"):
        Corpus(directory)
    os.truncate(shards[1], 100)
    with pytest.raises(ValueError, match=r"cannot read shard `.*shard-00001.arrow`"):
        Corpus(directory)
    with open(directory / "tokenizer.json", "a", encoding="utf-8") as file:
        file.write(" ")
    with pytest.raises(ValueError, match=r"tokenizer.json` does not match"):
        Corpus(directory)


SEGMENTED = """我们 在 图书馆 读书 。 The cat sleeps .
研究 生命 的 起源 ， 今天 天气 很 好 。

他 是 好人 ！ sleepsleep 。"""


@pytest.fixture(scope="module")
def chinese(tmp_path_factory):
    """Write a segmented text, the same text without spaces between Chinese characters, and a tokenizer for both."""
    folder = tmp_path_factory.mktemp("chinese")
    (folder / "segmented.txt").write_text(SEGMENTED, encoding="utf-8")
    running = re.sub(r"(?<=[\u4e00-\u9fff]) (?=[\u4e00-\u9fff])", "", SEGMENTED)
    (folder / "running.txt").write_text(running, encoding="utf-8")
    train_vocab(VocabRecipe(data=(folder / "running.txt",), out=folder / "tokenizer", vocab_size=150, min_frequency=1))
    return folder


def prepared(chinese, out, name="segmented", words="spaces", **fields):
    recipe = {"data": (chinese / f"{name}.txt",), "tokenizer": chinese / "tokenizer", "num_workers": 1} | fields
    prepare_corpus(CorpusRecipe(**recipe, words=words, out=out))
    return Corpus(out)


def words_of(corpus):
    """Return one line a sentence, with spaces between words."""
    lines = []
    for document in range(corpus.num_documents):
        for number in range(corpus.num_sentences(document)):
            ids = corpus.tokens(document, number, number + 1)
            continues = corpus.continues_word(document, number, number + 1)
            tokens = [corpus.tokenizer.token(int(token_id)).removeprefix("##") for token_id in ids]
            marked = zip(tokens, continues, strict=True)
            lines.append("".join(token if more else f" {token}" for token, more in marked).strip())
    return lines


def test_words_of_segmented_text_are_kept(chinese, tmp_path):
    """A segmented text gives the tokens of the running text, and a bit for each marks where words begin."""
    segmented, running = prepared(chinese, tmp_path / "a"), prepared(chinese, tmp_path / "b", "running", None)

    assert segmented.has_words
    assert not running.has_words
    assert words_of(segmented) == [
        "我们 在 图书馆 读书 。",
        "the cat sleeps .",
        "研究 生命 的 起源 ， 今天 天气 很 好 。",
        "他 是 好人 ！ sleepsleep 。",
    ]
    assert [segmented.tokens(number, 0, 1).tolist() for number in (0, 1)] == [
        running.tokens(number, 0, 1).tolist() for number in (0, 1)
    ]
    whole = segmented.continues_word(0, 0, 3)
    parts = [segmented.continues_word(0, number, number + 1) for number in range(3)]
    assert whole.tolist() == np.concatenate(parts).tolist()
    assert segmented.info["words"] == "spaces"
    assert segmented.info["num_words"] == int((~whole).sum() + (~segmented.continues_word(1, 0, 1)).sum())
    segmented.verify()


@pytest.mark.skipif(importlib.util.find_spec("jieba") is None, reason="pip install --group chinese")
def test_words_of_running_text_are_found(chinese, tmp_path):
    """jieba finds words with the ids of a corpus without words, for any number of workers."""
    fields = {"name": "running", "chunk_bytes": 80}
    found, plain = (prepared(chinese, tmp_path / f"{words}", words=words, **fields) for words in ("jieba", None))
    prepared(chinese, tmp_path / "two", words="jieba", num_workers=2, **fields)

    assert words_of(found)[:3:2] == ["我们 在 图书馆 读书 。", "研究 生命 的 起源 ， 今天天气 很 好 。"]
    assert found.info["words"].startswith("jieba 0.")
    assert contents(tmp_path / "jieba") == contents(tmp_path / "two")
    for number in range(found.num_documents):
        last = found.num_sentences(number)
        assert found.tokens(number, 0, last).tolist() == plain.tokens(number, 0, last).tolist()


def test_a_corpus_begun_with_other_words_is_refused(chinese, tmp_path, monkeypatch):
    """A corpus begun with other words, or without, is refused, and shards never mix."""
    monkeypatch.setattr("training.corpus.atomic_write", lambda *_: fail())
    for begun, then in (("spaces", None), (None, "spaces")):
        out = tmp_path / f"{begun}"
        with pytest.raises(KeyboardInterrupt):
            prepared(chinese, out, words=begun)
        with pytest.raises(ValueError, match="was started with different words;"):
            prepared(chinese, out, words=then)
    monkeypatch.undo()
    for words in ("spaces", None):
        prepared(chinese, tmp_path / f"{words}", words=words)
    shutil.copyfile(tmp_path / "None" / "shard-00000.arrow", tmp_path / "spaces" / "shard-00000.arrow")
    with pytest.raises(ValueError, match=r"shard-00000.arrow` does not match"):
        Corpus(tmp_path / "spaces")


def fail():
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("我 在 图 书 馆 。\n\n他 是 好 人 。", "--words spaces found no words of several characters in this text"),
        ("我们在图书馆读书。\n\n研究生命的起源。", "words begin at only 0.0% of the boundaries"),
        ("我们 在 图书馆 读书 。\n\n研究 生命 的 起源 。", None),
    ],
    ids=["characters", "not segmented", "segmented"],
)
def test_missing_words_get_a_warning(text, warning, chinese, tmp_path, monkeypatch, capfd):
    """The command warns if --words finds no words."""
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    flags = f"--data {tmp_path}/text.txt --tokenizer {chinese}/tokenizer --out {tmp_path}/out --num-workers 1"
    ended = call(main, [*flags.split(), "--words", "spaces"], monkeypatch, capfd)

    warnings = [line for line in ended.stderr.splitlines() if line.startswith("warning: ") and "--words" in line]

    assert ended.returncode == 0
    assert " words (spaces); " in ended.stdout
    assert len(warnings) == (warning is not None)
    assert not warning or warnings[0].startswith(f"warning: {warning}")


def test_an_open_corpus_holds_no_files_open(corpus_dir):
    """An open corpus holds no open files, so that their limit does not limit its size."""
    before = len(os.listdir("/proc/self/fd"))
    corpus = Corpus(corpus_dir)

    assert len(corpus.info["shards"]) > 1
    assert len(os.listdir("/proc/self/fd")) == before


def test_existing_and_broken_corpora_are_refused(corpus_dir, text_file, tokenizer_dir, tmp_path):
    """An existing corpus is not overwritten, and a directory without a corpus is refused."""
    with pytest.raises(ValueError, match="already exists"):
        prepare_corpus(CorpusRecipe(data=(text_file,), tokenizer=tokenizer_dir, out=corpus_dir))
    with pytest.raises(ValueError, match="not a corpus"):
        Corpus(tmp_path)
    for content in ("[]", "{}", '{"shards": [1]}'):
        (tmp_path / "corpus.json").write_text(content)
        with pytest.raises(ValueError, match="not a corpus"):
            Corpus(tmp_path)
    for content in ("\n\n", "\x01\n"):
        (tmp_path / "empty.txt").write_text(content)
        with pytest.raises(ValueError, match="no text in"):
            prepare_corpus(CorpusRecipe(data=(tmp_path / "empty.txt",), tokenizer=tokenizer_dir, out=tmp_path / "x"))


def test_vocabulary_is_the_same_in_every_run(text_file, tokenizer_dir, tmp_path):
    """Two processes train the same vocabulary with the same ids."""
    arguments = f"--data {text_file} --out {tmp_path}/again --vocab-size 80 --min-frequency 1"
    subprocess.run([sys.executable, "-m", "training.vocab", *arguments.split()], check=True, capture_output=True)

    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "again" / name).read_text() == (tokenizer_dir / name).read_text()


def train_on(tmp_path, text, **changes):
    """Train a vocabulary on a text with every line twice."""
    (tmp_path / "a.txt").write_text(f"{text}\n" * 2, encoding="utf-8")
    return train_vocab(VocabRecipe(data=(tmp_path / "a.txt",), out=tmp_path / "out", **changes))


SYLLABLES = list(map(chr, range(0xAC00, 0xAC00 + 1500)))


@pytest.mark.parametrize("vocab_size", [8192, 16_384])
def test_a_script_of_many_letters_has_a_token_for_each(vocab_size, tmp_path, capsys):
    """Every frequent letter of a large script gets a token, and every letter does if there is room."""
    words = np.random.default_rng(0).choice(SYLLABLES, (3000, 3))
    text = "\n".join(map("".join, words))

    backend = train_on(tmp_path, text, vocab_size=vocab_size, keep_accents=True)

    vocab = backend.get_vocab()  # once: it takes milliseconds
    lost = sum(letter not in vocab for letter in text if letter != "\n")
    assert lost <= 0.0005 * len(text)
    unknown = backend.encode(text.replace("\n", " "), add_special_tokens=False).tokens.count("[UNK]")
    assert unknown <= lost * (vocab_size < 16_384)
    assert "are in no token" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "changes", "message"),
    [
        (
            "the cat sees the dog",
            {"vocab_size": 1000},
            "note: 32 tokens instead of 1000: no other piece occurs 2 times",
        ),
        (
            "\n".join(SYLLABLES),
            {"vocab_size": 320, "lowercase": False},
            "warning: 89.5% of the characters of the text are in no token",
        ),
        ("วันนี้อากาศดีมากเราไปเดินเล่นกัน" * 8, {"vocab_size": 320}, "are in words of more than 100 characters"),
    ],
)
def test_a_vocabulary_that_does_not_fit_gets_a_warning(text, changes, message, tmp_path, capsys):
    """A message gives what is too small or too long, and what to change."""
    train_on(tmp_path, text, **changes)

    assert message in capsys.readouterr().err


@pytest.mark.parametrize("text", ["ไปเดินเล่น " * 40, "走" * 500])
def test_words_of_usual_length_get_no_warning(text, tmp_path, capsys):
    """Long text is no long word if it has spaces, or if its characters are words."""
    train_on(tmp_path, text, vocab_size=320)

    assert "of more than 100 characters" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("schon schön schon schön der die das", "(`schon` and `schön`)"),
        ("パンダ ハンタ パンダ ハンタ", "(`パンダ` and `ハンタ`)"),
        ("में मे में मे", "(`में` and `मे`)"),
        ("naïve ideas are naïve", None),
        ("the cat sees the dog", None),
    ],
)
def test_marks_that_make_other_words(text, pairs, tmp_path, capsys):
    """A note names words that differ only in accents, and `keep_accents` keeps them apart like transformers."""
    bare = train_on(tmp_path, text, vocab_size=320, min_frequency=1)
    said = capsys.readouterr().err
    kept = train_on(tmp_path, text, vocab_size=320, min_frequency=1, keep_accents=True, replace=True)

    assert (f"{pairs}; --keep-accents keeps them apart" in said) == bool(pairs)
    assert "--keep-accents" not in capsys.readouterr().err
    ids = [{word: tuple(backend.encode(word).ids) for word in text.split()} for backend in (bare, kept)]
    assert len({*ids[1].values()}) == len(ids[1])
    assert (len({*ids[0].values()}) < len(ids[0])) == bool(pairs)
    assert Tokenizer.load(tmp_path / "out").backend.to_str() == kept.to_str()
    theirs = BertTokenizerFast.from_pretrained(tmp_path / "out")
    assert theirs(text, add_special_tokens=False)["input_ids"] == kept.encode(text, add_special_tokens=False).ids


def test_chinese_characters_are_words(tmp_path):
    """Each Chinese character is a token without `##`, and a mixed vocabulary also contains other words."""
    chinese = "\n".join("".join(map(chr, range(first, first + 30))) for first in range(0x4E00, 0x4E00 + 300, 30))
    (tmp_path / "a.txt").write_text(f"{chinese}\n" * 2, encoding="utf-8")
    (tmp_path / "b.txt").write_text(f"{chinese}\n" * 2 + make_text(200, seed=0), encoding="utf-8")

    alone, mixed = (
        train_vocab(VocabRecipe(data=(tmp_path / name,), out=tmp_path / f"{name}.out", vocab_size=320)).get_vocab()
        for name in ("a.txt", "b.txt")
    )

    assert {*alone} == {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"} | {*chinese.replace("\n", "")}
    assert {"cat", "house", "sleeps"} <= {*mixed}
    assert len(mixed) == 320
    assert 0 < len({*mixed} & {*chinese}) < 300


def test_vocabulary_of_a_sample_comes_from_all_of_the_text(tmp_path):
    """The vocabulary of a sample contains words from the beginning and the end of the text."""
    part = "\n\n".join([" ".join(["{word}"] * 100) + "."] * 1_200)
    (tmp_path / "a.txt").write_text(part.format(word="beginning") + "\n\n" + part.format(word="ending"))
    fields = {"data": (tmp_path / "a.txt",), "vocab_size": 140}
    size = (tmp_path / "a.txt").stat().st_size
    few = train_vocab(VocabRecipe(**fields, out=tmp_path / "few", sample_bytes=size // 4, min_frequency=100_000))
    some = train_vocab(VocabRecipe(**fields, out=tmp_path / "some", sample_bytes=size // 4))

    assert few.get_vocab_size() < some.get_vocab_size()
    assert {"beginning", "ending"} <= some.get_vocab().keys()


def test_words_too_long_for_the_tokenizer_take_no_part(tmp_path):
    """Words that are too long for the tokenizer are left out of training, which would take hours."""
    (tmp_path / "a.txt").write_text(f"One text. {'zq' * 2_000_000} Another text.\n" * 2)

    backend = train_vocab(VocabRecipe(data=(tmp_path / "a.txt",), out=tmp_path / "out", vocab_size=100))

    assert "text" in backend.get_vocab()
    assert not any("zq" in token for token in backend.get_vocab())


def test_impossible_vocabularies_are_refused(text_file, tmp_path):
    """The error names the flag before any work, and the smallest possible size."""
    with pytest.raises(ValueError, match="--vocab-size must be"):
        VocabRecipe(data=(), out=Path("out"), vocab_size=2**63)
    with pytest.raises(ValueError, match="vocab_size `20` is too small"):
        train_vocab(VocabRecipe(data=(text_file,), out=tmp_path / "out", vocab_size=20))
