"""Export of multi-label classifiers: foreign checkpoints, the quality gate, and the model directory."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import transformers

from export import graph_run
from export.evaluation_set import ExportData
from export.quality_gate import QualityError
from export.source import read_source
from tasks.batching import predict
from tasks.classification import MULTI_LABEL, ClassificationExample, ClassificationSettings, best_thresholds
from tests.export.conftest import TEXTS, UNTUNED, int8, save_ours
from training.checkpoint.evaluation import torch_run
from training.checkpoint.reader import load_model
from training.checkpoint.task_card import read_task_card
from training.data.columns import Columns
from training.data.examples import sample_indices
from training.data.table_examples import read_classification

LABELS = ("toxic", "insult", "threat")
SIGMOID = "torch.nn.modules.activation.Sigmoid"


@pytest.fixture(scope="module")
def foreign(tmp_path_factory, save_checkpoint):
    """Return a multi-label checkpoint of transformers."""
    id2label = dict(enumerate(LABELS))
    label2id = {label: index for index, label in id2label.items()}
    config = {"id2label": id2label, "label2id": label2id, "problem_type": MULTI_LABEL}
    return save_checkpoint(tmp_path_factory.mktemp("multi") / "foreign", "BertForSequenceClassification", **config)


@pytest.fixture(scope="module")
def ours(tmp_path_factory, foreign):
    """Return a checkpoint with a task card and thresholds, and dev data that it labels rightly, but for one text."""
    folder, model = tmp_path_factory.mktemp("ours"), load_model(foreign, "classification")
    examples = [ClassificationExample(f"{text} {letter}") for text in TEXTS for letter in "abcdefghijkl"]
    plain = read_source(foreign).task
    scores = [one.scores for one in predict(plain, examples, torch_run(model, plain))]
    thresholds = tuple(np.median(np.array(scores, dtype=np.float64), axis=0).tolist())  # half of the texts each
    settings = ClassificationSettings(max_seq_length=32, labels=LABELS, problem_type=MULTI_LABEL, thresholds=thresholds)
    save_ours(folder / "ours", foreign, "classification", settings)
    task = read_source(folder / "ours").task
    found = predict(task, examples, torch_run(model, task))
    texts = [example.text for example in examples]
    rows = [{"text": text, "label": list(one.selected)} for text, one in zip(texts, found, strict=True)]
    rows[0]["label"] = [label for label in LABELS if label not in rows[0]["label"]]
    (dev := folder / "dev.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "ours", dev


@pytest.mark.filterwarnings("ignore")
def test_scores_are_those_of_transformers(foreign, export):
    """A foreign checkpoint with the problem type gives the scores of transformers' pipeline."""
    model = export(foreign)

    ours = predict(model.load_task(), [ClassificationExample(text) for text in TEXTS], graph_run(model.model_path))
    theirs = transformers.pipeline("text-classification", model=str(foreign), device="cpu")(TEXTS, top_k=None)
    for one, other in zip(ours, theirs, strict=True):
        assert dict(one.ranked()) == pytest.approx({item["label"]: item["score"] for item in other}, abs=1e-5)
        assert set(one.selected) == {item["label"] for item in other if item["score"] >= 0.5}


def test_settings_travel_with_the_model(ours, export):
    """Manifest, card and configuration of the model directory have the problem type; thresholds come from the card."""
    model = export(ours[0])

    assert len(model.manifest.settings.thresholds) == 3
    assert model.load_task().settings == read_task_card(ours[0]).settings
    assert transformers.AutoConfig.from_pretrained(model.path).problem_type == MULTI_LABEL
    assert "item.selected" in (model.path / "README.md").read_text()


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_the_gate_scores_sets_of_labels(ours, export, precision):
    """The quality gate measures the F1 of the selected labels, with the thresholds of the checkpoint."""
    checkpoint, dev = ours
    config = UNTUNED if precision == "fp32" else int8(max_drop=100)

    model = export(checkpoint, config, data=ExportData(dev=(dev,), train=(dev,)))

    quality = model.manifest.scores["quality"]
    task, examples = model.load_task(), read_classification(dev, Columns())
    own = model.manifest.provenance["graph"]["name"]
    found = predict(task, examples, graph_run(model.model_path))
    assert 0.9 < quality["PyTorch"]["scores"]["micro_f1"] < 1
    assert next(iter(quality[own]["scores"])) == "micro_f1"
    assert quality[own]["scores"] == pytest.approx(task.score(examples, found), abs=0.05)


