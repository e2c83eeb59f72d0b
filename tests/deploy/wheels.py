"""Wheels that deploy/wheels/build.py makes."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

from tests.deploy.files import ROOT

BUILD = "deploy/wheels/build.py"


def build(folder: Path, root: Path = ROOT) -> dict[str, Path]:
    """Build all distributions of a checkout; return the wheels by the name of their package."""
    subprocess.run([sys.executable, root / BUILD, "--out", folder], check=True)
    return {path.name.partition("-")[0]: path for path in folder.glob("*.whl")}


def copy(names: list[str], target: Path) -> None:
    """Copy files, and the contents of folders, as Docker does."""
    for path in (ROOT / name for name in names):
        if path.is_dir():
            shutil.copytree(path, target, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)


def files(wheel: Path) -> set[str]:
    """Return the names of the files in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def metadata(wheel: Path) -> Message:
    """Return the metadata of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def unpack(wheels: dict[str, Path], folder: Path) -> Path:
    """Unpack wheels into a folder, as pip does into site-packages."""
    for wheel in wheels.values():
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
    return folder
