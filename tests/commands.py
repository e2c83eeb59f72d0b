"""Calls of the stage commands in this process, which saves the seconds that importing torch takes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest


class Ended(NamedTuple):
    """Exit code and output of a command."""

    returncode: int
    stdout: str
    stderr: str


def call(
    main: Callable[[], None],
    arguments: Sequence[str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Ended:
    """Call a command's `main` and return its exit code and output, an exit message included."""
    monkeypatch.setattr(sys, "argv", [main.__module__, *arguments])
    capfd.readouterr()
    code, exit_message = 0, ""
    try:
        main()
    except SystemExit as end:
        code, exit_message = (1, f"{end.code}\n") if isinstance(end.code, str) else (end.code or 0, "")
    return Ended(code, *[text + more for text, more in zip(capfd.readouterr(), ("", exit_message), strict=True)])
