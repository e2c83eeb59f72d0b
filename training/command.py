"""What every command of this package does with its arguments, and with a user's mistake."""

from __future__ import annotations

import functools
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, Field, fields, is_dataclass
from difflib import get_close_matches
from types import FrameType
from typing import Annotated, Any, NoReturn, TypeVar, get_type_hints, is_typeddict

import tyro

from training.column_flags import expand_column_flags

RecipeT = TypeVar("RecipeT")

PEER_DELAY_S = 2.0
"""How long a process waits before it reports what another one is about to say: the launcher ends it meanwhile."""

MISTAKE = 2
"""Exit code of a mistake in flags and, under `torchrun`, of any other that starting anew does not mend."""


ELSEWHERE = {
    "model-name-or-path": ("checkpoint", "init"),
    "tokenizer-name": ("tokenizer",),
    "train-file": ("train", "data", "corpus"),
    "validation-file": ("dev", "dev-corpus"),
    "output-dir": ("run-dir", "out"),
    "max-length": ("max-seq-length",),
    "num-train-epochs": ("epochs", "num-epochs", "num-steps"),
    "num-epochs": ("epochs", "num-steps"),
    "max-steps": ("num-steps", "epochs", "num-epochs"),
    "num-steps": ("epochs", "num-epochs"),
    "per-device-train-batch-size": ("batch-sizes", "global-batch-size"),
    "train-batch-size": ("batch-sizes", "global-batch-size"),
    "global-batch-size": ("batch-sizes",),
    "gradient-accumulation-steps": ("micro-batch-size",),
    "learning-rate": ("learning-rates",),
    "lr": ("learning-rates", "learning-rate"),
    "seed": ("seeds",),
    "warmup-steps": ("warmup-ratio",),
    "max-grad-norm": ("clip-norm",),
    "adam-beta1": ("betas",),
    "adam-beta2": ("betas",),
    "fp16": ("dtype",),
    "bf16": ("dtype",),
    "torch-compile": ("compile",),
    "logging-steps": ("log-every",),
    "save-steps": ("checkpoint-every",),
    "save-total-limit": ("keep-last",),
    "eval-steps": ("eval-every",),
    "load-best-model-at-end": ("select",),
    "mlm-probability": ("masking-rate",),
}
"""Flags of transformers' scripts, or of other commands here -> ours, of which the first counts that a command has."""


def parse(
    recipe_type: Callable[..., RecipeT],
    module: str,
    description: str | None,
    args: Sequence[str] | None = None,
    *,
    default: RecipeT | None = None,
) -> RecipeT:
    """A recipe out of the command line; each field is a flag. Other words end the process with exit code 2.

    Args:
        recipe_type: a dataclass, or a function that makes one.
        module: name for the usage line, as in `python -m module`.
        description: the module's docstring.
        args: arguments; None for the process's own.
        default: the fields for which there is no flag.

    Raises:
        ValueError: for values that the recipe refuses, a flag that must have values and stands without any, one that
            is called otherwise here, and one that there is not.
    """
    arguments = expand_column_flags(sys.argv[1:] if args is None else args)
    if {"-h", "--help"} & set(arguments):
        arguments = ["--help"]  # the whole of it: words that stand before would be left out
    _check_names(arguments, recipe_type)
    recipe: RecipeT = tyro.cli(
        _maker(recipe_type, default),
        prog=f"python -m {module}",
        description=description,
        args=arguments,
        console_outputs=not _is_peer(),
    )
    given = {argument.replace("_", "-") for argument in arguments}
    for item, value in _values(recipe):
        flag = f"--{item.name.replace('_', '-')}"
        if value == () and (item.default is MISSING or flag in given):
            raise ValueError(f"{flag} stands without a value; it needs at least one")
    return recipe


def _values(recipe: Any) -> Iterator[tuple[Field[Any], Any]]:
    """Of all fields, those of what a recipe holds, too."""
    for item in fields(recipe):
        yield item, (value := getattr(recipe, item.name))
        if is_dataclass(value):
            yield from _values(value)


def _maker(recipe_type: Callable[..., RecipeT], default: RecipeT | None) -> Callable[..., RecipeT]:
    """A function for tyro: around a ValueError of a class it would draw a box with the name of the class."""

    def make(recipe: Any) -> Any:
        return recipe

    preset = tyro.MISSING_NONPROP if default is None else default
    make.__annotations__ = {"recipe": Annotated[recipe_type, tyro.conf.arg(name="", default=preset)]}
    return make


