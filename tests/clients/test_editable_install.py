"""Editable install of the client."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

IGNORED = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
CLIENTS = Path(__file__).parents[2] / "clients"


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
