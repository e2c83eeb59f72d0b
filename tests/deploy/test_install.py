"""Installs the wheels as the guides do, with the package index for all they require, and asks the server."""

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from bertline.jobs.engine import LOCAL_FLAGS, server_process
from tests.deploy import wheels
from tests.deploy.files import ROOT
from tests.serving.models import write_model

pytestmark = pytest.mark.slow
CONSTRAINTS = str(ROOT / "constraints.txt")


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """Return the folder of all distributions."""
    folder = tmp_path_factory.mktemp("dist")
    wheels.build(folder)
    return folder


@pytest.fixture
def files(dist):
    """Return the wheels of clients and server."""
    return [next(dist.glob(f"{name}-*.whl")) for name in ("bertline", "bertline_server")]


@pytest.fixture(autouse=True)
def others_with_our_names(tmp_path, monkeypatch):
    """Offer higher versions of our distributions to pip and uv, as anybody could on PyPI."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in ("bertline", "bertline_server"):
        with zipfile.ZipFile(folder / f"{name}-99-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name}-99.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 99\n")
            wheel.writestr(f"{name}-99.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            wheel.writestr(f"{name}-99.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_FIND_LINKS", f"{os.environ.get('PIP_FIND_LINKS', '')} {folder}".strip())
    monkeypatch.setenv("UV_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONSTRAINT", CONSTRAINTS)


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """Return the interpreter of a venv with pipx and uv."""
    folder = tmp_path_factory.mktemp("tools")
    venv.create(folder, with_pip=True)
    run(folder / "bin/python", "-m", "pip", "install", "--quiet", "pipx", "uv")
    return folder / "bin/python"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Work in a folder with a directory of models, without variables that name other packages."""
    write_model(tmp_path / "models")
    monkeypatch.chdir(tmp_path)
    for name in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE"):
        monkeypatch.delenv(name, raising=False)


def run(*command, **variables):
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, env=os.environ | variables
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check(command):
    """Serve models and ask the server, with the installed command alone; PyTorch stays out."""
    with server_process([str(command), "serve", "models", *LOCAL_FLAGS, "--http-port", "0"]) as (process, ready):
        row = json.loads(run(command, "embed", "the cat", "--target", ready["target"]))
        assert len(row["vector"]) == 8
        assert ready["http_url"]
        assert "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text()
    assert process.returncode == 0


def test_pip(files, tmp_path):
    """In an empty venv, pip installs both wheels; nothing of ours but the two packages lands in site-packages."""
    clients, server = files
    folder = tmp_path / "venv"
    venv.create(folder, with_pip=True)
    python = folder / "bin/python"
    run(python, "-m", "pip", "install", "--quiet", clients, f"{server}[http]")
    listed = run(python, "-m", "pip", "show", "--files", "bertline", "bertline-server")
    tops = {line.strip().partition("/")[0] for line in listed.splitlines() if line.startswith("  ")}
    packages = {name for name in tops if not name.endswith(".dist-info")}

    check(folder / "bin/bertline")
    run(python, "-m", "pip", "check")
    assert packages == {"bertline", "bertline_server", ".."}  # the last one is the folder of commands
    assert {"torch", "serving", "tasks"}.isdisjoint(
        path.name for path in next(folder.glob("lib/*/site-packages")).iterdir()
    )


def test_pipx(files, python, tmp_path):
    """Pipx installs the command, and the server with it."""
    clients, server = files
    folders = {"PIPX_HOME": str(tmp_path / "pipx"), "PIPX_BIN_DIR": str(tmp_path / "bin")}
    run(python, "-m", "pipx", "install", f"{clients}[cli]", **folders)
    run(python, "-m", "pipx", "inject", "bertline", f"{server}[http]", **folders)

    check(tmp_path / "bin/bertline")


def test_uv_tool(files, python, tmp_path):
    """`uv tool` installs the command with its server."""
    clients, server = files
    options = ["--python", sys.executable, "--constraints", CONSTRAINTS, "--with", f"{server}[http]"]
    folders = {"UV_TOOL_DIR": str(tmp_path / "uv"), "UV_TOOL_BIN_DIR": str(tmp_path / "bin")}
    run(python, "-m", "uv", "tool", "install", f"{clients}[cli]", *options, **folders)

    check(tmp_path / "bin/bertline")


@pytest.mark.parametrize("name", ["bertline", "bertline_server"])
def test_source_distributions(dist, name, tmp_path):
    """A wheel that pip builds of a source distribution has the same files."""
    (source,) = dist.glob(f"{name}-*.tar.gz")
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, source)
    (made,), (wheel,) = tmp_path.glob("*.whl"), dist.glob(f"{name}-*.whl")

    assert wheels.files(made) == wheels.files(wheel)
