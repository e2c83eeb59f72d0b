from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "command.md"


def test_the_examples_run(target: str, tmp_path: Path) -> None:
    """The page's examples run as they stand, one after the other in one folder."""
    (tmp_path / "bertline").write_text(f'#!/bin/sh\nexec {sys.executable} -m bertline.cli "$@"\n')
    (tmp_path / "bertline").chmod(0o755)
    script = "\n".join(re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))
    environment = {**os.environ, "BERTLINE_TARGET": target, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    result = subprocess.run(
        ["bash", "-e", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )

    assert (result.returncode, result.stderr) == (0, "")
    assert '"id": 7, "title": "A film", "label": ' in result.stdout
