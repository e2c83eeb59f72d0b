"""Models of the Hugging Face hub, exported when they are served for the first time."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from bertline_server import export


def export_first(arguments: list[str]) -> list[str]:
    """Export the repository that the first argument names, and return the arguments for the server.

    Args:
        arguments: command line; MODELS-DIR or `org/name` comes first.

    Returns:
        The same arguments, with the directory of the exported model for a repository that was exported before. After an
        export the function does not return: the server replaces this process, which is then free of PyTorch.

    Raises:
        ValueError: if the first argument can only be a repository, and the extra is missing.
    """
    if not arguments or not _may_be_repository(arguments[0]):
        return arguments
    name, *flags = arguments
    export.check_extra(f"`{name}` is no directory here; to export the repository of this name, the server")
    from training.hub import parse_hub_name

    if not parse_hub_name(name):
        return arguments
    precision, flags = _precision(flags)
    models = _cache() / name / precision
    model = models / name.partition("@")[0].rpartition("/")[2] / "1"
    if not (model / "manifest.json").exists():
        export.run([name, str(model), "--precision", precision])
        _replace_process([str(models), *flags])
    return [str(models), *flags]


def _may_be_repository(argument: str) -> bool:
    """Return whether an argument has the form `org/name` and no file or directory has that path."""
    organisation, slash, name = argument.partition("@")[0].partition("/")
    is_name = bool(organisation.strip(".") and slash and name) and not argument.startswith("-")
    return is_name and "/" not in name and not os.path.lexists(argument)


def _precision(flags: list[str]) -> tuple[str, list[str]]:
    """Return the precision of the export, and the flags of the server."""
    from tasks.manifest import check_precision

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--precision", nargs="?", const="", default="fp32")
    found, others = parser.parse_known_args(flags)
    check_precision(found.precision)
    return found.precision, others


def _cache() -> Path:
    """Return the directory of exported repositories: ~/.cache/bertline/hub, or below XDG_CACHE_HOME."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bertline" / "hub"


def _replace_process(arguments: list[str]) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", "bertline_server", *arguments])
