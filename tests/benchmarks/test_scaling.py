"""The benchmark of one server's limits."""

import pytest

import benchmarks.scaling as scaling
from tests.commands import call
from tests.serving.models import write_model

SMALL = "--seconds 0.5 --num-models 1 3 --num-texts 1 8 --num-connections 20 1"


@pytest.mark.parametrize("folder", ["nosuch", "models/labels"])
def test_models_are_the_folder_of_an_embedding_model(folder, tmp_path):
    """A missing folder and a model of another task are refused by name."""
    write_model(tmp_path / "models", "labels", task="classification")

    with pytest.raises(ValueError, match=f"`{tmp_path / folder}` is not the folder of an embedding model"):
        next(scaling.models(scaling.ScalingSettings(models=tmp_path / folder)))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_all_parts_run(tmp_path, monkeypatch, capfd):
    """Every part comes to its end with small sizes."""
    ended = call(scaling.main, [*SMALL.split(), "--out", str(tmp_path / "scaling")], monkeypatch, capfd)

    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "scaling.md").read_text("utf-8").count("\n## ") == len(scaling.PARTS)
