"""Command `bertline`, which is also `python -m bertline`."""

from __future__ import annotations

import signal


def main() -> None:
    """Import and run the command. Ctrl-C ends the process quietly during the import, which is slow."""
    handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from bertline.cli import main as run

    signal.signal(signal.SIGINT, handler)
    run()


if __name__ == "__main__":
    main()
