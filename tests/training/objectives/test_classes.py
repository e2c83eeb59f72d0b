"""Class weights and label smoothing: scikit-learn's weights, PyTorch's losses, in training and distillation."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.utils.class_weight import compute_class_weight
from torch import nn

from tasks.classification import (
    MULTI_LABEL,
    Classification,
    ClassificationExample,
    ClassificationSettings,
)
from tasks.tagging import Tagging, TaggingExample, TaggingSettings
from training.loop.types import Batch
from training.objectives.base import IGNORED, LabelledFeatures
from training.objectives.classes import class_weights, describe_weights
from training.objectives.distillation import LABEL_LOSS, MATCHINGS, TaskDistillation
from training.objectives.registry import OBJECTIVES

LABELS = ("a", "b", "c")
WEIGHTS = {"a": 0.5, "b": 3.0, "c": 1.25}


def batch_of(objective, rows):
    """Return the batch of some rows of labels, without inputs."""
    targets, counts = objective.targets([LabelledFeatures((), tuple(row)) for row in rows])
    return Batch({}, targets, counts, 0)


@given(labels=st.lists(st.sampled_from(LABELS), max_size=30).map(lambda found: [*LABELS, *found]))
def test_balanced_weights_are_those_of_scikit_learn(labels):
    """Balanced weights of classes, tags and labels of multi-label data equal scikit-learn's."""
    expected = compute_class_weight("balanced", classes=np.array(LABELS), y=labels)
    texts = [ClassificationExample("x", label=label) for label in labels]
    sentences = [TaggingExample(("x",) * len(part), tuple(part)) for part in (labels[:2], labels[2:])]
    several = [
        ClassificationExample("x", labels=tuple({*labels[number : number + 2]})) for number in range(len(labels))
    ]

    for objective, task, examples in (
        ("classification", Classification(None, ClassificationSettings(labels=LABELS)), texts),
        ("tagging", Tagging(None, TaggingSettings(labels=LABELS)), sentences),
    ):
        found = class_weights(OBJECTIVES[objective], task, examples, "balanced")
        assert list(found) == list(LABELS)
        assert list(found.values()) == pytest.approx(expected)
    task = Classification(None, ClassificationSettings(labels=LABELS, problem_type=MULTI_LABEL))
    found = class_weights(OBJECTIVES["classification"], task, several, "balanced")
    for label, weight in found.items():
        has_label = [label in example.labels for example in several]
        without, with_label = (
            compute_class_weight("balanced", classes=np.array([False, True]), y=has_label)
            if not all(has_label)
            else (1, 1)
        )
        assert weight == pytest.approx(with_label / without)


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(st.sampled_from([0, 1, 2, IGNORED]), min_size=2, max_size=8),
    smoothing=st.sampled_from([0.0, 0.1, 0.5]),
    weights=st.sampled_from([{}, WEIGHTS]),
    seed=st.integers(0, 99),
)
def test_losses_equal_pytorch(rows, smoothing, weights, seed):
    """The loss over the sum of weights is PyTorch's mean for classes, tags and multi-label data, in any parts."""
    logits = torch.randn(len(rows), 3, generator=torch.Generator().manual_seed(seed))
    weight = torch.tensor([*WEIGHTS.values()]) if weights else None
    several = [[float(row == label) for label in range(3)] for row in rows]
    targets = torch.tensor(several) * (1 - smoothing) + smoothing / 2
    mean = nn.CrossEntropyLoss(weight, label_smoothing=smoothing, ignore_index=IGNORED)

    cases = {
        "classification": ([[row] for row in rows], logits, mean(logits, torch.tensor(rows))),
        "tagging": ([rows], logits[None], mean(logits, torch.tensor(rows))),
        "multi-label": (several, logits, nn.BCEWithLogitsLoss(pos_weight=weight)(logits, targets)),
    }
    for name, (labels, outputs, expected) in cases.items():
        if name != "multi-label" and set(rows) == {IGNORED}:
            continue
        objective = OBJECTIVES["tagging" if name == "tagging" else "classification"].weighted(weights, smoothing)
        parts = [slice(None)] if name == "tagging" else [slice(0, 1), slice(1, None)]
        batches = [batch_of(objective, labels[part]) for part in parts]
        total = sum(
            objective.loss({"logits": outputs[part]}, batch) for part, batch in zip(parts, batches, strict=True)
        )
        torch.testing.assert_close(total / sum(batch.counts["loss"] for batch in batches), expected)


def test_a_student_learns_weighted_labels():
    """Distillation weighs the loss of labels, and leaves that of the teacher alone."""
    task = Classification(None, ClassificationSettings(labels=LABELS))
    objective = OBJECTIVES["classification"].weighted(WEIGHTS, 0.1)
    teacher = np.array([[1.0, 0.0, 0.0]], np.float32)
    student = TaskDistillation(objective, MATCHINGS["classification"](task, 1.0), lambda _: [teacher], alpha=0.5)

    targets, counts = student.targets([LabelledFeatures((), (1,), 0), LabelledFeatures((), (IGNORED,), 1)])
    losses = student.losses(lambda: {"logits": torch.tensor([[0.5, 0.2, 0.1]] * 2)}, Batch({}, targets, counts, 0))

    assert counts == {LABEL_LOSS: 3.0, "teacher_loss": 2}
    expected = nn.CrossEntropyLoss(objective.class_weights, label_smoothing=0.1)
    assert losses[LABEL_LOSS] / 3 == pytest.approx(float(expected(torch.tensor([[0.5, 0.2, 0.1]]), torch.tensor([1]))))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"a": 1, "b": 2}, "label `c` has no weight; it must be like"),
        ({**WEIGHTS, "d": 1}, "label `d` is no label of the training data; it must be like"),
        ({**WEIGHTS, "b": 0}, "the weight of `b` must be a number above 0: `0`"),
        ({**WEIGHTS, "b": True}, "the weight of `b` must be a number above 0: `True`"),
        ({**WEIGHTS, "b": "2"}, "the weight of `b` must be a number above 0: `2`"),
        ([1, 2], "a.json"),
    ],
)
def test_a_file_names_each_label_once(content, message, tmp_path):
    """A file of weights is read in the order of the task's labels; the error names the file and the wrong label."""
    task = Classification(None, ClassificationSettings(labels=LABELS))
    path = tmp_path / "a.json"
    path.write_text(json.dumps(dict(reversed(WEIGHTS.items()))))

    weights = class_weights(OBJECTIVES["classification"], task, [], path)

    assert (weights, [*weights]) == (WEIGHTS, [*LABELS])
    assert describe_weights(weights) == "a 0.5, b 3, c 1.25"
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        class_weights(OBJECTIVES["classification"], task, [], path)
