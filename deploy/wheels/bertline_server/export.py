"""Export a checkpoint or a repository of the hub to a model directory; needs the extra `export`.

python -m bertline_server.export intfloat/e5-small-v2 models/e5/1 --precision int8
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

from bertline_server import use_sources

LIBRARIES = ("torch", "onnx", "optimum", "transformers", "tyro")
"""Libraries of the extra `export` that a server does not need."""


def check_extra(purpose: str) -> None:
    """Raise a ValueError if the libraries of the extra are not installed.

    Args:
        purpose: what needs them, for the message.
    """
    if missing := [name for name in LIBRARIES if not find_spec(name)]:
        raise ValueError(f"{purpose} needs `{missing[0]}`: pip install 'bertline-server[export]'")


def run(arguments: list[str]) -> None:
    """Export in this process. A mistake ends it with one line and an exit code."""
    from export.__main__ import main as export  # after use_sources; loads PyTorch

    sys.argv[1:] = arguments
    export()


if __name__ == "__main__":
    use_sources()
    try:
        check_extra("export")
    except ValueError as missing:
        sys.exit(f"error: {missing}")
    run(sys.argv[1:])
