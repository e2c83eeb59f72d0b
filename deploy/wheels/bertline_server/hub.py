"""Models of the Hugging Face hub, exported when they are served for the first time."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from bertline_server import export

PRECISIONS = ("fp32", "int8")
"""Precisions of the default target of an export, CPUs."""
PRINTING = {"-h", "--help", "--version", "--print-config"}
"""Flags with which the server prints and exits."""


def export_first(arguments: list[str]) -> list[str]:
    """Export the repository that the first argument names, and return the arguments for the server.

    Args:
        arguments: command line; MODELS-DIR or `org/name` comes first.

    Returns:
        The same arguments, with the directory of the exported model for a repository. After an export the function does
        not return: the server replaces this process, which is then free of PyTorch.

    Raises:
        ValueError: if a flag is wrong, or for a repository that was not exported before, the extra is missing or the
            cache cannot be written.
    """
    from training.checkpoint.hub import parse_hub_name  # after use_sources

    if not arguments or not parse_hub_name(arguments[0]):
        return arguments
    name, *flags = arguments
    precision, flags = _precision(flags)
    models = _cache() / name / precision
    model = models / name.partition("@")[0].rpartition("/")[2] / "1"
    served = [str(models), *flags]
    if not (model / "manifest.json").exists() and PRINTING.isdisjoint(flags):
        from serving.settings import read_settings

        read_settings(served)  # before an export that takes minutes
        export.check_extra(f"`{name}` is no directory here; to export the repository of this name, the server")
        _check_cache()
        export.run([name, str(model), "--precision", precision])
        _replace_process(served)
    return served


def _precision(flags: list[str]) -> tuple[str, list[str]]:
    """Return the precision of the export, and the flags of the server."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--precision", nargs="?", const="", default="fp32")
    found, others = parser.parse_known_args(flags)
    if found.precision not in PRECISIONS:
        raise ValueError(
            f"--precision: `{found.precision}` is none of {', '.join(PRECISIONS)}; for fp16, export with "
            "`python -m bertline_server.export --target cuda` and serve the directory"
        )
    return found.precision, others


def _cache() -> Path:
    """Return the directory of exported repositories: ~/.cache/bertline/hub, or below XDG_CACHE_HOME."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bertline" / "hub"


def _check_cache() -> None:
    """Create the directory of exported repositories; raise a ValueError if it cannot be written."""
    try:
        _cache().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=_cache()):
            pass
    except OSError as error:
        raise ValueError(
            f"cannot write `{_cache()}`: {error.strerror}; set XDG_CACHE_HOME to another folder"
        ) from error


def _replace_process(arguments: list[str]) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", "bertline_server", *arguments])
