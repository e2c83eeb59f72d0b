"""Agreement with PyTorch: nearest neighbours of vectors, and predictions."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from sklearn.metrics import accuracy_score
from sklearn.neighbors import NearestNeighbors

from export import graph_run
from export.agreement import (
    MIN_EXAMPLES,
    compares,
    different_texts,
    neighbour_agreement,
    prediction_agreement,
)
from export.evaluation_set import ExportData
from tasks.batching import predict
from tests.export.conftest import VOCAB, int8

WORDS = VOCAB[5:31]


def make_texts(count, seed=0):
    """Return different texts of 3 to 12 letters, each a word."""
    rng = np.random.default_rng(seed)
    texts = {" ".join(rng.choice(WORDS, rng.integers(3, 13))) for _ in range(2 * count)}
    return sorted(texts)[:count]


def neighbours(vectors, count):
    """Return the nearest neighbours by scikit-learn, [texts, count], without the text itself."""
    search = NearestNeighbors(n_neighbors=count, metric="cosine", algorithm="brute").fit(vectors)
    return search.kneighbors(return_distance=False)


def expected_agreement(actual, expected):
    first = neighbours(actual, 1) == neighbours(expected, 1)
    pairs = zip(neighbours(actual, 10), neighbours(expected, 10), strict=True)
    return {"same_nearest": first.mean(), "same_nearest_10": np.mean([len({*a} & {*b}) / 10 for a, b in pairs])}


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.2, 2.0])
def test_neighbours_agree_as_scikit_learn_counts(noise):
    """The fractions are those of scikit-learn's neighbours by cosine, whatever the lengths of vectors."""
    rng = np.random.default_rng(0)
    expected = rng.normal(size=(150, 16)) * rng.uniform(0.1, 10, (150, 1))
    actual = expected * rng.uniform(0.1, 10, (150, 1)) + noise * rng.normal(size=expected.shape)

    found = neighbour_agreement(actual, expected)

    assert found == pytest.approx(expected_agreement(actual, expected))
    assert (found["same_nearest"] == 1) == (noise == 0)


def test_equally_near_texts_count_as_the_same():
    """Where PyTorch's vectors are all the same, or zero, every neighbour is as near as another."""
    rng = np.random.default_rng(0)

    for expected in (np.ones((120, 4)), np.zeros((120, 4))):
        assert set(neighbour_agreement(rng.normal(size=(120, 4)), expected).values()) == {1.0}


def test_few_examples_have_no_agreement():
    """Below 100 texts or examples, no agreement is reported."""
    vectors, labels = np.eye(MIN_EXAMPLES), [("a",)] * MIN_EXAMPLES

    assert neighbour_agreement(vectors, vectors).keys() == {"same_nearest", "same_nearest_10"}
    assert neighbour_agreement(vectors[1:], vectors[1:]) == {}
    assert prediction_agreement(labels, labels) == {"same_prediction": 1.0}
    assert prediction_agreement(labels[1:], labels[1:]) == {}
    assert prediction_agreement([()] * MIN_EXAMPLES, [()] * MIN_EXAMPLES) == {}


def test_repeated_texts_count_once(monkeypatch):
    """A repeated text would always have itself as nearest neighbour; the number of texts is limited."""
    windows = [[SimpleNamespace(input_ids=np.array(ids))] for ids in ([1, 2], [3], [1, 2], [1], [4])]

    assert different_texts(windows) == [0, 1, 3, 4]
    monkeypatch.setattr("export.agreement.MAX_TEXTS", 2)
    assert different_texts(windows) == [0, 1]


def test_predictions_agree_as_scikit_learn_counts():
    """The fraction is over labels, or over the tags of all words."""
    rng = np.random.default_rng(0)
    actual = [tuple(rng.choice(list("AB"), size)) for size in rng.integers(1, 9, 130)]
    expected = [tuple(rng.choice(list("AB"), len(tags))) for tags in actual]

    found = prediction_agreement(actual, expected)

    assert found["same_prediction"] == pytest.approx(accuracy_score(sum(expected, ()), sum(actual, ())))


