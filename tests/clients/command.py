"""Helpers that run the command, in this process or in a separate process, and both clients."""

from __future__ import annotations

import asyncio
import io
import json
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
import pytest
import typer.main

from bertline import AsyncClient, Client, cli
from bertline.testing import FakeServer, vector
from bertline.v1 import encoder_pb2 as pb


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [parsed(line) for line in self.out.splitlines()]


Run = Callable[..., Result]
_get_command = cache(typer.main.get_command)


def parsed(line: str) -> Any:
    """Parse a line of JSON; fail on NaN and infinities, which Python accepts."""
    return json.loads(line, parse_constant=lambda name: pytest.fail(f"not JSON: {name}"))


def read_jsonl(path: Path | str) -> list[Any]:
    """Read the lines that end in a line feed; other Unicode line ends do not count."""
    return [parsed(line) for line in Path(path).read_bytes().decode().split("\n")[:-1]]


def read_rows(path: Path | str) -> list[Any]:
    """Read the rows of JSONL, Parquet or a folder of Parquet files."""
    return read_jsonl(path) if str(path).endswith(".jsonl") else pq.read_table(path).to_pylist()


def numbers(text: str) -> list[float]:
    """Return the vector of a text, rounded like the command's JSON."""
    return [float(str(value)) for value in vector(text)]


def label_as(server: FakeServer, scores: dict[str, float]) -> None:
    """Make a server return the same labels for every text."""
    result = pb.Classification(labels=[pb.LabelScore(label=label, score=score) for label, score in scores.items()])
    server.reply("Classify", lambda request: pb.ClassifyReply(results=[result] * len(request.inputs)))


def interrupt(run: Run, server: FakeServer, *arguments: str, after: int = 14) -> Result:
    """Run a job with one request at a time, which fails after some requests."""
    server.fail("INTERNAL", "broken", method="Embed", after=after, times=None)
    result = run(*arguments, "--in-flight", "1")
    server.reset()
    server.refuse("refuse", "refused")
    return result


def received(server: FakeServer, method: str = "Embed") -> list[Any]:
    """Return the requests of an RPC that the server received."""
    return [call.request for call in server.calls if call.method == method]


@pytest.fixture
def run(target: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs the command in this process, against the fake server."""
    monkeypatch.setenv("BERTLINE_TARGET", target)
    monkeypatch.setattr("typer.main.get_command", _get_command)  # takes longer than most commands
    monkeypatch.setattr("os.fsync", lambda file: None)  # takes long, and the machine does not fail

    def run(*arguments: str, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "argv", ["bertline", *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as exit:
            cli.main()
        return Result(exit.value.code or 0, *capfd.readouterr())  # type: ignore[arg-type]

    return run


def run_example(name: str, *arguments: object, **variables: str) -> Result:
    """Run clients/examples/<name>.py in this process, with some environment variables."""
    folder = Path(__file__).parents[2] / "clients" / "examples"
    out, err, code = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.syspath_prepend(str(folder))
        patch.setattr(sys, "argv", [name, *map(str, arguments)])
        for variable, value in variables.items():
            patch.setenv(variable, value)
        try:
            runpy.run_path(str(folder / f"{name}.py"), run_name="__main__")
        except SystemExit as end:
            code = 1
            print(end.code, file=err)
    return Result(code, out.getvalue(), err.getvalue())


def command(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run the command in a separate process."""
    return subprocess.run(
        [sys.executable, "-m", "bertline.cli", *arguments], input=stdin, capture_output=True, check=False
    )


def embed_sync(target: str, texts: list[str], **options: Any) -> np.ndarray:
    with Client(target, **options) as client:
        return client.embed(texts)


def embed_async(target: str, texts: list[str], **options: Any) -> np.ndarray:
    async def embed() -> np.ndarray:
        async with AsyncClient(target, **options) as client:
            return await client.embed(texts)

    return asyncio.run(embed())


both_clients = pytest.mark.parametrize("embed", [embed_sync, embed_async])
Embed = Callable[..., np.ndarray]


def succeeds(result: Result, code: int = 0) -> bool:
    """Return True if there is nothing on stdout, and the summary of a job on stderr."""
    is_summary = re.match(r"bertline: [\d,]+ rows?( \(.* in earlier runs\))?, [\d,]+ rejected.* in \d+:", result.err)
    return result.code == code and not result.out and bool(is_summary)


def fails(result: Result, message: str, code: int = 1) -> bool:
    """Return True if there is nothing on stdout, and one line on stderr with the message."""
    return (
        result.code == code
        and not result.out
        and result.err.startswith("bertline: ")
        and result.err.count("\n") == 1
        and message in result.err
    )
