"""Tests of pairs and masks, by the rules of the paper and the reference code."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.families import BACKENDS, vocabulary
from tests.toy import WORDS
from training.corpus import CorpusRecipe, prepare_corpus
from training.data.pretraining import Masking, PretrainingExamples, mask_tokens, truncate_at_random_ends
from training.data.pretraining_batches import PretrainingData
from training.objectives.masked_lm import MaskedLM
from training.text.corpus import Corpus
from training.text.pairs import PairRules, estimate_pair_statistics, truncated_lengths
from training.vocab import VocabRecipe, train_vocab


@pytest.fixture(scope="module")
def examples(corpus):
    return PretrainingExamples(corpus, max_seq_length=48, seed=3)


def unmasked_ids(example):
    ids = example.input_ids.copy()
    ids[example.masked_positions] = example.masked_labels
    return ids


def test_example_is_a_pure_function_of_seed_epoch_and_index(corpus, examples):
    """The same seed, epoch and index give the same example in any order, and others give another one."""
    fresh = PretrainingExamples(corpus, max_seq_length=48, seed=3)
    fresh.example(1, 0)

    for epoch, index in [(1, 7), (0, 7), (0, 0)]:
        one, two = examples.example(epoch, index), fresh.example(epoch, index)
        np.testing.assert_array_equal(one.input_ids, two.input_ids)
        np.testing.assert_array_equal(one.masked_positions, two.masked_positions)
    other = PretrainingExamples(corpus, max_seq_length=48, seed=4)
    for changed in (other.example(0, 7), examples.example(1, 7)):
        assert unmasked_ids(changed).tolist() != unmasked_ids(examples.example(0, 7)).tolist()


@pytest.fixture(scope="module", params=["bert", *BACKENDS])
def corpus_of_family(request, text_file, tmp_path_factory):
    """Return the corpus of a family's tokenizer."""
    directory = tmp_path_factory.mktemp("family")
    vocabulary(request.param).save(str(directory / "tokenizer.json"))
    out = directory / "corpus"
    prepare_corpus(CorpusRecipe(data=(text_file,), tokenizer=directory, out=out, num_workers=1))
    return Corpus(out)


