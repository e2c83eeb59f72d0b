"""Commands of the stages, called in this process: starting one takes seconds, most of them for torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest


class Ended(NamedTuple):
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


def call(
    main: Callable[[], None],
    arguments: Sequence[str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Ended:
    """Call a command's `main`; a last word is what the interpreter would print of it."""
    monkeypatch.setattr(sys, "argv", [main.__module__, *arguments])
    capfd.readouterr()
    code, last_word = 0, ""
    try:
        main()
    except SystemExit as end:
        code, last_word = (1, f"{end.code}\n") if isinstance(end.code, str) else (end.code or 0, "")
    return Ended(code, *[text + more for text, more in zip(capfd.readouterr(), ("", last_word), strict=True)])
