"""Tests of pairs for contrastive training: negatives, and the meaning of labels."""

import json
from dataclasses import replace

import pyarrow.parquet
import pytest

from training.data.columns import Columns
from training.data.pairs import find_positives, negative_columns, plain_label, positive_pairs, read_pairs, scored_pairs

FILES = {
    "csv": "text,text_pair,negative,negative_2,negative_10,negative_note\na,b,c,d,e,f\n",
    "jsonl": json.dumps({"text": "a", "text_pair": "b", "negative": ["c", "d"], "negative-7": "e", "negatives": "f"}),
}


@pytest.mark.parametrize("kind", [*FILES, "parquet"])
def test_negatives_are_lists_or_columns_with_numbers(kind, tmp_path):
    """All negatives of a row are read, and other columns are not among them."""
    path = tmp_path / f"a.{kind}"
    if kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([json.loads(FILES["jsonl"])]), path)
    else:
        path.write_text(FILES[kind])

    pairs, names = read_pairs([path], Columns())

    assert [pair.texts for pair in pairs] == [("a", "b", "c", "d", "e")]
    assert len(names.keys() - {"text", "text_pair", *negative_columns(names, Columns())}) == 1


@pytest.mark.parametrize(
    ("row", "columns", "message"),
    [
        ({"text": "a", "text_pair": "b"}, Columns(negative="hard"), "line 1: no column `hard`"),
        ({"text": "a", "text_pair": "b", "negative": []}, Columns(), "line 1: `negative` is an empty list"),
        ({"text": "a", "text_pair": "b", "negative_3": ["c", 3]}, Columns(), "`negative_3` must be a list of strings"),
        ({"text": "a", "text_pair": ["b"]}, Columns(), "`text_pair` must be a string"),
    ],
)
def test_malformed_pairs_are_refused(row, columns, message, tmp_path):
    """The error names line and column."""
    (tmp_path / "a.jsonl").write_text(json.dumps(row))

    with pytest.raises(ValueError, match=message):
        read_pairs([tmp_path / "a.jsonl"], columns)


@pytest.mark.parametrize(
    ("labels", "positives"),
    [
        ((0, 1), {"1"}),
        (("0", "1.0"), {"1"}),
        ((True, False), {"1"}),
        (("True", "False"), {"True"}),
        ((-1, 1), {"1"}),
        ((0,), {"1"}),
        ((1, None), {"1"}),
        ((1, "-"), {"1"}),
        (("entailment", "neutral", "contradiction", "-"), {"entailment"}),
        (("not_entailment", "Entailment", ""), {"Entailment"}),
        (("not_duplicate", "duplicate"), {"duplicate"}),
        ((0, 0.5, 1), None),
        ((0, 1, 2, 3, 4, 5), None),
        (("3.8", "5.0"), None),
        ((-0.5, 0.5, None), None),
        ((0.8,), None),
    ],
)
def test_meaning_of_labels_follows_from_their_names(labels, positives):
    """Labels of positives are found, and numbers that are no classes are scores."""
    assert find_positives(dict.fromkeys(map(plain_label, labels), 1)) == positives


@pytest.mark.parametrize(
    "labels",
    [(0, 1, 2), (-1, 0, 1, 2), (-1, 0, 1), ("A", "B"), ("contradiction",), (0, 3, "-"), (1, "nan", 4), (None,), ([1],)],
)
def test_labels_of_unknown_meaning_are_refused(labels):
    """Classes by number, unknown words, and words among scores must be explained by a flag."""
    with pytest.raises(ValueError, match=r"cannot tell which labels mean the same: .* 1.*; name them with --positive"):
        find_positives(dict.fromkeys(map(plain_label, labels), 1))


@pytest.fixture
def pairs(tmp_path):
    (tmp_path / "a.tsv").write_text("text\ttext_pair\tnegative\tscore\na\tb\tx\t4.5\nc\td\ty\t3\ne\tf\tz\t\n")
    return read_pairs([tmp_path / "a.tsv"], Columns(label="score"))[0]


def test_positives_are_chosen_by_label(pairs):
    """Pairs with the labels keep their negatives; others are counted."""
    texts = positive_pairs(pairs, {"3"}, "score")

    assert list(texts.views) == [("c", "d", "y")]
    assert texts.notes == ["positives by `score`: `3` 1; left out: `4.5` 1, without a label 1"]
    with pytest.raises(ValueError, match=r"no pair has a `score` that makes it a positive; left out: `4\.5` 1, "):
        positive_pairs(pairs, set(), "score")


def test_scored_pairs_have_numbers(pairs):
    """Pairs without a score are counted, and a score that is no number is refused."""
    texts = scored_pairs(pairs, "score")

    assert list(texts.views) == [("a", "b"), ("c", "d")]
    assert texts.scores == [4.5, 3]
    assert texts.notes[0].endswith("from 3 to 4.5, learnt in their order (CoSENT); left out: without a label 1")
    pairs[1] = replace(pairs[1], label="inf")
    with pytest.raises(ValueError, match="line 3: `score` must be a number: `inf`"):
        scored_pairs(pairs, "score")