@pytest.mark.parametrize("whole_words", [False, True])
def test_examples_have_the_form_of_their_tokenizer(whole_words, corpus_of_family):
    """Pairs have the special tokens of any tokenizer, fit into max_seq_length, and lose no special token to a mask."""
    corpus = corpus_of_family
    examples = PretrainingExamples(corpus, max_seq_length=32, masking=Masking(rate=0.9, whole_words=whole_words))
    none = np.array([], np.int64)
    single, pair = (corpus.tokenizer.assemble(*texts)["input_ids"].tolist() for texts in ([none], [none, none]))
    found = [examples.example(0, index) for index in range(min(40, examples.num_examples(0)))]

    for example in found:
        ids = unmasked_ids(example).tolist()
        assert len(ids) <= 32
        assert [index for index in ids if index in single] in (single, pair)
        assert not set(example.masked_labels) & set(single)
    batch = PretrainingData(examples, 1, MaskedLM().targets).examples_batch(0, range(len(found)))
    length = [len(example.input_ids) for example in found]
    flat = batch.inputs["masked_positions_N"].numpy()[: sum(len(example.masked_positions) for example in found)]
    rows = np.repeat(np.arange(len(found)), [len(example.masked_positions) for example in found])
    assert max(length) == 32
    assert (flat // 32 == rows).all()
    masked = np.concatenate([example.input_ids[example.masked_positions] for example in found])
    np.testing.assert_array_equal(batch.inputs["input_ids"].numpy().reshape(-1)[flat], masked)


def test_next_sentences_follow_and_random_ones_do_not(corpus, examples):
    """A next part, of type 1, follows the first one in the same document; more than half of the pairs are random."""
    documents = [corpus.tokens(n, 0, corpus.num_sentences(n)).tolist() for n in range(corpus.num_documents)]
    texts = [" ".join(map(str, ids)) for ids in documents]
    labels = []
    for index in range(examples.num_examples(0)):
        example = examples.example(0, index)
        ids = unmasked_ids(example)
        first_sep, _ = np.flatnonzero(ids == corpus.tokenizer.token_id("[SEP]"))
        np.testing.assert_array_equal(example.token_type_ids, np.arange(len(ids)) > first_sep)
        parts = [" ".join(map(str, part)) for part in (ids[1:first_sep], ids[first_sep + 1 : -1])]
        homes = [{n for n, text in enumerate(texts) if part in text} for part in parts]
        assert all(homes)
        if example.nsp_label == 0:
            assert homes[0] & homes[1]
        labels.append(example.nsp_label)

    assert 0.5 < np.mean(labels) < 0.8


def test_every_sentence_is_used(corpus):
    """Every sentence is used, because sentences after a random next part are put back."""
    examples = PretrainingExamples(corpus, max_seq_length=64, short_seq_prob=0.0)
    plan = examples._epoch(0)[0]
    for document in range(corpus.num_documents):
        used = set()
        for row in plan[plan["document"] == document]:
            last = row["middle"] if row["random_document"] >= 0 else row["last"]
            used |= set(range(row["first"], last))
        assert used == set(range(corpus.num_sentences(document)))


@settings(max_examples=200)
@given(st.integers(1, 60), st.integers(0, 2**32), st.floats(0.05, 0.9))
def test_masking_rules(num_tokens, seed, rate):
    """Masking chooses round(length x rate) ordinary tokens, at least one, and leaves the others unchanged."""
    rng = np.random.default_rng(seed)
    ids = np.concatenate([[2], rng.integers(5, 50, num_tokens), [3]])
    masked, positions, labels = mask_tokens(
        ids, np.array([0, num_tokens + 1]), masking=Masking(rate=rate), mask_id=4, vocab_size=50, rng=rng
    )

    assert len(positions) == min(num_tokens, max(1, round(len(ids) * rate)))
    assert positions.tolist() == sorted(set(positions.tolist()))
    assert positions.min() >= 1
    assert positions.max() <= num_tokens
    np.testing.assert_array_equal(ids[positions], labels)
    untouched = np.setdiff1d(np.arange(len(ids)), positions)
    np.testing.assert_array_equal(masked[untouched], ids[untouched])


@pytest.mark.parametrize("fractions", [(0.8, 0.1), (1.0, 0.0), (0.8, 0.0), (0.8, 0.2), (0.0, 0.2), (0.0, 1.0)])
def test_fractions_of_fates_are_settings(fractions):
    """The fractions of [MASK], random and unchanged tokens follow the settings (appendix C.2 of the paper)."""
    masking = Masking(rate=0.5, mask_fraction=fractions[0], random_fraction=fractions[1])
    masked, positions, _ = mask_tokens(
        np.full(100_000, 7), np.array([0]), masking=masking, mask_id=4, vocab_size=50, rng=np.random.default_rng(0)
    )

    fates = masked[positions]

    assert np.mean(fates == 4) == pytest.approx(fractions[0] + fractions[1] / 50, abs=0.01)
    assert np.mean(fates == 7) == pytest.approx(1 - sum(fractions) + fractions[1] / 50, abs=0.01)
    assert not fractions[1] or set(fates.tolist()) == set(range(50))


@pytest.mark.parametrize("wrong", [{"rate": 0.0}, {"rate": 1.5}, {"mask_fraction": 0.8, "random_fraction": 0.3}])
def test_impossible_masking_is_refused(wrong):
    """The error names the masking setting that is wrong."""
    with pytest.raises(ValueError, match=r"masking_rate must be above 0|add up to at most 1"):
        Masking(**wrong)


@settings(max_examples=200)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=20), st.integers(0, 2**32), st.floats(0.05, 0.9))
def test_whole_words_are_masked_whole(word_lengths, seed, rate):
    """Whole-word masking takes complete words, as many as fit into round(length x rate) tokens."""
    continues_word = np.arange(50) >= 25
    words = [[5 + number] + [25 + number] * (length - 1) for number, length in enumerate(word_lengths)]
    ids = np.array([2, *(piece for word in words for piece in word), 3])
    _, positions, labels = mask_tokens(
        ids,
        np.array([0, len(ids) - 1]),
        masking=Masking(rate=rate, whole_words=True),
        mask_id=4,
        vocab_size=50,
        rng=np.random.default_rng(seed),
        continues_word=continues_word[ids],
    )

    count = min(len(ids) - 2, max(1, round(len(ids) * rate)))
    starts = 1 + np.concatenate([[0], np.cumsum(word_lengths)])
    chosen = [number for number in range(len(words)) if starts[number] in positions]
    assert positions.tolist() == [place for n in chosen for place in range(starts[n], starts[n + 1])]
    assert len(positions) <= count
    left_out = [length for number, length in enumerate(word_lengths) if number not in chosen]
    assert not left_out or min(left_out) > count - len(positions)
    np.testing.assert_array_equal(ids[positions], labels)