def without_thresholds(ours, tmp_path):
    """Return the checkpoint of `ours` as others save it: without task card."""
    directory = shutil.copytree(ours[0], tmp_path / "bare")
    (directory / "task.json").unlink()
    return directory


def test_thresholds_are_chosen_on_dev(tmp_path, ours, export):
    """Half of the dev data choose the thresholds of a checkpoint without any, the other half judge the graph."""
    said = []
    model = export(without_thresholds(ours, tmp_path), data=ExportData(dev=(ours[1],)), lines=said)

    manifest, examples = model.manifest, read_classification(ours[1], Columns())
    chosen = sample_indices(len(examples), len(examples) // 2)
    others = set(range(len(examples))) - set(chosen)
    halves = [[examples[index] for index in sorted(half)] for half in (chosen, others)]
    plain = read_source(tmp_path / "bare").task
    network = torch_run(load_model(ours[0], "classification"), plain)
    predictions = [predict(plain, half, network) for half in halves]
    assert manifest.settings.thresholds == pytest.approx(best_thresholds(halves[0], predictions[0], LABELS))
    decided = [model.load_task().decide(item) for item in predictions[1]]
    scores = model.load_task().score(halves[1], decided)
    assert manifest.scores["quality"]["PyTorch"]["scores"] == pytest.approx(scores)
    assert manifest.scores["evaluated_on"].startswith(f"{len(halves[1])} examples of dev.jsonl, thresholds chosen on ")
    (line,) = (line for line in said if "thresholds; the best for F1" in line)
    assert f"chosen on {len(halves[0])} examples of --dev; {len(halves[1])} others judge the graphs" in line
    assert "\n" not in line


def test_few_examples_choose_and_judge(tmp_path, ours, export):
    """Few examples do both, and the output and the manifest state this; given thresholds are kept."""
    said, few, bare = [], tmp_path / "few.jsonl", without_thresholds(ours, tmp_path)
    few.write_text("".join(ours[1].read_text().splitlines(keepends=True)[:20]))
    data = ExportData(dev=(few,))

    model = export(bare, data=data, lines=said)
    given = export(bare, to="m/2", data=data, settings={"thresholds": (0.1, 0.2, 0.3)})

    assert len(model.manifest.settings.thresholds) == 3
    assert any("which also judge the graphs, so scores are too good; give at least 40" in line for line in said)
    assert model.manifest.scores["evaluated_on"].endswith("thresholds chosen on the same examples")
    assert given.manifest.settings.thresholds == (0.1, 0.2, 0.3)
    assert "thresholds" not in given.manifest.scores["evaluated_on"]


def test_nothing_is_chosen_without_labels(ours, export, tmp_path, texts_file):
    """Texts without labels leave the thresholds at 0.5."""
    said = []

    model = export(without_thresholds(ours, tmp_path), data=ExportData(texts=texts_file), lines=said)

    assert model.manifest.settings.thresholds == ()
    assert "the checkpoint has no thresholds, so each is 0.5 (--dev to choose them, or --thresholds)" in said


def test_the_gate_refuses_a_loss_of_f1(ours, export, monkeypatch):
    """A graph that selects other labels than the network is refused."""
    checkpoint, dev = ours
    monkeypatch.setattr("export.network._INT8_MAX", np.float32(0.4))  # all weights become 0

    with pytest.raises(QualityError, match="micro_f1"):
        export(checkpoint, int8(), data=ExportData(dev=(dev,), train=(dev,)))


def test_a_flag_gives_the_problem_type(tmp_path, save_checkpoint):
    """A classifier whose configuration names a sigmoid needs --problem-type; its thresholds can be given."""
    directory = save_checkpoint(
        tmp_path / "c", "BertForSequenceClassification", num_labels=3, sbert_ce_default_activation_function=SIGMOID
    )
    with pytest.raises(ValueError, match="give --problem-type multi_label_classification"):
        read_source(directory)

    settings = {"problem_type": MULTI_LABEL, "thresholds": (0.1, 0.2, 0.3)}

    assert read_source(directory, settings=settings).task.settings.label_thresholds.tolist() == [0.1, 0.2, 0.3]
