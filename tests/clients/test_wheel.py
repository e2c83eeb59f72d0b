"""Wheel that applications install."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

IGNORED = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
CLIENTS = Path(__file__).parents[2] / "clients"
MAX_BYTES = 200_000


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source, out = (tmp_path_factory.mktemp("wheel") / name for name in ("clients", "out"))
    shutil.copytree(CLIENTS, source, ignore=IGNORED)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", out, source]
    subprocess.run(command, check=True)
    (wheel,) = out.glob("*.whl")
    return wheel


@pytest.mark.slow
def test_the_wheel_is_small_and_whole(wheel: Path) -> None:
    """The wheel has every module and py.typed, in less than 200 kB."""
    sources = {path.relative_to(CLIENTS).as_posix() for path in (CLIENTS / "bertline").rglob("*.py*")}
    wanted = {name for name in sources if "__pycache__" not in name} | {"bertline/py.typed"}

    assert wheel.stat().st_size < MAX_BYTES
    assert {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info" not in name} == wanted


@pytest.mark.slow
def test_the_wheel_works_alone(wheel: Path, tmp_path: Path) -> None:
    """The installed wheel imports alone and talks to its own fake server."""
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = (
        "import bertline, bertline.testing as t; s = t.FakeServer(); c = bertline.Client(s.target); "
        "print(bertline.__file__, c.embed(['text']).shape); c.close(); s.close()"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(tmp_path)}, cwd=tmp_path, capture_output=True, text=True
    )

    assert found.stdout == f"{tmp_path}/bertline/__init__.py (1, 8)\n", found.stderr


@pytest.mark.slow
def test_an_editable_install_survives_a_clone_beside_the_script(tmp_path: Path) -> None:
    """A clone named `bertline` on sys.path does not hide the package."""
    source, prefix = tmp_path / "clients", tmp_path / "prefix"
    shutil.copytree(CLIENTS, source, ignore=IGNORED)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--ignore-installed", "--prefix", prefix, "--editable", source], check=True)
    (packages,) = prefix.glob("lib/python*/site-packages")
    (tmp_path / "work" / "bertline" / "clients").mkdir(parents=True)
    script = tmp_path / "work" / "script.py"
    script.write_text(f"import site; site.addsitedir({str(packages)!r}); import bertline; print(bertline.__file__)")

    found = subprocess.run([sys.executable, "-S", script], env={}, capture_output=True, text=True)

    assert found.stdout == f"{source}/bertline/__init__.py\n", found.stderr
