from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {"torch", "onnxruntime", "tokenizers", "transformers", "typer", "rich"}

_REPORT = """
import json, sys, time
start = time.process_time()
{statement}
seconds = time.process_time() - start
print(json.dumps([seconds, sorted(sys.modules)]))
"""


def run(statement: str, **environment: str) -> tuple[float, set[str]]:
    command = [sys.executable, "-c", _REPORT.format(statement=statement)]
    output = subprocess.run(command, capture_output=True, check=True, env=os.environ | environment).stdout
    seconds, modules = json.loads(output)
    return seconds, set(modules)


def test_importing_the_client_is_quick_and_light(tmp_path: Path) -> None:
    """The client imports gRPC and numpy, no model code, and takes little more CPU time than they do."""
    statements = "import grpc, numpy", "from bertline import AsyncClient, Client"
    compiled = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(tmp_path)}  # by the first run of each
    reports = [[run(statement, **compiled) for _ in range(3)] for statement in statements]
    needed_s, taken_s = (min(seconds for seconds, _ in found) for found in reports)

    assert taken_s < 2 * needed_s
    assert not HEAVY & reports[1][0][1]


def test_the_fake_server_needs_no_more_than_the_client() -> None:
    """The fake server imports only the client, numpy and the standard library."""
    _, client = run("from bertline import AsyncClient, Client")
    _, testing = run("from bertline.testing import FakeServer")
    added = {name.partition(".")[0] for name in testing - client}

    assert not added - sys.stdlib_module_names - {"bertline", "numpy"}


def test_importing_the_stubs_does_not_load_the_client() -> None:
    """The stubs import only the messages."""
    _, modules = run("import bertline.v1.encoder_pb2")

    assert not {"bertline.client", "numpy", "grpc"} & modules


@pytest.mark.parametrize(
    ("missing", "named"),
    [(["typer"], "typer"), (["typer", "rich", "fsspec"], "fsspec")],
)
def test_the_command_without_the_extra_names_it(missing: list[str], named: str) -> None:
    """Without the extra `cli`, the command names it in one line."""
    block = f"import sys; sys.modules.update(dict.fromkeys({missing}))"
    code = f"{block}; from bertline.cli import main; main()"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == (
        f"bertline: the command needs `{named}`; install the extra `cli` of the wheel or the checkout, "
        "such as pip install './clients[cli]'\n"
    )
