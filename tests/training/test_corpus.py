"""Shards hold what the tokenizer gives, whatever the chunks and workers."""

import subprocess
import sys

import numpy as np
import pytest

from tasks.tokenizer import Tokenizer
from training.corpus import Corpus, CorpusRecipe, prepare_corpus
from training.documents import read_documents
from training.vocab import VocabRecipe, train_vocab


def test_corpus_holds_the_tokens_of_the_text(corpus, text_file, tokenizer_dir):
    """Document by document and sentence by sentence, over several shards."""
    tokenizer = Tokenizer.load(tokenizer_dir)
    documents = list(read_documents(text_file))

    assert len(corpus.info["shards"]) > 1
    assert corpus.num_documents == len(documents)
    for number, document in enumerate(documents):
        ids = [item.ids for item in tokenizer.tokenize(document)]
        assert corpus.sentence_lengths(number).tolist() == [len(item) for item in ids]
        np.testing.assert_array_equal(corpus.tokens(number, 0, len(ids)), np.concatenate(ids))
        np.testing.assert_array_equal(corpus.tokens(number, 2, 4), np.concatenate(ids[2:4]))
    assert corpus.token_counts().sum() == corpus.info["num_tokens"]


def test_workers_change_nothing(corpus_dir, text_file, tokenizer_dir, tmp_path):
    """Two processes write the same shards as one."""
    recipe = CorpusRecipe(
        data=(text_file,), tokenizer=tokenizer_dir, out=tmp_path / "two", chunk_chars=4000, num_workers=2
    )
    prepare_corpus(recipe)

    assert Corpus(tmp_path / "two").info == Corpus(corpus_dir).info


def test_failure_leaves_nothing_behind(tokenizer_dir, tmp_path):
    """Text that turns out bad in the middle leaves no half-written corpus."""
    (tmp_path / "bad.txt").write_bytes(b"Fine words.\n\nnot \xff fine\n")

    with pytest.raises(ValueError, match="line 3"):
        prepare_corpus(CorpusRecipe(data=(tmp_path / "bad.txt",), tokenizer=tokenizer_dir, out=tmp_path / "out"))
    assert [path.name for path in tmp_path.iterdir()] == ["bad.txt"]


def test_existing_and_broken_corpora_are_refused(corpus_dir, text_file, tokenizer_dir, tmp_path):
    """Nothing is overwritten unasked; a directory that is no corpus is named."""
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
    """Another process trains the same vocabulary, ids included."""
    arguments = [
        "--data",
        str(text_file),
        "--out",
        str(tmp_path / "again"),
        "--vocab-size",
        "80",
        "--min-frequency",
        "1",
    ]
    subprocess.run([sys.executable, "-m", "training.vocab", *arguments], check=True, capture_output=True)

    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "again" / name).read_text() == (tokenizer_dir / name).read_text()


def test_words_too_long_for_the_tokenizer_take_no_part(tmp_path):
    """They become [UNK] whatever is learned from them, and the trainer would take hours over a very long one."""
    (tmp_path / "a.txt").write_text(f"One text. {'zq' * 2_000_000} Another text.\n" * 2)

    backend = train_vocab(VocabRecipe(data=(tmp_path / "a.txt",), out=tmp_path / "out", vocab_size=100))

    assert "text" in backend.get_vocab()
    assert not any("zq" in token for token in backend.get_vocab())


def test_vocabulary_too_small_for_the_characters_is_refused(text_file, tmp_path):
    """The message says how many tokens are needed at least."""
    with pytest.raises(ValueError, match="vocab_size `20` is too small"):
        train_vocab(VocabRecipe(data=(text_file,), out=tmp_path / "out", vocab_size=20))
