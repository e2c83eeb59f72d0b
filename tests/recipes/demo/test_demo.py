"""Output directory and server of the demo."""

from contextlib import contextmanager

import pytest

from bertline.jobs.engine import server_process
from recipes import stage
from recipes.demo.__main__ import begin

NEVER_READY = """
import os, signal, sys
os.close(int(sys.argv[sys.argv.index("--ready-fd") + 1]))
signal.pause()
"""

PRIVATE = """
import json, os, signal, sys
names = [name for name in os.environ if name.startswith("BERTLINE_")]
host = sys.argv[sys.argv.index("--host") + 1]
with open(int(sys.argv[sys.argv.index("--ready-fd") + 1]), "w") as ready:
    json.dump({"target": names or f"{host}:1", "message": "serving 1 model"}, ready)
signal.pause()
"""


def test_results_of_the_previous_demo_are_removed(tmp_path):
    """Only results are removed; other files stay."""
    out = tmp_path / "new" / "demo"
    begin(out)
    for name in ("models", "notes"):
        (out / name).mkdir()
        (out / name / "a.txt").touch()
    (out / "scores.md").touch()

    begin(out)

    assert sorted(path.name for path in out.iterdir()) == [".demo", "notes"]


def test_other_directories_are_not_touched(tmp_path):
    """A directory that the demo did not make, such as the checkout, is refused."""
    (tmp_path / "models").mkdir()

    with pytest.raises(ValueError, match=r"choose another --out"):
        begin(tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == ["models"]


def test_server_that_is_never_ready_is_ended(tmp_path, monkeypatch):
    """A server that does not become ready is ended, and the demo stops with an error."""
    (tmp_path / "serving.py").write_text(NEVER_READY)
    monkeypatch.chdir(tmp_path)
    started = []

    @contextmanager
    def recorded(command):
        with server_process(command) as (process, ready):
            started.append(process)
            yield process, ready

    monkeypatch.setattr(stage, "server_process", recorded)
    with pytest.raises(ValueError, match="the server did not start"), stage.serve(tmp_path):
        pass

    assert [process.returncode is not None for process in started] == [True]


def test_server_ignores_settings_of_other_servers(tmp_path, monkeypatch):
    """The demo's server listens on localhost only, and reads no settings from the environment."""
    (tmp_path / "serving.py").write_text(PRIVATE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BERTLINE_HOST", "0.0.0.0")

    with stage.serve(tmp_path) as target:
        assert target == "127.0.0.1:1"