def test_without_next_sentences_a_pair_is_a_run_of_text(corpus):
    """Without next sentences every second part follows the first, and each sentence is used once."""
    examples = PretrainingExamples(corpus, max_seq_length=64, next_sentences=False, short_seq_prob=0.0)
    plan = examples._epoch(0)[0]

    assert (plan["random_document"] == -1).all()
    assert {examples.example(0, index).nsp_label for index in range(examples.num_examples(0))} == {0}
    for document in range(corpus.num_documents):
        rows = np.sort(plan[plan["document"] == document], order="first")
        assert rows["first"].tolist() == [0, *rows["last"][:-1]]
        assert rows["last"][-1] == corpus.num_sentences(document)


CHINESE = [item["text"] for item in json.loads(Path("tests/data/sentences.json").read_text("utf-8"))["Chinese"]]


def make_documents(kind):
    """Return 300 documents, each a list of lines."""
    rng = np.random.default_rng(0)
    if kind == "Chinese":
        return [[CHINESE[number] for number in rng.permutation(len(CHINESE))[: rng.integers(1, 4)]] for _ in range(300)]
    counts = {"one": [1], "many": range(10, 30), "mixed": [1, 1, 1, 2, 3, 9], "huge": [1]}
    words = (200, 400) if kind == "huge" else (3, 12)
    sizes = rng.choice(counts[kind], 300)
    return [[" ".join(rng.choice(WORDS, rng.integers(*words))) for _ in range(size)] for size in sizes]


@pytest.fixture(scope="module", params=["one", "many", "mixed", "huge", "Chinese"])
def some_corpus(request, tmp_path_factory):
    """Return corpora of several shards that differ in the number and length of sentences."""
    directory = tmp_path_factory.mktemp("some")
    data = directory / "a.txt"
    data.write_text("\n\n".join("\n".join(lines) for lines in make_documents(request.param)), encoding="utf-8")
    train_vocab(VocabRecipe(data=(data,), out=directory / "tokenizer", vocab_size=200, min_frequency=1))
    recipe = {"data": (data,), "tokenizer": directory / "tokenizer", "chunk_bytes": 10_000, "num_workers": 1}
    prepare_corpus(CorpusRecipe(**recipe, out=directory / "corpus"))
    return request.param, Corpus(directory / "corpus")


def places(corpus):
    """Return the corpus with each token replaced by its position, counted after the vocabulary."""
    ends = np.cumsum([0, *(np.ptp(corpus.sentence_ends(number)) for number in range(corpus.num_documents))])
    found = Corpus(corpus.directory)

    def tokens(document, first, last):
        start, stop = np.diff(corpus.sentence_ends(document)).cumsum()[[first - 1, last - 1]] * [first > 0, last > 0]
        return np.arange(start, stop) + ends[document] + corpus.tokenizer.vocab_size

    found.tokens = tokens
    return found


