"""The benchmarks of servers, on a tiny model for a moment."""

import shlex

import pytest

import benchmarks.fairness
import benchmarks.peers
from benchmarks import scaling
from tests.commands import call
from tests.serving.models import WORDS, write_model

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


@pytest.mark.slow
def test_servers_are_measured(tmp_path, monkeypatch, capfd):
    """Both benchmarks of servers come to their end, and name their loads."""
    write_model(tmp_path / "models")
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(" ".join(WORDS[:3]) for _ in range(256)), "utf-8")
    words = f"{tmp_path / 'models'} --seconds 0.5 "

    peers = call(benchmarks.peers.main, shlex.split(f"{words} --rounds 1 --texts {texts}"), monkeypatch, capfd)
    fairness = call(benchmarks.fairness.main, shlex.split(f"{words} --callers 2 --deadlines-s 1"), monkeypatch, capfd)

    assert (peers.returncode, fairness.returncode) == (0, 0), peers.stderr + fairness.stderr
    for name in ("engine", "gRPC, 32 texts", "HTTP, single texts"):
        assert name in peers.stdout
    assert "2 connections with a request of 16 long texts, interactive" in fairness.stdout
