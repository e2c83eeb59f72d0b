"""Names of checkpoints: a directory, or a repository of the Hugging Face hub.

    python -m training.finetune classification --checkpoint intfloat/e5-small-v2 --train a.tsv --run-dir runs/a
    python -m export intfloat/e5-small-v2@main models/e5/1

A repository is `org/name`, or `org/name@revision` with a branch, tag or commit. A directory of the same name wins.
`training.checkpoint.hub_download` downloads it, once. `training.data.sources` reads data sets of the hub.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from tasks.bundle.manifest import MANIFEST_FILE

_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*/[A-Za-z0-9_][\w.-]*", re.ASCII)
_COMMIT = re.compile("[0-9a-f]{40}")
_REVISION = re.compile(r"[^\s/.][^\s/]*(/[^\s/.][^\s/]*)*")
"""No part begins with a dot, so that the record of a revision in the cache is a file below the others."""
_CACHED = re.compile(r"models--([^/]+?)--([^/]+)")


@dataclass(frozen=True)
class HubOrigin:
    """Repository of the hub, and the commit that its files are from."""

    name: str
    """`org/name`."""
    revision: str
    """Commit, 40 hexadecimal digits."""

    def __str__(self) -> str:
        return f"{self.name}@{self.revision}"


def hub_origin(checkpoint: str | Path) -> HubOrigin | None:
    """Return the origin of a directory in the hub's cache, or of `org/name@commit`; None for other directories."""
    name, _, revision = str(checkpoint).partition("@")
    if _NAME.fullmatch(name) and _COMMIT.fullmatch(revision):
        return HubOrigin(name, revision)
    parts = Path(checkpoint).parts
    for repository, folder, revision in zip(parts, parts[1:], parts[2:], strict=False):
        cached = _CACHED.fullmatch(repository)
        if cached and folder == "snapshots" and _COMMIT.fullmatch(revision):
            return HubOrigin("/".join(cached.groups()), revision)
    return None


def parse_hub_name(checkpoint: str | Path, revision: str | None = None) -> tuple[str, str | None] | None:
    """Return name and revision if an argument has the form of a repository, and no file or directory has that path.

    Args:
        checkpoint: path, `org/name` or `org/name@revision`.
        revision: branch, tag or commit; None for that in `checkpoint`.

    Raises:
        ValueError: if a revision is given twice, is empty or cannot exist, or is given for a path.
    """
    name, at, named = str(checkpoint).partition("@")
    is_name = not os.path.lexists(checkpoint) and _NAME.fullmatch(name)
    if not is_name:
        if revision is not None:
            raise ValueError(f"--revision `{revision}` is for repositories of the hub, and `{checkpoint}` is a path")
        return None
    if at and revision not in (None, named):
        raise ValueError(f"`{checkpoint}` and --revision `{revision}` contradict each other; give one of them")
    revision = named if at else revision
    if revision is not None and not _REVISION.fullmatch(revision):
        raise ValueError(f"`{' '.join(revision.split())}` is no revision of `{name}`; give a branch, a tag or a commit")
    return name, revision


def resolve_checkpoint(checkpoint: str | Path, revision: str | None = None) -> Path:
    """Return the directory of a checkpoint; download it if the argument names a repository of the hub.

    Args:
        checkpoint: path, `org/name` or `org/name@revision`. An existing path is never looked up on the hub.
        revision: branch, tag or commit of the repository; None for that in `checkpoint`, or `main`.

    Returns:
        The directory in the hub's cache, or the given path, whether it exists or not.

    Raises:
        ValueError: if the repository cannot be downloaded, or the path is an exported model; the message is one line.
    """
    if not (repository := parse_hub_name(checkpoint, revision)):
        if (Path(checkpoint) / MANIFEST_FILE).is_file():
            raise ValueError(f"`{checkpoint}` is an exported model; give the checkpoint that it was exported from")
        return Path(checkpoint)
    from training.checkpoint.hub_download import download_checkpoint  # its library takes half a second to load

    return download_checkpoint(*repository)


def recorded_name(checkpoint: Path) -> str:
    """Return a checkpoint's path for records and tables; `org/name@commit` for one of the hub."""
    return str(hub_origin(checkpoint) or checkpoint)


def checkpoint_record(checkpoint: Path) -> dict[str, str]:
    """Return the name of a checkpoint and, of one of the hub, the commit, as `revision`."""
    origin = hub_origin(checkpoint.resolve())
    revision = {"revision": origin.revision} if origin else {}
    return {"name": checkpoint_name(checkpoint.resolve()), **revision}


def checkpoint_name(path: Path) -> str:
    """Return the name of a checkpoint: its folder, of the hub `org/name`, or the run's folder for its `checkpoint`."""
    if origin := hub_origin(path):
        return origin.name
    return path.parent.name if path.name == "checkpoint" else path.name
