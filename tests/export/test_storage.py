"""Large graphs, whose weights are in a second file."""

from __future__ import annotations

import shutil

import numpy as np
import onnx
import pytest
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from export import export_checkpoint, graph_run
from export.autotune.model_directory import tune_model_directory
from export.autotune.workload import Workload
from serving.core.models import load_model
from tasks.bundle.model_directory import DATA_FILE, MODEL_FILE, read_model_directory
from tests.export.conftest import UNTUNED, int8


@pytest.fixture
def small_files(monkeypatch):
    """Limit graph files to 10 kB."""
    monkeypatch.setattr("export.storage.MAX_FILE_BYTES", 10_000)


@pytest.fixture(scope="module")
def exported_large(tmp_path_factory, checkpoints):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("export.storage.MAX_FILE_BYTES", 10_000)
        return export_checkpoint(checkpoints["plain"], tmp_path_factory.mktemp("large") / "large/1", UNTUNED)


@pytest.fixture
def large(tmp_path, exported_large, small_files):
    """Return a copy of the model directory with its weights in a second file."""
    return read_model_directory(shutil.copytree(exported_large.path, tmp_path / "large/1"))


def test_weights_are_in_a_second_file(large, exported, random_batch):
    """The second file has a digest, weights start at page boundaries, and the outputs are the same."""
    proto = onnx.load(large.model_path, load_external_data=False)
    places = [ExternalDataInfo(item) for item in proto.graph.initializer if uses_external_data(item)]

    assert set(large.manifest.files) == {MODEL_FILE, DATA_FILE, "tokenizer.json"}
    assert large.model_path.stat().st_size < (large.path / DATA_FILE).stat().st_size
    assert {(item.location, item.offset % 4096) for item in places} == {(DATA_FILE, 0)}
    onnx.checker.check_model(str(large.model_path))
    arrays = random_batch(3, 9)
    found, expected = (graph_run(model.model_path)(arrays) for model in (large, exported["embedding"]))
    np.testing.assert_array_equal(found["sentence_embedding"], expected["sentence_embedding"])


@pytest.mark.usefixtures("untimed")
def test_large_graphs_are_tuned_again(export, small_files, random_batch):
    """After tuning, the weights are still in a second file, and the outputs are the same."""
    before = export("masked-lm", int8(), task="masked-lm")
    arrays = random_batch(2, 9)
    expected = graph_run(before.model_path)(arrays)["logits"]

    tune_model_directory(before.path, Workload((3, 9), 65))

    after = read_model_directory(before.path)
    mask = arrays["attention_mask"].astype(bool)
    found = graph_run(after.model_path, execution=after.manifest.execution)(arrays)["logits"]
    assert DATA_FILE in after.manifest.files
    np.testing.assert_allclose(found[mask], expected[mask], atol=0.2)


@pytest.mark.usefixtures("untimed")
def test_graphs_that_now_fit_become_one_file(large, monkeypatch):
    """The second file is removed when tuning writes one file."""
    monkeypatch.setattr("export.storage.MAX_FILE_BYTES", 1 << 30)

    tune_model_directory(large.path, Workload((3, 9), 65))

    assert DATA_FILE not in read_model_directory(large.path).manifest.files
    assert not (large.path / DATA_FILE).exists()


def test_graphs_with_other_weights_have_other_digests(large, tmp_path, save_checkpoint, export):
    """The digest of the graph identifies a model, so it depends on weights in the second file."""
    again = export(save_checkpoint(tmp_path / "other", initializer_range=0.3))

    assert again.manifest.files[MODEL_FILE] != large.manifest.files[MODEL_FILE]


@pytest.mark.usefixtures("untimed")
def test_running_model_is_not_affected_by_tuning(large, texts):
    """A loaded model computes the same after its directory was tuned."""
    model = load_model(large.path)
    sequences = model.task.encode(texts[:1])[0]
    before = model.compute(sequences)[0]["sentence_embedding"]

    tune_model_directory(large.path, Workload((3, 9), 65))

    np.testing.assert_array_equal(model.compute(sequences)[0]["sentence_embedding"], before)
