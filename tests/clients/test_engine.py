from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from bertline.jobs.engine import engine
from bertline.jobs.storage import FileError
from tests.clients.command import Run, fails
from tests.serving.models import write_model


def servers_of(models: Path) -> int:
    """Count the processes that serve a folder."""
    commands = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            commands.append(path.read_bytes().split(b"\0"))
        except OSError:  # the process has just ended
            continue
    return sum(command[1:2] == [b"-c"] and str(models).encode() in command for command in commands)


def wait_for_servers(models: Path, count: int) -> None:
    end = time.monotonic() + 30
    while servers_of(models) != count:
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = tmp_path_factory.mktemp("models")
    write_model(models)
    return models


def test_a_job_serves_its_own_models(run: Run, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--engine starts a server and stops it with the job; BERTLINE_ variables of other servers do not apply to it."""
    (tmp_path / "in.txt").write_text("the cat\nthe dog\n" * 200)
    (tmp_path / "tokens").write_text("a-token\n")
    settings = {"HOST": "0.0.0.0", "TOKENS_FILE": f"{tmp_path}/tokens", "TLS_CERT": f"{tmp_path}/none", "WORKERS": "no"}
    for name, value in settings.items():
        monkeypatch.setenv(f"BERTLINE_{name}", value)
    output = tmp_path / "out.npy"

    assert run("embed", "-i", f"{tmp_path}/in.txt", "-o", str(output), "--engine", str(models)).code == 0
    assert np.load(output).shape == (400, 8)
    assert servers_of(models) == 0


def test_a_server_does_not_outlive_its_job(models: Path, tmp_path: Path) -> None:
    """The server ends when its job is killed."""
    arguments = ["embed", "-i", "-", "-o", str(tmp_path / "out.npy"), "--engine", str(models)]
    with subprocess.Popen([sys.executable, "-m", "bertline.cli", *arguments], stdin=subprocess.PIPE) as process:
        wait_for_servers(models, 1)
        process.kill()
        wait_for_servers(models, 0)


def test_models_that_cannot_be_served(run: Run, tmp_path: Path) -> None:
    """Models that cannot be served are an error of one line."""
    (tmp_path / "empty").mkdir()

    assert fails(run("embed", "text", "--engine", str(tmp_path / "empty")), "cannot serve")


@pytest.mark.parametrize("name", ["org/models", "none"])
def test_a_missing_folder_is_no_repository(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A folder that does not exist ends the job before a server starts, which could take its name for a repository."""
    monkeypatch.setattr("bertline.jobs.engine.server_process", lambda *_: pytest.fail("a server was started"))
    monkeypatch.chdir(tmp_path)

    assert fails(run("embed", "text", "--engine", name), f"no directory of models: `{name}`")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, "no server is installed here; install both wheels of `make dist` by their paths, or run this in"),
        ("import a_missing_library", "No module named 'a_missing_library'"),
    ],
)
def test_only_a_missing_server_is_reported_as_one(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str | None, message: str
) -> None:
    """The error names the server if it is missing, and otherwise the library that it misses."""
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.chdir(tmp_path)
    if source:
        (tmp_path / "serving").mkdir()
        (tmp_path / "serving/__main__.py").write_text(source)

    with pytest.raises(FileError, match=re.escape(message)), engine(str(models)):
        pass
