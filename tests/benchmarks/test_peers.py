"""The benchmarks of servers, on a tiny model for a moment."""

import shlex

import pytest

import benchmarks.fairness
import benchmarks.peers
from tests.commands import call
from tests.serving.models import WORDS, write_model


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
