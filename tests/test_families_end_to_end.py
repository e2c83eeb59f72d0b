"""Every family: exported in fp32 and int8, tuned again, and served with the answers that evaluation gives."""

import shutil

import numpy as np
import pytest

from bertline import Client
from export import ExportConfig, export_checkpoint
from export.autotune.model_directory import tune_model_directory
from export.autotune.workload import Workload
from export.evaluation_set import ExportData
from export.source import read_source
from tasks.batching import predict
from tasks.bundle.model_directory import read_model_directory
from tasks.classification import ClassificationExample
from tasks.tagging import TaggingExample
from tests.families import CONFIGS, SETTINGS, create
from tests.serving.processes import listening
from tests.toy_tokenizers import TEXT
from training.checkpoint.evaluation import torch_run

TASKS = ("embedding", "classification", "tagging", "spans", "masked-lm")


def settings(task):
    """Return settings of a task that its checkpoint does not have."""
    found = {key: tuple(value) if isinstance(value, list) else value for key, value in SETTINGS.get(task, {}).items()}
    return found | {"max_seq_length": 32}


def export(kind, task, folder, precision):
    """Export a random checkpoint; return the model directory and the network."""
    folder.mkdir(exist_ok=True)
    create(kind, task, folder / "checkpoint")
    (folder / "texts.txt").write_text("\n".join(TEXT[:5] * 2) + "\n", encoding="utf-8")
    directory = export_checkpoint(
        folder / "checkpoint",
        folder / "models" / task / "1",
        ExportConfig(precision=precision, tune=False, truncate="yes"),
        task=task,
        settings=settings(task),
        data=ExportData(texts=folder / "texts.txt") if task in ("embedding", "classification") else None,
    )
    return directory


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "precision"), [*((task, "fp32") for task in TASKS), ("classification", "int8"), ("masked-lm", "int8")]
)
@pytest.mark.parametrize("kind", sorted(CONFIGS))
def test_exported_graphs_can_be_tuned_again(kind, task, precision, tmp_path, monkeypatch):
    """The graph holds all weights: it is read back, and written as another variant that computes the same."""
    for name in ("search.FIELD_S", "search.FINALISTS_S", "timing.PASS_S", "timing.MIN_BATCHES"):
        monkeypatch.setattr(f"export.autotune.{name}", 1e-3)  # the choice does not matter here
    directory = export(kind, task, tmp_path, precision)

    tune_model_directory(directory.path, Workload((3, 9, 30), directory.manifest.vocab_size))

    assert read_model_directory(directory.path).manifest.precision == precision


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(CONFIGS))
def test_served_equals_evaluated(kind, tmp_path):
    """Vectors, labels and tags of the server are those of PyTorch, text by text."""
    texts, expected = TEXT[:5], {}
    for task, examples in {
        "embedding": texts,
        "classification": [ClassificationExample(text) for text in texts],
        "tagging": [TaggingExample(words=(), source=text) for text in texts],
    }.items():
        known = export(kind, task, tmp_path / task, "fp32").load_task()
        shutil.copytree(tmp_path / task / "models" / task, tmp_path / "models" / task)
        network = read_source(tmp_path / task / "checkpoint", task=task, settings=settings(task)).load_model().eval()
        expected[task] = predict(known, [known.complete(example) for example in examples], torch_run(network, known))

    with listening(tmp_path / "models") as (_, target, _), Client(target) as client:
        vectors = client.embed(texts, model="embedding", truncate=True)
        labels = client.classify(texts, model="classification", truncate=True)
        tagged = client.tag(texts, model="tagging")

    np.testing.assert_allclose(vectors, np.stack(expected["embedding"]), atol=1e-4)
    for found, prediction in zip(labels, expected["classification"], strict=True):
        scores = [item.score for item in found.labels]
        np.testing.assert_allclose(scores, sorted(prediction.scores.tolist(), reverse=True), atol=1e-4)
    for found, prediction in zip(tagged, expected["tagging"], strict=True):
        assert [item.text for item in found.entities] == [item.text for item in prediction.entities]
