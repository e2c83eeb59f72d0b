"""Export a checkpoint or a repository of the hub to a model directory; needs the extra `export`.

python -m bertline_server.export intfloat/e5-small-v2 models/e5/1 --precision int8
"""

from __future__ import annotations

import signal
import sys
from functools import partial
from importlib.util import find_spec

from bertline_server import use_sources

LIBRARIES = ("torch", "onnx", "optimum", "transformers", "tyro")
"""Libraries of the extra `export` that a server does not need."""


def check_extra(purpose: str) -> None:
    """Raise a ValueError if the libraries of the extra are not installed.

    Args:
        purpose: what needs them, for the message.
    """
    from serving.settings import missing_package  # after use_sources

    if missing := [name for name in LIBRARIES if not find_spec(name)]:
        raise missing_package(purpose, missing[0], "export")


def run(arguments: list[str]) -> None:
    """Export in this process. A mistake ends it with one line and an exit code."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends the process quietly during the imports, which are slow
    from export.__main__ import run_command  # after use_sources; loads PyTorch
    from training.command_line.command import command

    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv[1:] = arguments
    command(partial(run_command, "bertline_server.export"))()


if __name__ == "__main__":
    use_sources()
    try:
        check_extra("export")
    except ValueError as missing:
        sys.exit(f"error: {missing}")
    run(sys.argv[1:])
