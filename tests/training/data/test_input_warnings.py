"""Tests of warnings about texts that a checkpoint reads badly."""

import pytest

from tasks import create_task, settings_from_dict
from tasks.classification import ClassificationExample
from tasks.text.tokenizer import Tokenizer
from tasks.text.tokenizer_files import build_tokenizer
from training.data.input_warnings import report_inputs


@pytest.fixture
def task():
    """Return a classification task for texts of up to eight tokens of a few English words."""
    tokenizer = Tokenizer(build_tokenizer("[PAD] [UNK] [CLS] [SEP] [MASK] the cat sees dog".split()))
    settings = settings_from_dict("classification", {"max_seq_length": 8, "labels": ["a", "b"]})
    return create_task("classification", tokenizer, settings)


@pytest.mark.parametrize(
    ("texts", "is_foreign"),
    [
        (["the cat sees the dog"], False),
        (["the cat sees the dog"] * 30 + ["你好"], False),
        (["今天 天气 很好", "the cat"], True),
        (["สวัสดี"], True),
    ],
)
def test_texts_of_another_language(task, texts, is_foreign, capsys):
    """A warning names the fraction of [UNK] tokens if the vocabulary does not fit the texts."""
    report_inputs("training examples", "runs/mini", task, task.encode([ClassificationExample(text) for text in texts]))

    said = capsys.readouterr()

    assert ("of the tokens of the training examples are [UNK]: the vocabulary of `runs/mini`" in said.err) == is_foreign
    assert not said.out


def test_truncated_texts_are_counted(task, capsys):
    """A note counts the truncated examples and names the setting."""
    texts = ["the cat"] * 3 + ["the cat " * 4] * 2

    report_inputs("dev examples", "x", task, task.encode([ClassificationExample(text) for text in texts]))

    assert capsys.readouterr().out == "note: 2 of 5 dev examples were cut to fit max_seq_length 8\n"
