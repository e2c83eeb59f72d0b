"""Build the wheels and source distributions of `bertline` (clients) and `bertline-server`.

    python deploy/wheels/build.py --out dist
    python deploy/wheels/build.py --out dist --runtime gpu    # bertline-server-gpu instead of bertline-server

Needs setuptools 77 or newer, and no network. Each distribution is made from a copy of its files, so that nothing of an
earlier build gets into it. The server's dependencies are the groups of the root's pyproject.toml. One distribution can
require only one of ONNX Runtime's packages, so the runtime is part of the distribution's name, as ONNX Runtime's own.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SOURCES = ("serving", "tasks", "export", "training")
"""Packages inside the server's; `export` and `training` are loaded only with the extra `export`."""
RUNTIMES = {"cpu": "", "gpu": "-gpu"}
"""Runtime -> suffix of the dependency group `serving` and of the distribution."""
EXTRAS = ("http", "tracing", "openvino", "export")
"""Dependency groups that are extras of the server."""
BACKEND = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"
SERVER = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "bertline-server{suffix}"
version = "{version}"
description = "Server of BERT-like encoders on ONNX Runtime, over gRPC and HTTP."
readme = "README.md"
requires-python = "{python}"
license = "{license}"
dependencies = {dependencies}

[project.optional-dependencies]
{extras}

[project.scripts]
bertline-server = "bertline_server.__main__:main"

[tool.setuptools]
packages = ["bertline_server"]
package-data.bertline_server = ["_app/**"]
"""


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder to write")
    parser.add_argument("--runtime", choices=RUNTIMES, default="cpu", help="ONNX Runtime's package")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        clients, server = Path(folder, "clients"), Path(folder, "server")
        copy(clients, "clients/pyproject.toml", "clients/README.md", "LICENSE", "clients/bertline")
        stage_server(server, RUNTIMES[arguments.runtime])
        for stage in (clients, server):
            for kind in ("build_sdist", "build_wheel"):
                build(stage, kind, arguments.out)


def stage_server(folder: Path, suffix: str) -> None:
    """Copy the files of the server's distribution, and write its metadata.

    Args:
        folder: folder to write into.
        suffix: suffix of its name and of the group with its dependencies.
    """
    copy(folder, "deploy/wheels/README.md", "LICENSE", "deploy/wheels/bertline_server")
    copy(folder / "bertline_server/_app", *SOURCES)
    (folder / "pyproject.toml").write_text(server_project(suffix), "utf-8")


def server_project(suffix: str) -> str:
    """Return the server's pyproject.toml."""
    root = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    project, groups = root["project"], root["dependency-groups"]
    runtime = list(requirements(groups, f"serving{suffix}"))
    extras = {  # without ONNX Runtime, which the server itself requires in one of its packages
        name: [item for item in requirements(groups, name) if not item.startswith("onnxruntime")] for name in EXTRAS
    }
    return SERVER.format(
        suffix=suffix,
        version=project["version"],
        python=project["requires-python"],
        license=project["license"],
        dependencies=json.dumps([f"bertline[cli]=={project['version']}", *runtime]),
        extras="\n".join(f"{name} = {json.dumps(items)}" for name, items in extras.items()),
    )


def requirements(groups: dict[str, list[Any]], name: str) -> Iterator[str]:
    """Yield the requirements of a dependency group and of the groups that it includes."""
    for item in groups[name]:
        yield from [item] if isinstance(item, str) else requirements(groups, item["include-group"])


def copy(target: Path, *names: str) -> None:
    """Copy files and folders of the repository into a folder, without compiled modules."""
    target.mkdir(parents=True, exist_ok=True)
    for path in (ROOT / name for name in names):
        if path.is_dir():
            shutil.copytree(path, target / path.name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        else:
            shutil.copy(path, target)


def build(stage: Path, kind: str, out: Path) -> None:
    """Call setuptools, and print the name of the file that it writes; its output only if it fails."""
    command = [sys.executable, "-c", BACKEND, kind, str(out.resolve())]
    done = subprocess.run(command, cwd=stage, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        sys.exit(f"{done.stdout}error: setuptools cannot build `{stage.name}`; is it version 77 or newer?")


if __name__ == "__main__":
    main()
