from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "clients" / "README.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_examples_run(example: str, target: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every Python example of the README runs as it stands, but for the address."""
    exec(example.replace("127.0.0.1:50051", target), {})

    assert capsys.readouterr().out
