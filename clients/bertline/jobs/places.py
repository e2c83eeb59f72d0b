"""Files of a job that would spoil each other."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from bertline.jobs.storage import File, FileError


def refuse_clashes(inputs: Iterable[File], output: File | None, rejects: File | None) -> None:
    """Let neither the output nor the rejected rows replace a file that is read, each other, or what is no file.

    Raises:
        FileError: when they would.
    """
    places = {_place(file): file for file in inputs}
    if output and (read := _replaced(places, output)):
        raise FileError(f"is read and would be replaced: `{read.url}`; choose another output")
    if not rejects:
        return
    if _place(rejects) in places:
        raise FileError(f"is read and would be replaced by rejected rows: `{rejects.url}`; name another with --rejects")
    if output and _place(output) == _place(rejects):
        raise FileError(f"--rejects and --output are the same: `{rejects.url}`; name two files")
    if rejects.url.endswith("/") or (rejects.exists() and not rejects.system.isfile(rejects.path)):
        raise FileError(f"not a regular file: `{rejects.url}`; name another with --rejects")


def _replaced(places: Mapping[tuple[str, str], File], output: File) -> File | None:
    """What is read of an output, of the folder of parts that it is, or of that which it is made of."""
    system, path = _place(output)
    parts = f"{path}/" if output.url.endswith("/") else f"{path}.job/"
    return next(
        (
            file
            for (other_system, other), file in places.items()
            if other_system == system and (other == path or other.startswith(parts))
        ),
        None,
    )


def _place(file: File) -> tuple[str, str]:
    path = os.path.realpath(file.path) if file.is_local else file.path.rstrip("/")
    return str(file.system.protocol), path