@pytest.mark.parametrize("next_sentences", [True, False])
@pytest.mark.parametrize("max_seq_length", [32, 128])
def test_pair_statistics_equal_counts_of_examples(max_seq_length, next_sentences, some_corpus):
    """The statistics of pairs equal counts over all examples of the epoch."""
    kind, corpus = some_corpus
    corpus = places(corpus)
    examples = PretrainingExamples(corpus, max_seq_length=max_seq_length, next_sentences=next_sentences, seed=5)
    everything = [examples.example(0, index) for index in range(examples.num_examples(0))]
    labels = [example.nsp_label for example in everything]
    tokens = np.concatenate([unmasked_ids(example) for example in everything])
    shown = np.unique(tokens[tokens >= corpus.tokenizer.vocab_size])

    summary = examples.pair_statistics()

    assert examples.nsp_labels(0).tolist() == labels
    assert summary.are_next == pytest.approx(1 - np.mean(labels), abs=1e-12)
    assert summary.shown == pytest.approx(len(shown) / corpus.info["num_tokens"], abs=0.01)
    if next_sentences:
        assert summary.are_next == pytest.approx(summary.can_be_next / 2, abs=2 / len(labels) ** 0.5)
        assert (summary.can_be_next == 0) == (kind in ("one", "huge"))
    sample = estimate_pair_statistics(
        corpus, PairRules(max_seq_length=max_seq_length, next_sentences=next_sentences, seed=5), step=2
    )
    assert sample.can_be_next == pytest.approx(summary.can_be_next, abs=0.1)
    assert sample.shown == pytest.approx(summary.shown, abs=0.1)


def test_token_offsets_are_counted_over_all_shards(corpus):
    """Token offsets are counted over all shards, for documents in any order."""
    rng = np.random.default_rng(0)
    documents = rng.integers(corpus.num_documents, size=100)
    sentences = np.array([rng.integers(corpus.num_sentences(number) + 1) for number in documents])
    lengths = [np.diff(corpus.sentence_ends(number)) for number in range(corpus.num_documents)]
    expected = [
        sum(map(sum, lengths[:number])) + sum(lengths[number][:sentence])
        for number, sentence in zip(documents, sentences, strict=True)
    ]

    assert corpus.token_offsets(documents, sentences).tolist() == expected


def test_token_offsets_exceed_32_bits():
    """Token offsets exceed 32 bits, though each shard counts in 32 bits."""
    ends = np.array([0, 5, 9], np.int32)
    shards = [SimpleNamespace(ids=range(3 * 10**9), document_ends=ends[:1], sentence_ends=ends) for _ in range(2)]
    corpus = SimpleNamespace(_shards=shards, _first_document=[0, 1, 2])

    assert Corpus.token_offsets(corpus, np.array([0, 1]), np.array([1, 2])).tolist() == [5, 3 * 10**9 + 9]


@settings(max_examples=200)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(2, 60), st.integers(0, 2**32))
def test_truncation_takes_from_the_longer_at_either_end(num_first, num_second, max_tokens, seed):
    """A truncated pair fits, its parts are runs of the originals, and the longer part loses tokens first."""
    first, second = np.arange(num_first), np.arange(100, 100 + num_second)
    a, b = truncate_at_random_ends(first, second, max_tokens, np.random.default_rng(seed))

    assert (len(a), len(b)) == truncated_lengths(num_first, num_second, max_tokens)
    assert len(a) + len(b) == min(max_tokens, num_first + num_second)
    for part, whole in ((a, first), (b, second)):
        assert len(part) >= 1
        assert part.tolist() == list(range(part[0], part[0] + len(part)))
        assert set(part) <= set(whole)
    if len(a) < num_first:
        assert len(a) >= len(b) - 1
    if len(b) < num_second:
        assert len(b) >= len(a) - 1
