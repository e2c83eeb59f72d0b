"""Command lines: parsing into recipes, one-line errors, exit codes, signals."""

from __future__ import annotations

import functools
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, Field, fields, is_dataclass
from types import FrameType
from typing import Annotated, Any, NoReturn, TypeVar

import tyro

RecipeT = TypeVar("RecipeT")

PEER_DELAY_S = 2.0
"""Seconds that a process other than the main one waits before it reports an error. The main process reports the same
error first, and the launcher then ends the others."""

MISTAKE = 2
"""Exit code of a mistake in flags and, under `torchrun`, of any error that a restart does not fix."""


def parse(
    recipe_type: Callable[..., RecipeT],
    module: str,
    description: str | None,
    args: Sequence[str] | None = None,
    *,
    default: RecipeT | None = None,
) -> RecipeT:
    """Parse the command line into a recipe; each field is a flag. Other mistakes end the process with exit code 2.

    Args:
        recipe_type: a dataclass, or a function that returns one.
        module: name of the module for the usage line, as in `python -m module`.
        description: docstring of the module.
        args: arguments; None for the process's own.
        default: recipe with the defaults of the fields; None for those of the type.

    Raises:
        ValueError: for a value that the recipe rejects, and a flag without its values.
    """
    arguments = list(_expand_column_flags(iter(sys.argv[1:] if args is None else args)))
    if {"-h", "--help"} & set(arguments):
        arguments = ["--help"]  # help of the whole command; words before it would be left out

    def make(recipe: Any) -> Any:  # for the class itself, tyro would draw a box with its name around a ValueError
        return recipe

    preset = tyro.MISSING_NONPROP if default is None else default
    make.__annotations__ = {"recipe": Annotated[recipe_type, tyro.conf.arg(name="", default=preset)]}
    recipe: RecipeT = tyro.cli(
        make,
        prog=f"python -m {module}",
        description=description,
        args=arguments,
        console_outputs=not _is_peer(),
    )
    given = {argument.replace("_", "-") for argument in arguments}
    for field, value in _field_values(recipe):
        flag = f"--{field.name.replace('_', '-')}"
        if value == () and (field.default is MISSING or flag in given):
            raise ValueError(f"{flag} stands without a value; it needs at least one")
    return recipe


def _expand_column_flags(arguments: Iterator[str]) -> Iterator[str]:
    """Yield arguments, with `--columns.text NAME` for each `--column text=NAME`, the spelling of the client.

    Likewise, `--skip-empty` is `--columns.skip-empty`.
    """
    for argument in arguments:
        flag, _, value = argument.partition("=")
        if flag != "--column":
            yield "--columns.skip-empty" if argument == "--skip-empty" else argument
            continue
        field, _, name = (value or next(arguments, "")).partition("=")
        if not (field and name):
            raise ValueError(f"--column needs a field and the name of a column, such as text=sentence: `{field}`")
        yield from (f"--columns.{field.replace('_', '-')}", name)


def _field_values(recipe: Any) -> Iterator[tuple[Field[Any], Any]]:
    """Yield each field with its value, also those of nested dataclasses."""
    for field in fields(recipe):
        yield field, (value := getattr(recipe, field.name))
        if is_dataclass(value):
            yield from _field_values(value)


def command(main: Callable[[], None]) -> Callable[[], None]:
    """Turn ValueError, OSError and a lack of memory into one line on standard error and a non-zero exit code.

    An interrupt exits with 130, SIGTERM and SIGHUP with 128 + their number, after cleaning up.
    """

    @functools.wraps(main)
    def wrapped() -> None:
        if failure := _run(main):
            _exit(*failure)

    return wrapped


def _run(main: Callable[[], None]) -> tuple[int, str] | None:
    """Run a command; return exit code and last line, or None if it succeeded.

    After the return, nothing refers to the frames of an error, so that their objects (also threads of libraries) are
    freed before the interpreter ends.
    """
    try:
        with _signals_as_interrupts():
            main()
    except BrokenPipeError:  # the reader of our output has ended
        os._exit(128 + signal.SIGPIPE)
    except (ValueError, OSError, MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not _is_out_of_memory(error):
            raise
        is_lost = isinstance(error, ConnectionError)
        if _is_peer() or is_lost:
            time.sleep(PEER_DELAY_S)
        new_line = "\n" if _is_peer() else ""  # below the progress bar of the main process
        return 1 if is_lost else MISTAKE, new_line + "error: " + " ".join(_message(error).split())
    except KeyboardInterrupt as interrupt:
        if str(interrupt) and not _is_peer():
            print(interrupt, file=sys.stderr)
        return 128 + (interrupt.number if isinstance(interrupt, _SignalInterrupt) else signal.SIGINT), ""
    except SystemExit:  # mistakes in flags
        if _is_peer():
            time.sleep(PEER_DELAY_S)
        raise
    return None


class _SignalInterrupt(KeyboardInterrupt):
    """Signal other than SIGINT that ends the command."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


@contextmanager
def _signals_as_interrupts() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP like Ctrl-C.

    One of several processes ends immediately instead: it may wait for others in a call that no exception interrupts.
    """

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        raise _SignalInterrupt(number)

    numbers = () if "WORLD_SIZE" in os.environ else (signal.SIGTERM, signal.SIGHUP)
    handled = [number for number in numbers if signal.getsignal(number) == signal.SIG_DFL]  # nohup ignores SIGHUP
    for number in handled:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)


def _is_peer() -> bool:
    """Return whether this is one of several processes, and another one reports errors."""
    return os.environ.get("LOCAL_RANK", "0") != "0"


def _exit(code: int, last_line: str = "") -> NoReturn:
    """End this process.

    One of several processes ends without clean-up, in which its process group would wait for dead peers, or abort. A
    single process exits with 1 if there is a last line for standard error.
    """
    if "WORLD_SIZE" not in os.environ:
        sys.exit(last_line or code)
    if last_line:
        print(last_line, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _is_out_of_memory(error: Exception) -> bool:
    """Return whether memory is lacking, as reported by Python, numpy, or torch on GPU or CPU."""
    is_typed = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return is_typed or "can't allocate memory" in str(error)  # torch on CPU has no type for it


def _message(error: Exception) -> str:
    if _is_out_of_memory(error):
        return f"not enough memory; smaller batches, shorter sequences and smaller networks need less ({error})"
    if isinstance(error, OSError) and error.filename:
        return f"cannot use `{error.filename2 or error.filename}`: {error.strerror}"
    return str(error)
