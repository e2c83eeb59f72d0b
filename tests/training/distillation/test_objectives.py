"""Tests of what a student learns: formulas against torch's own, and targets across tokenizers."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tasks import create_task, settings_from_dict
from tasks.embedding import EmbeddingSettings
from tasks.spans import SpanExample
from tasks.tagging import TaggingExample
from tasks.text.tokenizer import Tokenizer
from tests.toy_tokenizers import KINDS
from training.distillation.vectors import principal_axes
from training.loop.distributed import CPU, World
from training.loop.types import Batch
from training.objectives.base import LabelledFeatures
from training.objectives.distillation import (
    LABEL_LOSS,
    MATCHINGS,
    TEACHER_LOSS,
    SpanMatching,
    TagMatching,
    TaskDistillation,
)
from training.objectives.registry import OBJECTIVES
from training.objectives.vector_distillation import VectorDistillation, similarity_loss

ALONE = World(0, 1, CPU)
LABELS = ["a", "b", "c"]
TEXTS = ["The old cat, the house; a dog.", "Häuser déjà vu 1234", "我们喜欢读书 in 北京 (a.b@c.org)", "река  течёт"]
NAMES = sorted(KINDS)
made = {name: Tokenizer(make()) for name, make in KINDS.items()}


def task_of(name, tokenizer, **settings):
    return create_task(name, tokenizer, settings_from_dict(name, settings))


def outputs_of(features, width, rng):
    """Return random outputs of a network with an output for each token."""
    if width is None:
        return [{name: rng.normal(size=len(x)) for name in ("start_logits", "end_logits")} for x in features]
    return [{"logits": rng.normal(size=(len(x), width))} for x in features]


def batch_of(**targets):
    return Batch({}, targets, {}, 0)


# Formulas


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_labels_follow_hinton(temperature):
    """The loss of the labels' probabilities is torch's KL divergence at the temperature, times its square."""
    matching = MATCHINGS["classification"](task_of("classification", made["wordpiece"], labels=LABELS), temperature)
    student, teachers = torch.randn(4, 3), [np.random.default_rng(n).normal(size=(4, 1, 3)) for n in range(2)]
    targets = np.stack([matching.target([rows[n] for rows in teachers], None) for n in range(4)])
    mean = torch.stack([F.softmax(torch.tensor(rows[:, 0]) / temperature, -1) for rows in teachers]).mean(0)
    expected = F.kl_div(F.log_softmax(student / temperature, -1), mean.float(), reduction="sum") * temperature**2

    loss = matching.loss({"logits": student}, torch.tensor(targets), batch_of())

    assert float(loss) == pytest.approx(float(expected), rel=1e-5)


def test_multi_label_has_its_minimum_at_the_teacher():
    """The loss of sigmoids is zero for a student equal to the teacher, and positive for any other."""
    settings = {"labels": LABELS, "problem_type": "multi_label_classification"}
    matching = MATCHINGS["classification"](task_of("classification", made["wordpiece"], **settings), 2.0)
    logits = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    targets = torch.tensor(np.stack([matching.target([row[None]], None) for row in logits]))

    losses = [float(matching.loss({"logits": torch.tensor(logits) + d}, targets, batch_of())) for d in (0, 0.1, -1)]

    assert losses[0] == pytest.approx(0, abs=1e-5)
    assert 0 < losses[1] < losses[2]


def test_numbers_are_compared_in_the_unit_of_the_head():
    """Teachers' numbers are averaged and standardised as the labels are."""
    matching = MATCHINGS["regression"](
        task_of("regression", made["wordpiece"], label_mean=2.0, label_deviation=0.5), 1.0
    )

    target = matching.target([np.array([[3.0]]), np.array([[4.0]])], None)

    assert target == pytest.approx([3.0])
    assert float(matching.loss({"logits": torch.tensor([[1.0]])}, torch.tensor(target[None]), batch_of())) == 4.0


def test_choices_of_different_numbers():
    """Questions with fewer choices have no part in the padding, and a teacher's own logits give no loss."""
    matching = MATCHINGS["multiple-choice"](task_of("multiple-choice", made["wordpiece"]), 1.0)
    rows = [np.array([[1.0], [2.0]], np.float32), np.array([[0.5], [1.5], [3.0]], np.float32)]
    targets = nn.utils.rnn.pad_sequence(
        [torch.tensor(matching.target([item], None)) for item in rows], batch_first=True
    )
    logits = torch.tensor(np.concatenate(rows)[:, 0], requires_grad=True)
    loss = matching.loss({"logits": logits}, targets, batch_of(num_choices=torch.tensor([2, 3])))
    loss.backward()

    assert loss.item() == pytest.approx(0, abs=1e-6)
    assert logits.grad.isfinite().all()


