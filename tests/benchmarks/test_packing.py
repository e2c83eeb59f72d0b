"""The benchmark of packing."""

import pytest

from benchmarks.packing import PackingSettings, measure

TINY = {"layers": 1, "hidden_size": 8, "heads": 2, "batch_size": 2, "rounds": 2}


@pytest.fixture
def labelled(tmp_path):
    path = tmp_path / "train.tsv"
    path.write_text("text\tlabel\n" + "the cat\tone\na dog\ttwo\n" * 4, "utf-8")
    return path


def test_too_few_batches_are_refused(corpus_dir, labelled, checkpoint):
    """Data with fewer batches than steps are refused, and the error says how many there are."""
    with pytest.raises(ValueError, match="only 4 batches of 2; lower --steps or --batch-size"):
        measure(PackingSettings(train=(labelled,), checkpoint=checkpoint, max_seq_length=16, steps=5, **TINY))
    with pytest.raises(ValueError, match="batches of 2; lower --steps or --batch-size"):
        measure(PackingSettings(corpus=corpus_dir, steps=10**6, **TINY))


def test_all_batches_may_be_used(labelled, checkpoint):
    """As many steps as the data have batches are measured."""
    settings = PackingSettings(train=(labelled,), checkpoint=checkpoint, max_seq_length=16, steps=4, **TINY)
    batches, times = measure(settings)

    assert len(batches) == 4
    assert [len(found) for found in times.values()] == [1, 1]


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_sequences_may_be_long(corpus_dir, family):
    """The network reads sequences as long as --max-seq-length, also above 512."""
    batches, _ = measure(PackingSettings(corpus=corpus_dir, family=family, max_seq_length=600, steps=1, **TINY))

    assert batches[0].inputs["input_ids"].shape[1] > 512
