"""Wheels that deploy/wheels/build.py makes."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

from tests.deploy.files import DEPLOY

BUILD = DEPLOY / "wheels/build.py"


def build(folder: Path) -> dict[str, Path]:
    """Build all distributions; return the wheels by the name of their package."""
    subprocess.run([sys.executable, BUILD, "--out", folder], check=True)
    return {path.name.partition("-")[0]: path for path in folder.glob("*.whl")}


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
