"""Calibration of int8 vectors at export."""

import json

import numpy as np
import pytest
import scipy.stats

from export import export_checkpoint, graph_run
from export.evaluation_set import ExportData
from tasks.batching import predict
from tasks.small_vectors import FORMATS
from tests.export.conftest import UNTUNED
from tests.export.test_agreement import make_texts


def write_pairs(path, count):
    """Write pairs of texts with similarities."""
    texts, rng = make_texts(2 * count), np.random.default_rng(0)
    rows = [
        {"text": first, "text_pair": second, "label": float(rng.random())}
        for first, second in zip(texts[::2], texts[1::2], strict=True)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture(scope="module")
def exported(checkpoints, tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    write_pairs(folder / "dev.jsonl", 150)
    data = ExportData(dev=(folder / "dev.jsonl",))
    return export_checkpoint(checkpoints["plain"], folder / "embed/1", UNTUNED, data=data), folder / "dev.jsonl"


def test_scales_are_of_the_graph(exported):
    """Scales come from the vectors of the written graph, for each dimension, and vectors fit into them."""
    directory, dev = exported
    small = directory.manifest.small_vectors
    rows = [json.loads(line) for line in dev.read_text("utf-8").splitlines()]
    task = directory.load_task().with_settings(normalize=True)
    vectors = np.array(predict(task, [row["text"] for row in rows], graph_run(directory.path / "model.onnx")))

    assert len(small.scales) == len(small.lengths) == directory.manifest.hidden_size
    assert np.mean(np.abs(vectors / np.array(small.scales)) <= 127.5) > 0.99
    assert set(small.losses) == set(FORMATS)
    assert small.losses["float32"]["same_nearest"] == 1


def test_scores_are_spearman_with_such_vectors(exported):
    """The score of a format is Spearman's correlation of cosines of vectors in it."""
    directory, dev = exported
    rows = [json.loads(line) for line in dev.read_text("utf-8").splitlines()]
    task = directory.load_task().with_settings(normalize=True)
    run = graph_run(directory.path / "model.onnx")
    first, second = (
        np.where(np.array(predict(task, [row[name] for row in rows], run)) > 0, 1, -1) for name in ("text", "text_pair")
    )

    expected = scipy.stats.spearmanr((first * second).sum(1), [row["label"] for row in rows]).statistic
    assert directory.manifest.small_vectors.losses["binary"]["spearman"] == pytest.approx(expected, abs=2e-3)  # ties


def test_few_texts_are_no_calibration(export, tmp_path):
    """Below 200 different texts, and for random sequences, there are no scales."""
    write_pairs(tmp_path / "dev.jsonl", 99)

    assert export("plain", data=ExportData(dev=(tmp_path / "dev.jsonl",))).manifest.small_vectors is None
    assert export("plain", to="m/2").manifest.small_vectors is None
