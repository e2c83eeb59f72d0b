from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from bertline import cli

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.slow
def test_the_examples_run(target: str, tmp_path: Path) -> None:
    """The examples of the page run one after the other in one folder."""
    (tmp_path / "bertline").write_text(f'#!/bin/sh\nexec {sys.executable} -m bertline.cli "$@"\n')
    (tmp_path / "bertline").chmod(0o755)
    script = "\n".join(
        re.findall(r"```sh\n(.*?)```", (DOCS / "guides/batch-jobs.md").read_text(encoding="utf-8"), re.DOTALL)
    )
    environment = {**os.environ, "BERTLINE_TARGET": target, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    result = subprocess.run(
        ["bash", "-e", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )

    assert result.returncode == 0
    assert all("rows, 0 rejected in" in line or "1 row, 0 rejected in" in line for line in result.stderr.splitlines())
    assert '"id": 7, "title": "A film", "body": "A delightful film.", "label": ' in result.stdout


def test_every_option_is_documented() -> None:
    """The reference names every option of every command; `bench` has its own page."""
    group = typer.main.get_command(cli.app)
    commands = [group, *(command for name, command in group.commands.items() if name != "bench")]  # type: ignore[attr-defined]
    names = {name for command in commands for item in command.params for name in (*item.opts, *item.secondary_opts)}
    named = set(re.findall(r"`(-[a-z-]+)`", (DOCS / "reference/command.md").read_text(encoding="utf-8")))

    assert {name for name in names if name.startswith("-")} <= named
