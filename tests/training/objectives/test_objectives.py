"""Tests of every task's loss against transformers', and of its learning."""

import json
from typing import get_args, get_type_hints

import numpy as np
import pytest
import torch
import transformers

from tasks import create_task, settings_from_dict
from tasks.batching import predict
from tasks.classification import MULTI_LABEL, ClassificationExample
from tasks.multiple_choice import MultipleChoiceExample
from tasks.regression import RegressionExample
from tasks.spans import SpanExample
from tasks.tagging import TaggingExample
from tasks.text.tokenizer import Tokenizer
from training.checkpoint.evaluation import load_for_evaluation
from training.checkpoint.reader import create_model, read_shape
from training.checkpoint.task_card import TaskCard, read_task_card
from training.checkpoint.writer import save_checkpoint
from training.data.columns import Columns
from training.data.examples import Examples
from training.evaluate import main as evaluate
from training.finetuning.data import task_settings
from training.finetuning.recipe import FinetuneRecipe
from training.finetuning.run import finetune
from training.loop.run_directory import read_metrics
from training.objectives.base import IGNORED
from training.objectives.finetuning import FinetuningData, label_examples
from training.objectives.registry import OBJECTIVES

LEARN = {"learning_rate": 3e-3, "global_batch_size": 16, "micro_batch_size": 16, "dtype": "fp32", "dropout": 0.0}
EXAMPLES = {
    "classification": [ClassificationExample("the cat", None, "yes"), ClassificationExample("a big dog", "runs", "no")],
    "spans": [SpanExample("the?", "a red cat", ("red",), 2), SpanExample("dog?", "the house near the river")],
    "regression": [RegressionExample("the cat", "a dog", 1.5), RegressionExample("a big old tree", None, 4.0)],
    "multiple-choice": [
        MultipleChoiceExample(("a cat", "the big dog runs"), "the house", label=1),
        MultipleChoiceExample(("tree", "river"), "near the", "old", label=0),
    ],
    "tagging": [
        TaggingExample(("the", "small", "River"), ("O", "B-LOC", "I-LOC")),
        TaggingExample(("a", "cat"), ("O", "O")),
    ],
}
LOSSES = EXAMPLES | {
    "multi-label": [
        ClassificationExample("the cat", labels=("no", "yes")),
        ClassificationExample("a big dog", labels=()),
    ]
}
SETTINGS = {
    "multi-label": {"labels": ["maybe", "no", "yes"], "problem_type": MULTI_LABEL},
    "classification": {"labels": ["no", "yes"]},
    "spans": {"unanswerable": True},
    "tagging": {"labels": ["B-LOC", "I-LOC", "O"]},
}
AUTO = {
    "classification": transformers.AutoModelForSequenceClassification,
    "spans": transformers.AutoModelForQuestionAnswering,
    "regression": transformers.AutoModelForSequenceClassification,
    "multiple-choice": transformers.AutoModelForMultipleChoice,
    "tagging": transformers.AutoModelForTokenClassification,
}


def test_tables_of_tasks_agree():
    """Every task that can be fine-tuned has a reader, a baseline, a value of the flag, and examples in these tests."""
    choices = get_args(get_args(get_type_hints(FinetuneRecipe, include_extras=True)["task"])[0])

    assert set(choices) == OBJECTIVES.keys() == EXAMPLES.keys()
    assert all(objective.baselines for objective in OBJECTIVES.values())


@pytest.mark.parametrize(("doc_stride", "expected"), [(128, 32), (12, 12)])
@pytest.mark.parametrize("changes", [{"task": "spans", "max_query_length": 16}, {"task": "tagging"}])
def test_windows_start_half_a_window_apart_at_most(changes, doc_stride, expected, checkpoint):
    """Windows start at most half a window apart, whatever doc_stride the recipe has."""
    places = dict.fromkeys(("checkpoint", "run_dir"), checkpoint)
    recipe = FinetuneRecipe(**places, **changes, train=(checkpoint,), max_seq_length=64, doc_stride=doc_stride)

    settings = task_settings(recipe, Examples(("here", example) for example in EXAMPLES[recipe.task]), Examples(()))

    assert settings.doc_stride == expected


