"""Command `bertline serve`: run the server of the package `bertline-server`."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import NoReturn

import typer

from bertline.jobs.engine import NO_SERVER, SERVER
from bertline.jobs.storage import FileError

ANY_FLAGS = {"ignore_unknown_options": True, "allow_extra_args": True}


def serve(context: typer.Context) -> NoReturn:
    """Serve a directory of models.

    Usage: bertline serve MODELS-DIR [flags of the server, which --help lists]. It runs `bertline-server`, a package of
    its own. With that package's extra `export`, MODELS-DIR can be a repository of the Hugging Face hub, org/name.
    """
    if not find_spec(SERVER):
        raise FileError(f"{NO_SERVER}, or use `make serve` in a checkout")
    os.execv(sys.executable, [sys.executable, "-P", "-m", SERVER, *context.args])