def _check_names(arguments: Sequence[str], recipe_type: Callable[..., Any]) -> None:
    """Refuse flags that are called otherwise here, all at once."""
    flags, renamed = _flags(recipe_type), {}
    for argument in arguments:
        name = argument.partition("=")[0]
        plain = name.removeprefix("--").replace("_", "-")
        ours = next((other for other in ELSEWHERE.get(plain, ()) if other in flags), None)
        if name.startswith("--") and plain not in flags and ours:
            renamed[name] = ours
    _check_known([name for name in _named(arguments) if name not in renamed], recipe_type)
    if renamed:
        names = ", ".join(f"`{name}` is `--{ours}`" for name, ours in renamed.items())
        raise ValueError(f"flags are called otherwise here: {names}; --help says what each counts")


def _named(arguments: Sequence[str]) -> list[str]:
    return [name for argument in arguments if len(name := argument.partition("=")[0]) > 2 and name.startswith("--")]


def _check_known(names: Sequence[str], recipe_type: Callable[..., Any]) -> None:
    """Refuse a flag that there is not: where a word is missing, too, tyro would tell of that alone."""
    made = recipe_type if is_dataclass(recipe_type) else get_type_hints(recipe_type)["return"]
    known = {"help", *_all_flags(made)}
    for name in names:
        if (plain := name.removeprefix("--").replace("_", "-")) not in known:
            near = get_close_matches(plain, known, 1)
            raise ValueError(f"no such flag: `{name}` ({f'nearest: `--{near[0]}`' if near else '--help lists all'})")


def _all_flags(made: Any, prefix: str = "", *, omit: bool = False) -> Iterator[str]:
    """The flags of a recipe and of what it holds."""
    for name, hint in get_type_hints(made, include_extras=True).items():
        marks, bare = getattr(hint, "__metadata__", ()), getattr(hint, "__origin__", hint)
        flag = prefix + name.replace("_", "-")
        if tyro.conf.Suppress in marks or tyro.conf.Positional in marks:
            continue
        if is_dataclass(bare) or is_typeddict(bare):
            is_plain = omit or tyro.conf.OmitArgPrefixes in marks
            yield from _all_flags(bare, "" if is_plain else f"{flag}.", omit=is_plain)
        else:
            yield flag
        if bare is bool:
            yield f"{prefix}no-{name.replace('_', '-')}"


def _flags(recipe_type: Callable[..., Any]) -> set[str]:
    """The flags of a recipe, without those of what it holds."""
    made = recipe_type if is_dataclass(recipe_type) else get_type_hints(recipe_type)["return"]
    hints = get_type_hints(made, include_extras=True).items()
    return {
        name.replace("_", "-") for name, hint in hints if tyro.conf.Suppress not in getattr(hint, "__metadata__", ())
    }


def command(main: Callable[[], None]) -> Callable[[], None]:
    """Turn ValueError, OSError and a lack of memory into one line on standard error and a non-zero exit code; an
    interrupt into 130, and other signals that end a process into 128 + theirs, after tidying up."""

    @functools.wraps(main)
    def wrapped() -> None:
        if ending := _ending(main):
            _exit(*ending)

    return wrapped


def _ending(main: Callable[[], None]) -> tuple[int, str] | None:
    """Exit code and last word of a command, None for a good end. When it returns, nothing holds the frames of an
    error any more: what they hold, threads of others' libraries, too, is gone before the interpreter goes."""
    try:
        with _signals_as_interrupts():
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
        return 1 if is_lost else MISTAKE, below_the_bar + "error: " + " ".join(_message(error).split())
    except KeyboardInterrupt as interrupt:
        if str(interrupt) and not _is_peer():
            print(interrupt, file=sys.stderr)
        return 128 + (interrupt.number if isinstance(interrupt, _Ended) else signal.SIGINT), ""
    except SystemExit:  # mistakes in flags
        if _is_peer():
            time.sleep(PEER_DELAY_S)
        raise
    return None


class _Ended(KeyboardInterrupt):
    """By another signal than Ctrl-C's."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def _end(number: int, frame: FrameType | None) -> NoReturn:
    raise _Ended(number)


@contextmanager
def _signals_as_interrupts() -> Iterator[None]:
    """Let what ends a process leave as little behind as Ctrl-C. One of several processes may wait for others in a call
    that no exception reaches, and ends at once."""
    wanted = () if "WORLD_SIZE" in os.environ else (signal.SIGTERM, signal.SIGHUP)
    noticed = [number for number in wanted if signal.getsignal(number) == signal.SIG_DFL]  # others as under nohup
    for number in noticed:
        signal.signal(number, _end)
    try:
        yield
    finally:
        for number in noticed:
            signal.signal(number, signal.SIG_DFL)


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
    if isinstance(error, UnicodeEncodeError):  # a path, mostly
        near = error.object[max(0, error.start - 60) : error.end + 60]
        return f"cannot be written as {error.encoding}: {near!a}"
    if isinstance(error, OSError) and error.filename:
        return f"cannot use `{error.filename2 or error.filename}`: {error.strerror}"
    return str(error)
