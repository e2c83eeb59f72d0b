"""What the demo removes, and what it leaves behind."""

import pytest

from demo.__main__ import begin
from demo.server import Server

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


def test_the_demo_removes_what_it_made(tmp_path):
    """And nothing beside it."""
    out = tmp_path / "new" / "demo"
    begin(out)
    for name in ("models", "notes"):
        (out / name).mkdir()
        (out / name / "a.txt").touch()
    (out / "scores.md").touch()

    begin(out)

    assert sorted(path.name for path in out.iterdir()) == [".demo", "notes"]


def test_the_demo_leaves_a_directory_alone_that_it_did_not_make(tmp_path):
    """As the checkout with its models."""
    (tmp_path / "models").mkdir()

    with pytest.raises(ValueError, match=r"choose another --out"):
        begin(tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == ["models"]


def test_a_server_that_is_never_ready_is_ended(tmp_path, monkeypatch):
    """It does not stay behind when the demo ends with an error."""
    (tmp_path / "serving.py").write_text(NEVER_READY)
    monkeypatch.chdir(tmp_path)
    server = Server(tmp_path)

    with pytest.raises(ValueError, match="the server did not start"), server:
        pass

    assert server._process.returncode is not None


def test_settings_of_other_servers_are_not_for_its_own(tmp_path, monkeypatch):
    """Nor does anyone else reach it."""
    (tmp_path / "serving.py").write_text(PRIVATE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BERTLINE_HOST", "0.0.0.0")

    with Server(tmp_path) as server:
        assert server.target == "127.0.0.1:1"