def test_neighbours_of_an_export_are_those_of_transformers(tmp_path, checkpoints, export):
    """The manifest has the agreement of the graph's vectors with transformers', counted by scikit-learn."""
    (file := tmp_path / "texts.txt").write_text("\n".join(make_texts(300)) + "\n")
    data, lines = ExportData(texts=file), []

    model = export("plain", int8(min_cosine=0.9), data=data, lines=lines)

    task = model.load_task()
    texts = data.with_calibration(task)[0].examples
    actual = np.array(predict(task, texts, graph_run(model.model_path), max_batch_tokens=1))
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoints["plain"])
    network = transformers.BertModel.from_pretrained(checkpoints["plain"]).eval()
    with torch.inference_mode():
        inputs = tokenizer(list(texts), padding=True, return_tensors="pt")
        expected = network(**inputs).last_hidden_state[:, 0].numpy()
    assert len(texts) == 150
    found = model.manifest.scores["quality"]["static int8"]["agreement"]
    assert found == pytest.approx(expected_agreement(actual, expected), abs=0.01)  # the last digits of equal cosines
    assert model.manifest.scores["quality"]["PyTorch"]["agreement"] == {"same_nearest": 1.0, "same_nearest_10": 1.0}
    said = f"same nearest neighbour {100 * found['same_nearest']:.1f}%"
    assert any(line.startswith("static int8: ") and said in line for line in lines)
    for page in ("README.md", "report.html"):
        text = (model.path / page).read_text()
        assert "overlap of ten nearest" in text
        assert "among the different texts" in text


@pytest.mark.parametrize(("name", "labelled"), [("classification", False), ("tagging", True), ("tagging", False)])
def test_labels_of_an_export_are_compared(name, labelled, tmp_path, checkpoints, export):
    """With labelled data or texts alone, the manifest has the fraction of labels that are transformers'."""
    texts = make_texts(240)
    dev = tmp_path / ("dev.conll" if name == "tagging" else "dev.tsv")
    if name == "tagging":
        dev.write_text("\n".join("".join(f"{word}\tO\n" for word in text.split()) for text in texts))
    else:
        dev.write_text("text\tlabel\n" + "".join(f"{text}\tnews\n" for text in texts))
    (file := tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    data = ExportData(dev=(dev,), train=(dev,)) if labelled else ExportData(texts=file)

    model = export(name, int8(min_cosine=0.5, max_drop=100), data=data)

    evaluated = texts if labelled else list(data.with_calibration(model.load_task())[0].examples)
    found = model.manifest.scores["quality"]["static int8"]["agreement"]
    expected = label_agreement(model, checkpoints[name], evaluated, special_tokens=not labelled)
    assert found.keys() == {"same_prediction"}
    assert found["same_prediction"] == pytest.approx(expected, abs=0.01)
    assert "same prediction" in (model.path / "report.html").read_text()


def label_agreement(model, checkpoint, texts, *, special_tokens):
    """Return the fraction of transformers' labels that the graph has, over texts or tokens."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    is_tagging = model.manifest.task == "tagging"
    kind = transformers.AutoModelForTokenClassification if is_tagging else None
    network = (kind or transformers.AutoModelForSequenceClassification).from_pretrained(checkpoint).eval()
    inputs = tokenizer(list(texts), return_tensors="pt", padding=True)
    with torch.inference_mode():
        expected = network(**inputs).logits.numpy().argmax(-1)
    arrays = {name: value.numpy().astype(np.int32) for name, value in inputs.items()}
    same = graph_run(model.model_path)(arrays)["logits"].argmax(-1) == expected
    if not is_tagging:
        return np.mean(same)
    lengths, skipped = arrays["attention_mask"].sum(1), 0 if special_tokens else 1
    return np.mean([hit for row, length in zip(same, lengths, strict=True) for hit in row[skipped : length - skipped]])


@pytest.mark.parametrize(("count", "is_said"), [(20, True), (240, False)])
def test_too_few_texts_are_said(count, is_said, tmp_path, export):
    """An export reports that neighbours are not compared, and `--quality high` uses the other limits."""
    (file := tmp_path / "texts.txt").write_text("\n".join(make_texts(count)) + "\n")
    config = int8(quality="high", min_cosine=0.5, min_same_nearest=0.0 if count > 100 else None)
    lines = []

    model = export("plain", config, data=ExportData(texts=file), lines=lines)

    (evaluated,) = (line for line in lines if line.startswith("evaluated on"))
    assert ("too few to compare neighbours" in evaluated) == is_said
    quality = model.manifest.scores["quality"][model.manifest.provenance["graph"]["name"]]
    assert bool(quality["agreement"]) != is_said
    assert min(model.manifest.scores["times"].values()) == 1
    assert re.search(r"where 1 is the fastest: .* 1\.00", (model.path / "report.html").read_text())


def test_tasks_without_decisions_compare_nothing(checkpoints, exported):
    """Numbers of a regression have no labels; sequences of a multiple choice alone decide nothing."""
    tasks = {name: directory.load_task() for name, directory in exported.items()}

    unlabelled = {name for name, task in tasks.items() if compares(task, scored=False)}
    labelled = {name for name, task in tasks.items() if compares(task, scored=True)}

    assert unlabelled == {"embedding", "classification", "tagging", "masked-lm"}
    assert labelled == tasks.keys() - {"regression", "sparse-embedding", "token-embedding"}