@given(st.lists(st.floats(-3, 3), min_size=3, max_size=3), st.lists(st.booleans(), min_size=2, max_size=6))
def test_labels_count_where_there_are_some(values, known):
    """Examples without labels add to the loss of the teachers only, and the losses are divided by their own counts."""
    task = task_of("classification", made["wordpiece"], labels=LABELS)
    objective = OBJECTIVES["classification"]
    features = task.encode([type("Example", (), {"text": "cat", "text_pair": None})] * len(known))
    items = []
    for number, (has_label, windows) in enumerate(zip(known, features, strict=True)):
        labelled = [LabelledFeatures(tuple(windows), (1,))] if has_label else objective.without_label(task, windows)
        items += [LabelledFeatures(item.features, item.labels, number) for item in labelled]
    teacher = np.array([values], np.float32)
    distillation = TaskDistillation(
        objective, MATCHINGS["classification"](task, 1.0), lambda example: [teacher], alpha=0.25
    )
    targets, counts = distillation.targets(items)
    logits = torch.zeros(len(known), 3)
    losses = distillation.losses(lambda **inputs: {"logits": logits}, Batch({}, targets, counts, 0))

    assert counts == {LABEL_LOSS: sum(known), TEACHER_LOSS: len(known)}
    assert float(losses[LABEL_LOSS]) == pytest.approx(sum(known) * np.log(3), rel=1e-5)
    assert distillation.weights == {LABEL_LOSS: 0.25, TEACHER_LOSS: 0.75}


# Targets across tokenizers


@pytest.mark.parametrize("student", NAMES)
@pytest.mark.parametrize("teacher", NAMES)
def test_probabilities_go_to_the_token_of_a_character(teacher, student):
    """Each of a teacher's tokens counts for the student's first token with its first character, or the last of both."""
    tasks, rng = [task_of("spans", made[name]) for name in (teacher, student)], np.random.default_rng(0)
    for text in TEXTS:
        example = SpanExample("the cat?", text)
        (theirs,), (ours,) = (task.encode([example])[0] for task in tasks)
        (output,) = outputs_of([theirs], None, rng)
        rows = SpanMatching.rows(example, [theirs], [output])
        target = SpanMatching(tasks[1], 2.0).target([rows], LabelledFeatures((ours,), ()))

        tokens = [token for token in range(len(theirs)) if theirs.in_context[token] and np.ptp(theirs.offsets[token])]
        for column, key in enumerate(("start_logits", "end_logits")):
            weights = np.exp(output[key] / 2)[[0, *tokens]]
            expected = np.zeros(len(ours))
            expected[0] = weights[0]
            for token, weight in zip(tokens, weights[1:], strict=True):
                character = theirs.offsets[token, column] - column
                holding = [
                    place
                    for place in range(len(ours))
                    if ours.in_context[place] and ours.offsets[place, 0] <= character < ours.offsets[place, 1]
                ]
                expected[holding[-column] if holding else 0] += weight
            np.testing.assert_allclose(target[:, column], expected / weights.sum(), atol=1e-6)


@pytest.mark.parametrize("student", NAMES)
@pytest.mark.parametrize("teacher", NAMES)
def test_spans_are_learnt_by_characters(teacher, student):
    """A certain teacher's answer is the student's tokens of the same characters; probabilities always sum to 1."""
    task, other = task_of("spans", made[student]), task_of("spans", made[teacher], max_seq_length=96)
    for text in TEXTS:
        example = SpanExample("the cat?", text)
        (theirs,), (ours,) = other.encode([example]), task.encode([example])
        word = text.split()[1]
        start, end = text.index(word), text.index(word) + len(word)
        outputs = []
        for window in theirs:
            inside = np.flatnonzero(window.in_context)
            first = inside[window.offsets[inside, 1] > start][0]  # as `answer_positions` does
            last = inside[window.offsets[inside, 0] < end][-1]
            places = np.arange(len(window))
            outputs.append({"start_logits": (places == first) * 50.0, "end_logits": (places == last) * 50.0})
        rows = SpanMatching.rows(example, theirs, outputs)
        target = SpanMatching(task, 1.0).target([rows], LabelledFeatures((ours[0],), ()))
        best = target.argmax(0)

        np.testing.assert_allclose(target.sum(0), 1, atol=1e-5)
        assert ours[0].offsets[best[0], 0] <= start < ours[0].offsets[best[0], 1]
        assert ours[0].offsets[best[1], 0] < end <= ours[0].offsets[best[1], 1]


