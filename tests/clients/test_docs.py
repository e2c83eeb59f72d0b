"""Tests that run the Python examples of the pages about the client unchanged, except for the address."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bertline.testing import FakeServer
from serving.core.errors import ERRORS, INTERNAL_REASON
from serving.grpc_api.status import CODES

ROOT = Path(__file__).parents[2]
OTHER_CLIENTS = "docs/guides/other-clients.md"
PAGES = ("clients/README.md", "docs/guides/python-client.md", "docs/guides/test-your-application.md", OTHER_CLIENTS)
EXAMPLES = [
    pytest.param(example, id=f"{page}-{number}")
    for page in PAGES
    for number, example in enumerate(
        re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    )
    if "import tritonclient" not in example
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_examples_run(example: str, server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An example prints something, or its own tests pass."""
    code = example.replace("127.0.0.1:50051", server.target)
    if "def test_" in code:
        (tmp_path / "test_example.py").write_text(code, encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
        environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # loading the plugins takes seconds
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

        assert done.returncode == 0, done.stdout
    else:
        exec(code, {"__name__": "__main__"})

        assert capsys.readouterr().out


def test_every_reason_is_documented() -> None:
    """The page about other clients has every reason of an ErrorInfo in a row of its status."""
    page = (ROOT / OTHER_CLIENTS).read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([A-Z_]+) \| ((?:`[A-Z_]+`(?:, )?)+) \|", page, re.MULTILINE)
    documented = {(status, reason) for status, reasons in rows for reason in re.findall(r"`(\w+)`", reasons)}
    known = {(CODES[error.kind].name, error.reason) for error in ERRORS}

    assert documented == known | {("INTERNAL", INTERNAL_REASON)}
