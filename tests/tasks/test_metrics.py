"""Scores equal those of scikit-learn, scipy, seqeval and the official SQuAD scripts (from transformers)."""

import functools
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import pearsonr, spearmanr
from seqeval.metrics import accuracy_score as seq_accuracy
from seqeval.metrics import classification_report as seq_report
from seqeval.metrics import f1_score as seq_f1
from seqeval.metrics import precision_score as seq_precision
from seqeval.metrics import recall_score as seq_recall
from seqeval.metrics.sequence_labeling import get_entities
from sklearn.metrics import accuracy_score, classification_report, f1_score, matthews_corrcoef
from transformers.data.metrics import squad_metrics

from tasks.metrics import (
    chunks,
    classification_scores,
    is_loss,
    regression_scores,
    scores_by_label,
    scores_by_type,
    squad_scores,
    substring_f1,
    tagging_scores,
)

WORDS = st.sampled_from(
    ["a", "The", "an", "cat", "Cat.", "the-cat", "dog", "!", " ", "\t", "\u3000", "don't", "Éa", "«x»"]
)
ANSWERS = st.lists(WORDS, max_size=5).map(" ".join) | st.text(max_size=12)
QUESTIONS = st.lists(st.tuples(ANSWERS, st.lists(ANSWERS, max_size=3)), min_size=1, max_size=6)


@settings(max_examples=60)
@given(questions=QUESTIONS)
def test_squad_scores_equal_the_official_ones(questions):
    """Exact match and F1 are the official ones for any texts; those by answerability exist with both kinds."""
    predictions, answers = [item for item, _ in questions], [item for _, item in questions]
    examples = [
        SimpleNamespace(qas_id=index, answers=[{"text": answer} for answer in golds])
        for index, golds in enumerate(answers)
    ]
    raw = squad_metrics.get_raw_scores(examples, dict(enumerate(predictions)))
    kinds = {"": (True, False), "has_answer_": (True,), "no_answer_": (False,)}
    if len({bool(golds) for golds in answers}) == 1:
        kinds = {"": (True, False)}

    scores = squad_scores(predictions, answers, characters=False)

    assert scores == {
        f"{kind}{name}": pytest.approx(
            np.mean([found[index] for index in range(len(answers)) if bool(answers[index]) in counted])
        )
        for kind, counted in kinds.items()
        for name, found in zip(("exact_match", "f1"), raw, strict=True)
    }


@pytest.mark.parametrize(
    ("prediction", "answers", "exact", "f1"),
    [
        ("北京大学", ["北京大学医学部"], 0, 8 / 11),
        ("《三国演义》", ["三国演义"], 1, 1),
        ("学北京大", ["北京大学"], 0, 6 / 8),  # only the common run of three characters counts
        ("1949年10月", ["1949年"], 0, 4 / 6),
        ("iPhone 4S手机", ["iphone 4s 手机壳"], 0, 8 / 9),
        ("维也纳，", ["巴黎", "维也纳"], 1, 1),
        ("柏林", ["", "。", "巴黎"], 0, 0),
        ("東京タワー", ["東京タワーの下"], 0, 10 / 12),
        ("「ルール」", ["ルール！"], 1, 1),
        ("กรุงเทพ", ["กรุงเทพมหานคร"], 0, 14 / 20),
        ("ວຽງຈັນ", ["ວຽງຈັນ"], 1, 1),
        ("ភ្នំ\u200bពេញ", ["ភ្នំពេញ។"], 1, 1),
        ("ရန်ကုန်", ["ရန်ကုန်မြို့"], 0, 14 / 19),
        ("ལྷ་ས", ["ལྷ་ས།"], 1, 1),
    ],
)
def test_scores_by_characters_by_hand(prediction, answers, exact, f1):
    """Scripts without spaces are scored by CMRC's rule, without punctuation and character width."""
    scores = squad_scores([prediction], [answers])

    assert scores == {"exact_match (characters)": exact, "f1 (characters)": pytest.approx(f1)}


def test_scores_by_characters_by_answerability():
    """Names of scores by characters end with the unit."""
    scores = squad_scores(["北京", ""], [["北京市"], []])

    assert scores == {
        "exact_match (characters)": 0.5,
        "f1 (characters)": pytest.approx((4 / 5 + 1) / 2),
        "has_answer_exact_match (characters)": 0.0,
        "has_answer_f1 (characters)": pytest.approx(4 / 5),
        "no_answer_exact_match (characters)": 1.0,
        "no_answer_f1 (characters)": 1.0,
    }


def test_a_run_of_repeated_characters():
    """A long answer with few different characters is compared whole; difflib would ignore frequent ones."""
    assert substring_f1("一二" * 200, "一二" * 200 + "三") == pytest.approx(800 / 801)
    assert (substring_f1("。", ""), substring_f1("。", "一"), substring_f1("一", "")) == (1.0, 0.0, 0.0)


NAMES = st.sampled_from([("no", "yes"), ("no", "yes", "maybe", "")])
LABELS = NAMES.flatmap(lambda names: st.lists(st.tuples(*[st.sampled_from(names)] * 2), min_size=1, max_size=30))