def test_an_answer_outside_of_a_window_is_not_there():
    """In a student's window without the teacher's answer, all probability is at the first token."""
    tokenizer = made["wordpiece"]
    example = SpanExample("cat?", " ".join(["the old cat sees a red house"] * 12))
    task = task_of("spans", tokenizer, max_seq_length=32, doc_stride=16, max_query_length=8)
    whole = task_of("spans", tokenizer)
    (theirs,), (ours,) = whole.encode([example]), task.encode([example])
    place = np.flatnonzero(theirs[0].in_context)[2]
    output = {name: (np.arange(len(theirs[0])) == place) * 60.0 for name in ("start_logits", "end_logits")}
    rows = SpanMatching.rows(example, theirs, [output])
    targets = [SpanMatching(task, 1.0).target([rows], LabelledFeatures((window,), ())) for window in ours]

    assert len(ours) > 3
    assert targets[0][0] == pytest.approx([0, 0], abs=1e-6)
    assert targets[-1][0] == pytest.approx([1, 1], abs=1e-6)


@pytest.mark.parametrize("student", NAMES)
@pytest.mark.parametrize("teacher", NAMES)
def test_tags_are_learnt_by_words(teacher, student):
    """Each word of a student's windows has the teacher's probabilities, whatever tokens it has."""
    rng = np.random.default_rng(0)
    words = tuple(f"{word}" for text in TEXTS[:3] for word in text.split()) * 4
    example = TaggingExample(words, ("a",) * len(words))
    tasks = [
        task_of("tagging", made[name], labels=LABELS, max_seq_length=length, doc_stride=stride)
        for name, length, stride in ((teacher, 96, 48), (student, 48, 24))
    ]
    (theirs,), (ours,) = (task.encode([example]) for task in tasks)
    outputs = outputs_of(theirs, 3, rng)
    rows = TagMatching.rows(example, theirs, outputs)
    seen = np.zeros(len(words), int)
    for window in ours:
        target = TagMatching(tasks[1], 2.0).target([rows], LabelledFeatures((window,), ()))
        numbers, positions = window.tagged_words
        expected = np.exp(rows[numbers] / 2) / np.exp(rows[numbers] / 2).sum(-1, keepdims=True)
        np.testing.assert_allclose(target[positions], expected, atol=1e-6)
        assert target.sum() == pytest.approx(len(numbers), abs=1e-4)
        seen[numbers] += 1

    assert (seen == 1).all()


# Vectors


def test_similarities_are_compared_in_pairs():
    """The loss is the mean squared difference of all cosines but those of a text to itself."""
    torch.manual_seed(0)
    ours, theirs = torch.randn(5, 4, dtype=torch.float64), F.normalize(torch.randn(5, 7, dtype=torch.float64))
    expected = 0.0
    for first in range(5):
        for second in range(5):
            if first != second:
                own = F.cosine_similarity(ours[first], ours[second], dim=0)
                expected += (own - theirs[first] @ theirs[second]) ** 2 / 4

    assert float(similarity_loss(ours, theirs, ALONE)) == pytest.approx(float(expected), rel=1e-9)


def test_vectors_of_the_teacher_give_no_loss():
    """A student with the teacher's vectors along their axes has no loss at any size."""
    rng = np.random.default_rng(0)
    theirs = rng.normal(size=(6, 8)).astype(np.float32)
    theirs /= np.linalg.norm(theirs, axis=1, keepdims=True)
    axes, kept = principal_axes(theirs, 6)  # six texts have six axes
    objective = VectorDistillation(
        EmbeddingSettings(),
        nn.ModuleDict(),
        lambda numbers: theirs[numbers],
        axes=axes,
        sizes=(6,),
        similarity_weight=1.0,
        world=ALONE,
    )
    targets, counts = objective.targets([LabelledFeatures((), (), number) for number in range(6)])
    hidden = torch.tensor(theirs @ axes)[:, None]
    batch = Batch({"attention_mask": torch.ones(6, 1)}, targets, counts, 0)
    losses = objective.losses(lambda attention_mask: {"last_hidden_state": hidden}, batch)

    assert kept == pytest.approx(1)
    assert [value.item() for value in losses.values()] == pytest.approx([0, 0], abs=1e-5)


@given(st.integers(2, 30), st.integers(1, 8), st.integers(0, 5))
def test_principal_axes_keep_most(count, size, seed):
    """Axes are orthonormal, and keep as much of the squared length as the largest singular values."""
    vectors = np.random.default_rng(seed).normal(size=(count, 8)).astype(np.float32)
    axes, kept = principal_axes(vectors, size)
    singular = np.linalg.svd(vectors.astype(np.float64), compute_uv=False) ** 2

    np.testing.assert_allclose(axes.T @ axes, np.eye(size), atol=1e-5)
    assert kept == pytest.approx(singular[:size].sum() / singular.sum(), abs=1e-9)
    assert np.square(vectors @ axes).sum() == pytest.approx(singular[:size].sum(), rel=1e-4)