def their_arguments(task, inputs, targets):
    labels = targets["labels"]
    if task == "spans":
        return inputs | {"start_positions": labels[:, 0], "end_positions": labels[:, 1]}
    if task == "multiple-choice":
        inputs = {name: value.view(2, 2, -1) for name, value in inputs.items()}
    if task == "tagging":
        padding = inputs["input_ids"].shape[1] - labels.shape[1]
        return inputs | {"labels": torch.nn.functional.pad(labels, (0, padding), value=IGNORED)}
    return inputs | {"labels": labels if labels.is_floating_point() and labels.shape[1] > 1 else labels[:, 0]}


@pytest.mark.parametrize("case", LOSSES)
def test_losses_equal_transformers(case, checkpoint, tmp_path):
    """The mean loss equals that of transformers' AutoModel, and micro-batches of one example give the same sum."""
    name = "classification" if case == "multi-label" else case
    task = create_task(name, Tokenizer.load(checkpoint), settings_from_dict(name, SETTINGS.get(case, {})))
    torch.manual_seed(0)
    model = create_model(name, read_shape(checkpoint), num_labels=len(getattr(task.settings, "labels", ()))).eval()
    torch.nn.init.normal_(list(model.parameters())[-2], std=0.5)
    save_checkpoint(
        tmp_path / "ours", model, tokenizer_from=checkpoint, card=TaskCard(task=name, settings=task.settings)
    )
    items, _ = label_examples(task, Examples(("here", example) for example in LOSSES[case]))
    data = FinetuningData(items, OBJECTIVES[name], global_batch_size=2, seed=0, pad_id=0)
    whole, *parts = (data.batch(0, 0, part) for part in (slice(0, 2), slice(0, 1), slice(1, 2)))

    ours = OBJECTIVES[name].losses(model, whole)["loss"] / whole.counts["loss"]
    apart = sum(OBJECTIVES[name].losses(model, part)["loss"] for part in parts) / whole.counts["loss"]
    theirs = AUTO[name].from_pretrained(tmp_path / "ours").eval()
    if name == "spans":  # transformers' softmax includes padding
        padding = [slice(0, int(part.inputs["attention_mask"].sum())) for part in parts]
        cut = [{key: value[:, keep] for key, value in p.inputs.items()} for p, keep in zip(parts, padding, strict=True)]
        losses = [theirs(**their_arguments(name, c, p.targets)).loss for c, p in zip(cut, parts, strict=True)]
        expected = sum(losses) / 2
    else:
        expected = theirs(**their_arguments(name, whole.inputs, whole.targets)).loss

    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(apart, expected, atol=1e-5, rtol=1e-5)


def write_regression(path, seed):
    """Write texts labelled with the fraction of cats among their words."""
    rng = np.random.default_rng(seed)
    texts = [rng.choice(["cat", "dog", "the"], rng.integers(3, 9)) for _ in range(200)]
    rows = [{"text": " ".join(words), "label": float((words == "cat").mean())} for words in texts]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_multiple_choice(path, seed):
    """Write questions with two or three choices; the choice with the cat is right."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(200):
        nouns = ("cat", "dog", "tree")[: rng.integers(2, 4)]
        choices = [f"{rng.choice(['the', 'old', 'big'])} {noun}" for noun in nouns]
        order = rng.permutation(len(choices))
        rows.append({"question": "the house", "choices": [choices[i] for i in order], "label": int(order.argmin())})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_tagging(path, seed):
    """Write sentences in which a river is a place next to a cat and a person next to a dog."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(300):
        animal = str(rng.choice(["cat", "dog"]))
        words = rng.permutation([animal, *rng.choice(["the", "old", "river"], rng.integers(3, 10))])
        tag = {"cat": "B-LOC", "dog": "B-PER"}[animal]
        lines += [f"{word}\t{tag if word == 'river' else 'O'}" for word in words]
        lines.append("")
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize(
    ("name", "write", "score", "epochs", "at_least"),
    [
        ("regression", write_regression, "pearson", 8, 0.8),
        ("multiple-choice", write_multiple_choice, "accuracy", 4, 0.9),
        ("tagging", write_tagging, "f1", 8, 0.9),
    ],
)
def test_new_tasks_are_learnt(name, write, score, epochs, at_least, checkpoint, tmp_path, alone, monkeypatch, capsys):
    """A fine-tuned model beats the baseline clearly, and `training.evaluate` gives the same scores and predictions."""
    suffix = "conll" if name == "tagging" else "jsonl"
    train, dev = (write(tmp_path / f"{seed}.{suffix}", seed) for seed in (0, 1))
    recipe = FinetuneRecipe(
        task=name,
        checkpoint=checkpoint,
        train=(train,),
        dev=(dev,),
        run_dir=tmp_path / "run",
        num_epochs=epochs,
        max_seq_length=16,
        **LEARN,
    )

    path = finetune(recipe, alone)

    card = read_task_card(path)
    _, base = (row for row in card.scores.values() if isinstance(row, dict))
    assert card.scores["dev"][score] > at_least > base[score] + 0.1
    out = tmp_path / "predictions.jsonl"
    monkeypatch.setattr("sys.argv", ["evaluate", str(path), "--data", str(dev), "--predictions", str(out)])
    evaluate()
    assert f"{100 * card.scores['dev'][score]:.2f}" in capsys.readouterr().out
    assert len(out.read_text().splitlines()) == len(OBJECTIVES[name].read(dev, Columns()))


