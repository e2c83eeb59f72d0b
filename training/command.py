"""What every command of this package does with a user's mistake: one line on standard error, exit code 1."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable


def command(main: Callable[[], None]) -> Callable[[], None]:
    """Turn ValueError and OSError into one line; an interrupt into exit code 130."""

    @functools.wraps(main)
    def wrapped() -> None:
        try:
            main()
        except (ValueError, OSError) as error:
            message = " ".join(str(error).split())
            sys.exit(f"error: {message}")
        except KeyboardInterrupt:
            sys.exit(130)

    return wrapped
