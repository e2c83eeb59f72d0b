"""What every command of this package does with its arguments, and with a user's mistake."""

from __future__ import annotations

import functools
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields
from typing import NoReturn, TypeVar

import tyro

RecipeT = TypeVar("RecipeT")

PEER_DELAY_S = 2.0
"""How long a process waits before it reports what another one is about to say: the launcher ends it meanwhile."""

MISTAKE = 2
"""Exit code of a mistake in flags and, under `torchrun`, of any other that starting anew does not mend."""


def parse(
    recipe_type: Callable[..., RecipeT], module: str, description: str | None, args: Sequence[str] | None = None
) -> RecipeT:
    """A recipe out of the command line; each field is a flag. Mistakes in flags end the process with exit code 2.

    Args:
        recipe_type: a dataclass, or a function that makes one.
        module: name for the usage line, as in `python -m module`.
        description: the module's docstring.
        args: arguments; None for the process's own.

    Raises:
        ValueError: for a flag that must have values and stands without any.
    """
    says = not _is_peer()
    recipe = tyro.cli(recipe_type, prog=f"python -m {module}", description=description, args=args, console_outputs=says)
    for item in fields(recipe):  # type: ignore[arg-type]
        if item.default is MISSING and getattr(recipe, item.name) == ():
            raise ValueError(f"--{item.name.replace('_', '-')} stands without a value; it needs at least one")
    return recipe


def command(main: Callable[[], None]) -> Callable[[], None]:
    """Turn ValueError, OSError and a lack of memory into one line on standard error and a non-zero exit code; an
    interrupt into 130."""

    @functools.wraps(main)
    def wrapped() -> None:
        try:
            main()
        except BrokenPipeError:  # whoever read what is printed has ended
            os._exit(128 + signal.SIGPIPE)
        except (ValueError, OSError, MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not _is_out_of_memory(error):
                raise
            is_lost = isinstance(error, ConnectionError)
            if _is_peer() or is_lost:
                time.sleep(PEER_DELAY_S)
            below_the_bar = "\n" if _is_peer() else ""
            _exit(1 if is_lost else MISTAKE, below_the_bar + "error: " + " ".join(_message(error).split()))
        except KeyboardInterrupt as interrupt:
            if str(interrupt) and not _is_peer():
                print(interrupt, file=sys.stderr)
            _exit(130)
        except SystemExit:  # mistakes in flags
            if _is_peer():
                time.sleep(PEER_DELAY_S)
            raise

    return wrapped


def _is_peer() -> bool:
    """Whether this is one of several processes, and another one of them reports."""
    return os.environ.get("LOCAL_RANK", "0") != "0"


def _exit(code: int, last_word: str = "") -> NoReturn:
    """End this process; one of several at once, as its network would wait for peers that are gone, or abort.

    Args:
        code: of one that `torchrun` started; 1 for any other with a last word.
    """
    if "WORLD_SIZE" not in os.environ:
        sys.exit(last_word or code)
    if last_word:
        print(last_word, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _is_out_of_memory(error: Exception) -> bool:
    """As Python and numpy, torch on a GPU, and torch on a CPU say so."""
    is_named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return is_named or "can't allocate memory" in str(error)


def _message(error: Exception) -> str:
    if _is_out_of_memory(error):
        return f"not enough memory; smaller batches, shorter sequences and smaller networks need less ({error})"
    if isinstance(error, OSError) and error.filename:
        return f"cannot use `{error.filename2 or error.filename}`: {error.strerror}"
    return str(error)
