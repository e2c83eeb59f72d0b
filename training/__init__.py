"""Raw text -> vocabulary -> corpus -> pretraining -> fine-tuning -> evaluation, in PyTorch."""

import sys
from types import TracebackType


def _say(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Any error but an interrupt, which whoever pressed Ctrl-C knows of."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)


if sys.argv[:1] == ["-m"]:  # a command, which takes seconds to import before it can handle interrupts itself
    sys.excepthook = _say
