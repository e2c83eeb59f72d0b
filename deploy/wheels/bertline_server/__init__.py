"""Bertline's server as an installed package.

The sources of the server are packages with common names (`serving`, `tasks`, ...), so they lie in the folder `_app`
and not in site-packages. Only the commands of this package put that folder on sys.path, in their own process.
"""

import sys
from pathlib import Path


def use_sources() -> None:
    """Make the sources importable, before any other package of the same name."""
    sys.path.insert(0, str(Path(__file__).parent / "_app"))