@settings(max_examples=40)
@given(pairs=LABELS)
def test_classification_scores_equal_scikit_learn(pairs):
    """Scores equal scikit-learn's, also if labels are missing from truth or predictions; two labels have an F1 each."""
    labels, predictions = zip(*pairs, strict=True)
    names = sorted({*labels, *predictions})

    scores = classification_scores(labels, predictions, names)

    f1 = functools.partial(f1_score, labels, predictions, average="macro", zero_division=0)
    with warnings.catch_warnings(action="ignore"):  # it warns when there is one label only
        expected = {
            "accuracy": accuracy_score(labels, predictions),
            "macro_f1": f1(),
            "matthews": matthews_corrcoef(labels, predictions),
        }
    expected |= {f"f1_{name}": f1(labels=[name]) for name in names if len(names) == 2}
    assert scores == pytest.approx(expected)
    assert_equal_report(scores_by_label(*([(name,) for name in side] for side in (labels, predictions)), names), pairs)


def assert_equal_report(found, pairs):
    """Compare scores of labels with scikit-learn's report on pairs of label and prediction."""
    options = {"labels": list(found), "output_dict": True, "zero_division": 0}
    report = classification_report(*zip(*pairs, strict=True), **options)
    for name, scores in found.items():
        assert list(scores.values()) == pytest.approx(list(report[name].values()))


NUMBERS = st.lists(st.tuples(*[st.integers(-9, 9).map(lambda number: number / 4)] * 2), min_size=2, max_size=30)


@given(pairs=NUMBERS)
def test_regression_scores_equal_scipy(pairs):
    """Pearson and Spearman equal scipy's, with ties, and are 0 if one side is constant."""
    labels, predictions = zip(*pairs, strict=True)

    scores = regression_scores(labels, predictions)

    with warnings.catch_warnings(action="ignore"):
        expected = [pearsonr(labels, predictions).statistic, spearmanr(labels, predictions).statistic]

    assert [scores["pearson"], scores["spearman"]] == pytest.approx(np.nan_to_num(expected), abs=1e-9)


def test_nan_predictions_have_no_correlation():
    """One NaN prediction makes the correlations NaN, as in scipy."""
    assert all(map(np.isnan, regression_scores([1, 2, 3, 4], [0.1, 0.2, np.nan, 0.0]).values()))
    assert all(map(np.isnan, regression_scores([1, 2], [np.nan, np.nan]).values()))


def test_losses_are_recognised_by_name():
    """Losses are recognised by name, and the F1 of a label `loss` is not one."""
    assert all(map(is_loss, ("loss", "eval_mlm_loss", "mean_absolute_error")))
    assert not any(map(is_loss, ("f1_loss", "eval_f1_loss", "accuracy")))


TAGS = st.sampled_from(["O", *(f"{prefix}-{kind}" for prefix in "BIES" for kind in ("PER", "LOC"))])
SENTENCES = st.lists(
    st.lists(st.tuples(TAGS, TAGS), min_size=1, max_size=12).map(lambda pairs: tuple(zip(*pairs, strict=True))),
    min_size=1,
    max_size=5,
)


@given(sentences=SENTENCES)
def test_tagging_scores_equal_seqeval(sentences):
    """Entities and scores equal seqeval's, also for tags that follow no scheme."""
    tags, predictions = ([list(item) for item in side] for side in zip(*sentences, strict=True))

    scores = tagging_scores(tags, predictions)

    for sentence in tags:
        assert chunks(sentence) == [(kind, first, last) for kind, first, last in get_entities(sentence)]
    with warnings.catch_warnings(action="ignore"):
        expected = [score(tags, predictions) for score in (seq_f1, seq_precision, seq_recall, seq_accuracy)]
    assert list(scores.values()) == pytest.approx(expected)
    types = scores_by_type(tags, predictions, ("B-LOC", "I-PER", "B-GPE", "O"))
    assert list(types) == ["GPE", "LOC", "PER"]
    if any(tag != "O" for item in tags for tag in item):
        with warnings.catch_warnings(action="ignore"):
            report = seq_report(tags, predictions, output_dict=True)
        assert {name: list(types[name].values()) for name in types if name in report} == {
            name: pytest.approx(list(report[name].values())) for name in types if name in report
        }


@given(pairs=st.lists(st.tuples(*[st.sampled_from(["NOUN", "VERB", "DET"])] * 2), min_size=1, max_size=20))
def test_tags_without_prefixes_count_by_words(pairs):
    """Tags that are no entities have accuracy as their first score, and scikit-learn's scores of words by tag."""
    tags, predictions = ([list(side)] for side in zip(*pairs, strict=True))
    scores = tagging_scores(tags, predictions, ("NOUN", "VERB", "DET"))

    assert next(iter(scores.items())) == ("accuracy", pytest.approx(accuracy_score(tags[0], predictions[0])))
    assert_equal_report(scores_by_type(tags, predictions, ("DET", "NOUN", "VERB")), pairs)