def finetuned_numbers(tmp_path, name, labels_of, *, checkpoint, world, **changes):
    """Fine-tune regression on labels that are a function of `write_regression`'s."""
    paths = [write_regression(tmp_path / f"{name}{seed}.jsonl", seed) for seed in (0, 1)]
    for path in paths:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(row | {"label": labels_of(row["label"])}) + "\n" for row in rows))
    recipe = FinetuneRecipe(
        task="regression",
        checkpoint=checkpoint,
        train=paths[:1],
        dev=paths[1:],
        run_dir=tmp_path / name,
        max_seq_length=16,
        **LEARN | {"num_epochs": 3} | changes,
    )
    return finetune(recipe, world), OBJECTIVES["regression"].read(paths[1], Columns())


def test_shift_and_scale_of_labels_do_not_matter(checkpoint, tmp_path, alone):
    """Shifted and scaled labels give the same correlations and scaled errors, also in transformers."""
    plain, dev = finetuned_numbers(tmp_path, "plain", lambda y: y, checkpoint=checkpoint, world=alone)
    moved, _ = finetuned_numbers(tmp_path, "moved", lambda y: 50 + 5 * y, checkpoint=checkpoint, world=alone)

    own, other = (read_task_card(path).scores["dev"] for path in (plain, moved))
    assert own["pearson"] > 0.5
    assert other["pearson"] == pytest.approx(own["pearson"], abs=1e-3)
    assert other["mean_absolute_error"] == pytest.approx(5 * own["mean_absolute_error"], rel=1e-2)
    settings = [read_task_card(path).settings for path in (plain, moved)]
    assert settings[1].label_mean == pytest.approx(50 + 5 * settings[0].label_mean)
    assert settings[1].label_deviation == pytest.approx(5 * settings[0].label_deviation)
    last = [line for line in read_metrics(tmp_path / "moved") if "eval_pearson" in line][-1]
    assert last["eval_mean_absolute_error"] == pytest.approx(other["mean_absolute_error"], rel=1e-5)

    task, run = load_for_evaluation(moved)
    found = predict(task, dev, run)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(moved).eval()
    with torch.no_grad():
        ids = torch.from_numpy(task.encode(dev[:1])[0][0].input_ids).long()[None]
        assert float(theirs(ids).logits) == pytest.approx(found[0], rel=1e-5)

    again, _ = finetuned_numbers(
        tmp_path, "again", lambda y: 100 * y, checkpoint=moved, world=alone, learning_rate=1e-12, num_epochs=0.1
    )
    task, run = load_for_evaluation(again)
    assert predict(task, dev, run) == pytest.approx(found, rel=1e-4)


def test_equal_labels_are_learnt(checkpoint, tmp_path, alone):
    """Equal labels train with a deviation of 1, so nothing is divided by zero."""
    path, _ = finetuned_numbers(tmp_path, "same", lambda y: 0.1, checkpoint=checkpoint, world=alone, num_epochs=0.1)

    card = read_task_card(path)

    assert (card.settings.label_mean, card.settings.label_deviation) == (0.1, 1.0)
