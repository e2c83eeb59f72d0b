"""Multiple choice: one sequence for each choice, and probabilities over the choices."""

import numpy as np
import pytest

from tasks import InvalidExample, InvalidExamplesError
from tasks.multiple_choice import MultipleChoice, MultipleChoiceExample, MultipleChoiceSettings


@pytest.fixture
def task(word_tokenizer):
    return MultipleChoice(word_tokenizer, MultipleChoiceSettings(max_seq_length=10))


def read(task, features):
    return [" ".join(task.tokenizer.token(int(token)) for token in item.input_ids) for item in features]


@pytest.mark.parametrize(
    ("context", "question", "expected"),
    [
        ("w1", "w2", "[CLS] w1 [SEP] w2 {} [SEP]"),
        ("w1", "", "[CLS] w1 [SEP] {} [SEP]"),
        ("", "w2", "[CLS] w2 [SEP] {} [SEP]"),
        ("", "", "[CLS] {} [SEP]"),
    ],
)
def test_a_choice_follows_context_and_question(task, context, question, expected):
    """The context is the first text, and question and choice the second; without a context the question is first."""
    example = MultipleChoiceExample(("w3", "w4", "w5"), context, question)

    features = task.encode([example])[0]

    assert read(task, features) == [expected.format(choice) for choice in example.choices]
    assert all(item.token_type_ids[-1] == int(bool(context or question)) for item in features)


def test_long_texts_are_cut_or_refused(task):
    """Truncation cuts the longer text; without truncation the error names the field that is too long."""
    example = MultipleChoiceExample(("w3", "w4"), " ".join(["w1"] * 9), "w2")

    features = task.encode([example])[0]

    assert read(task, features) == [f"[CLS] w1 w1 w1 w1 w1 [SEP] w2 {choice} [SEP]" for choice in example.choices]
    with pytest.raises(InvalidExamplesError, match=r"example 0, context: text too long: `14` tokens \(maximum `10`\)"):
        task.encode([example], truncate=False)
    long_choice = MultipleChoiceExample(("w3", " ".join(["w4"] * 9)), "w1", "w2")
    with pytest.raises(
        InvalidExamplesError, match=r"example 0, choices\[1\]: text too long: `14` tokens \(maximum `10`\)"
    ):
        task.encode([long_choice], truncate=False)


def test_half_a_surrogate_pair_is_reported_once(task):
    """A question that is not UTF-8 is reported once, not for each choice."""
    example = MultipleChoiceExample(("w3", "w4"), "w1", "w2 \ud83d")

    with pytest.raises(InvalidExamplesError) as caught:
        task.encode([example])

    assert [item.field for item in caught.value.invalid] == ["question"]


def test_empty_choices_are_named(task):
    """Errors name the example and the empty choice."""
    good = MultipleChoiceExample(("w3", "w4"), "w1")

    with pytest.raises(InvalidExamplesError) as caught:
        task.encode([good, MultipleChoiceExample(("w3", " "), "w1")])

    assert caught.value.invalid == [InvalidExample(1, "choices[1]", "empty text; it needs at least one word")]
    with_question = MultipleChoiceExample(("w3", " "), "w1", "w2")  # a question must not hide the empty choice
    with pytest.raises(InvalidExamplesError, match=r"example 1, choices\[1\]: empty text"):
        task.encode([good, with_question])
    with pytest.raises(InvalidExamplesError, match="example 1, choices: too few: `1`; at least two are needed"):
        task.encode([good, MultipleChoiceExample(("w3",), "w1")])


def test_decode_and_score(task):
    """Scores are a softmax over the choices of each example, for any number of choices."""
    examples = [MultipleChoiceExample(("w1", "w2", "w3"), "w0", label=2), MultipleChoiceExample(("w1", "w2"), label=0)]
    logits = [np.log([0.2, 0.3, 0.5]), np.log([0.25, 0.75])]

    predictions = [
        task.decode(example, features, [{"logits": np.float32(value)} for value in values])
        for example, features, values in zip(examples, task.encode(examples), logits, strict=True)
    ]

    assert [item.choice for item in predictions] == [2, 1]
    np.testing.assert_allclose(predictions[0].scores, [0.2, 0.3, 0.5], rtol=1e-6)
    assert task.score(examples, predictions) == {"accuracy": 0.5}
    assert task.to_dict(examples[1], predictions[1])["choice"] == 1
