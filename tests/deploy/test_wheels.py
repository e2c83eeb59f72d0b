"""Wheels of clients and server: what is in them, what they require, and that they run without the repository."""

import json
import re
import runpy
import signal
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path

import pytest
from packaging.dependency_groups import resolve_dependency_groups
from packaging.requirements import Requirement

from bertline import Client
from bertline.jobs.engine import LOCAL_FLAGS, server_process
from tests.deploy import wheels
from tests.deploy.files import DEPLOY, ROOT
from tests.families import create
from tests.hub import HubServer, Repository
from tests.serving.models import write_model

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SERVE = [sys.executable, "-P", "-m", "bertline.cli", "serve"]
SOURCES = ("serving", "tasks", "export", "training")
INTERRUPTED = """
import os, runpy, signal, sys

class Interrupt:
    def find_spec(name, *_):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt)
runpy.run_module({package!r}, {{}}, "__main__")
"""
"""Program that gets SIGINT when a package imports a module."""
VERSION = PROJECT["project"]["version"]
INSTALLING = [
    ROOT / name
    for name in ("README.md", "docs/guides/deploy.md", "docs/guides/run-the-server.md", "deploy/wheels/README.md")
]
"""Pages with commands that install the wheels."""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return the wheels by package."""
    return wheels.build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def site(built, tmp_path_factory):
    """Return a folder like site-packages with both wheels."""
    return wheels.unpack(built, tmp_path_factory.mktemp("site"))


@pytest.fixture
def installed(site, tmp_path, monkeypatch):
    """Make processes find the wheels, not the repository, in a folder with modules of the same names."""
    for name in SOURCES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the wrong package was imported')")
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def without_torch(installed):
    """Return the command of the server in a process that finds no PyTorch."""
    (installed / "start.py").write_text(
        "import runpy, sys\nsys.modules['torch'] = None\nrunpy.run_module('bertline_server', {}, '__main__')"
    )
    return [sys.executable, "start.py"]


def requirements(items, extra=None):
    """Return the requirements of an extra, or those of no extra, without markers and options of spelling."""
    found = set()
    for item in map(Requirement, items):
        if item.marker is None or item.marker.evaluate({"extra": extra or ""}):
            found.add((item.name.replace("_", "-").lower(), frozenset(item.extras), item.specifier))
    return found


def group(name):
    return requirements(resolve_dependency_groups(PROJECT["dependency-groups"], name))


def paths(folder):
    """Return the paths of all files in a folder of the repository, except compiled ones."""
    found = (path for path in (ROOT / folder).rglob("*") if path.is_file())
    return {str(path.relative_to(ROOT / folder)) for path in found if "__pycache__" not in path.parts}


def uses_torch(process):
    return "libtorch" in Path(f"/proc/{process.pid}/maps").read_text()


def test_every_file_is_in_a_wheel(built):
    """The wheels have every file of their packages, data included; nothing else lands in site-packages."""
    server = wheels.files(built["bertline_server"])

    for name, wheel in built.items():
        assert {path.partition("/")[0] for path in wheels.files(wheel)} == {name, f"{name}-{VERSION}.dist-info"}
    for folder in SOURCES:
        assert {f"bertline_server/_app/{folder}/{path}" for path in paths(folder)} <= server
    assert {f"bertline_server/{path}" for path in paths("deploy/wheels/bertline_server")} <= server
    assert {f"bertline/{path}" for path in paths("clients/bertline")} <= wheels.files(built["bertline"])
    assert {name.split("/")[2] for name in server if name.startswith("bertline_server/_app/")} == {*SOURCES}


def test_requirements_are_those_of_the_groups(built):
    """The server requires its clients in the same version and the group `serving`; extras are groups."""
    required = wheels.metadata(built["bertline_server"]).get_all("Requires-Dist")
    clients = requirements([f"bertline[cli]=={VERSION}"])
    runtime = requirements(["onnxruntime>=1.23"])

    assert requirements(required) == group("serving") | clients
    for extra in ("http", "tracing", "openvino", "export"):
        assert requirements(required, extra) - requirements(required) == group(extra) - group("serving")
    assert runtime <= group("export")  # which its extra leaves out


def test_the_client_works_alone(built, tmp_path):
    """The wheel of the clients imports alone and talks to its own fake server."""
    wheels.unpack({"bertline": built["bertline"]}, tmp_path)
    code = (
        "import bertline, bertline.testing as t; s = t.FakeServer(); c = bertline.Client(s.target); "
        "print(bertline.__file__, c.embed(['text']).shape); c.close(); s.close()"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env={"PYTHONPATH": tmp_path}, cwd=tmp_path, capture_output=True, text=True)

    assert done.stdout == f"{tmp_path}/bertline/__init__.py (1, 8)\n", done.stderr


def test_one_distribution_requires_one_runtime():
    """A server for GPUs has another name, and no requirement brings a second runtime."""
    project = tomllib.loads(runpy.run_path(str(ROOT / wheels.BUILD))["server_project"]("-gpu"))["project"]
    everything = [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())]

    assert project["name"] == "bertline-server-gpu"
    assert group("serving-gpu") <= requirements(project["dependencies"])
    assert {name for name, *_ in requirements(everything) if name.startswith("onnxruntime")} == {"onnxruntime-gpu"}


def test_one_version(built):
    """Distributions, image and guide have the version of the root."""
    assert {wheels.metadata(wheel)["Version"] for wheel in built.values()} == {VERSION}
    for path in (DEPLOY / "kubernetes.yaml", ROOT / "docs/guides/deploy.md"):
        assert set(re.findall(r"\bbertline:(\d+\.[\w.]*)", path.read_text())) == {VERSION}
    for path in INSTALLING:
        assert set(re.findall(r"\bbertline(?:_server)?-(.*?)-py3-none-any.whl", path.read_text())) == {VERSION}


def test_nothing_is_installed_by_name():
    """No page and no hint names our distributions to an installer, which would ask PyPI for them."""
    by_name = re.compile(r"(?:pip|pipx|tool) install [^`\n#&]*(?<![\w/.-])bertline(?:-server[\w-]*)?(?![\w/.-])")
    pages = [path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "experiments"]
    sources = [path for name in ("clients", "deploy", "serving") for path in (ROOT / name).rglob("*.*")]
    readable = [path for path in sources if path.suffix in {".py", ".md", ".yaml", ".service", ".toml"}]

    assert {
        path: found for path in [*pages, *readable, *ROOT.glob("*.md")] if (found := by_name.findall(path.read_text()))
    } == {}
    assert by_name.search("pip install --find-links dist 'bertline-server[http]'")
    assert by_name.search("pip install bertline")


@pytest.mark.slow
def test_the_image_is_made_of_the_same_wheels(built, tmp_path):
    """The files that the Dockerfile copies are all that its build needs, and give the same wheels."""
    for names, target in re.findall(r"^COPY ((?!--from).*) (\S+)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE):
        wheels.copy(names.split(), tmp_path / "src" / target)
    inside = wheels.build(tmp_path / "dist", tmp_path / "src")

    assert {name: wheels.files(wheel) for name, wheel in inside.items()} == {
        name: wheels.files(wheel) for name, wheel in built.items()
    }


def test_the_server_runs_without_the_repository(installed):
    """`bertline serve` serves a directory from any folder, without PyTorch, and drains on SIGTERM."""
    write_model(installed / "models")

    with server_process([*SERVE, "models", *LOCAL_FLAGS]) as (process, ready), Client(ready["target"]) as client:
        assert client.embed(["the cat"]).shape == (1, 8)
        assert not uses_torch(process)
    assert process.returncode == 0


@pytest.mark.slow
def test_a_job_starts_the_installed_server(installed):
    """--engine needs no checkout where the server is installed."""
    write_model(installed / "models")
    command = [*SERVE[:-1], "embed", "the cat", "--engine", "models"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert len(json.loads(done.stdout)["vector"]) == 8


def test_help_is_the_servers(installed):
    """--help shows settings and how to serve a model of the hub, and exports nothing."""
    command = [*SERVE, "org/name", "--precision", "int8", "-h"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert done.stdout.startswith("usage: bertline serve [-h]")
    assert "--max-queue-s" in done.stdout
    assert "needs the extra `export`" in " ".join(done.stdout.split())


def test_settings_are_printed_without_an_export(installed, without_torch):
    """--print-config prints the settings for a repository that was never exported."""
    command = [*without_torch, "org/name", "--precision", "int8", "--port", "7", "--print-config"]
    settings = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    assert settings["port"] == {"value": 7, "from": "flag"}
    assert settings["models_dir"]["value"].endswith("/hub/org/name/int8")


def test_a_missing_server_is_one_line(tmp_path, monkeypatch):
    """Without the server's package, the command names it."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "clients"))
    done = subprocess.run([*SERVE, "models"], capture_output=True, text=True, check=False, cwd=tmp_path)

    assert done.returncode == 1
    assert done.stderr == (
        "bertline: no server is installed here; install both wheels of `make dist` by their paths, "
        "or use `make serve` in a checkout\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["org/name"],
            "error: `org/name` is no directory here; to export the repository of this name, the server needs the "
            f"package `torch`: run `python -m pip install 'dist/bertline_server-{VERSION}-py3-none-any.whl[export]'`",
        ),
        (["org/name", "--prot", "1"], "error: unrecognized arguments: --prot 1; see --help"),
        (
            ["org/name", "--precision", "fp16"],
            "error: --precision: `fp16` is none of fp32, int8; for fp16, export with "
            "`python -m bertline_server.export --target cuda` and serve the directory",
        ),
        (["./org/name"], "error: no directory of models: `org/name`; export a model into it first"),
    ],
)
def test_mistakes_are_one_line(without_torch, arguments, message):
    """A repository without the extra, a missing directory and wrong flags are refused in one line, before an export."""
    done = subprocess.run([*without_torch, *arguments], capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert done.stderr.strip() == message


def test_an_exported_repository_starts_without_the_hub(installed, without_torch, monkeypatch):
    """A repository that was exported before is served without network, without PyTorch and without the extra."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(installed))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    write_model(installed / "bertline/hub/org/tiny@main/fp32", "tiny")

    with server_process([*without_torch, "org/tiny@main", *LOCAL_FLAGS, "--precision=fp32"]) as (_, ready):
        assert ready["models"] == ["tiny"]


def test_a_cache_that_cannot_be_written_is_one_line(installed, monkeypatch):
    """A cache for exported repositories that cannot be written is refused before a download."""
    (installed / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(installed / "file"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    done = subprocess.run([*SERVE, "org/name"], capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert done.stderr == (
        f"error: cannot write `{installed}/file/bertline/hub`: Not a directory; set XDG_CACHE_HOME to another folder\n"
    )


@pytest.mark.parametrize(
    ("package", "name", "arguments"),
    [
        ("bertline", "typer", ["serve", "models"]),
        ("bertline_server", "serving.settings", ["models"]),
        pytest.param("bertline_server", "export.__main__", ["org/name"], marks=pytest.mark.slow),
    ],
)
def test_an_interrupt_of_the_start_is_quiet(installed, monkeypatch, package, name, arguments):
    """Ctrl-C while libraries are imported ends the process without a word."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(installed / "cache"))
    command = [sys.executable, "-c", INTERRUPTED.format(package=package, name=name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


@pytest.mark.slow
def test_a_model_of_the_hub(installed, monkeypatch):
    """`bertline serve org/name` downloads, exports and serves a model; the server has no PyTorch in its process."""
    create("bert", "embedding", installed / "tiny")
    monkeypatch.setenv("XDG_CACHE_HOME", str(installed / "cache"))
    monkeypatch.setenv("HF_HOME", str(installed / "hf"))
    with HubServer() as hub:
        hub.repositories["org/tiny"] = Repository.of(installed / "tiny")
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        with server_process([*SERVE, "org/tiny", "--precision", "fp32", *LOCAL_FLAGS]) as (process, ready):
            with Client(ready["target"]) as client:
                assert client.embed(["a text"], model="tiny").shape[0] == 1
            assert not uses_torch(process)
    assert (installed / "cache/bertline/hub/org/tiny/fp32/tiny/1/manifest.json").exists()
