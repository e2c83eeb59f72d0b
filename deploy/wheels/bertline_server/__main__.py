"""Serve models: the command `bertline-server`, which `bertline serve` runs.

bertline-server models --port 50051
bertline-server intfloat/e5-small-v2 --precision int8    # needs the extra `export`
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from bertline_server import hub, use_sources

HUB_HELP = """

MODELS-DIR can also be a repository of the Hugging Face hub: `org/name` or `org/name@revision`, as the first argument,
and --precision fp32 or int8 after it. It is downloaded and exported once, to ~/.cache/bertline/hub, and served. This
needs the extra `export`. `python -m bertline_server.export` has more options, such as --target cuda."""


def main() -> int:
    """Serve a directory of models, or a repository of the hub.

    Returns:
        Exit code of the server, or 2 if the repository cannot be exported.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends the process quietly during the imports, which are slow
    use_sources()
    try:
        arguments = hub.export_first(sys.argv[1:])
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    from serving.__main__ import main as serve  # after use_sources
    from serving.settings import Settings

    is_script = Path(sys.argv[0]).name == "bertline-server"
    Settings.model_config["cli_prog_name"] = "bertline-server" if is_script else "bertline serve"
    Settings.__doc__ = f"{Settings.__doc__}{HUB_HELP}"
    return serve(arguments)


if __name__ == "__main__":
    sys.exit(main())
