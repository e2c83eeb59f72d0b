"""Raw text -> vocabulary -> corpus -> pretraining -> fine-tuning -> evaluation, in PyTorch."""

import sys
from types import TracebackType


def _print_error(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Print a traceback, except after Ctrl-C."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)


if sys.argv[:1] == ["-m"]:  # a command; importing takes seconds, in which it does not yet handle interrupts
    sys.excepthook = _print_error
