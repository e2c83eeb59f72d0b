"""Tests that run the tutorials in docs/start and the README unchanged, in a copy of the repository."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
SHORTER = {
    "make pretrain RECIPE=modern": "make pretrain RECIPE=modern ARGS='--max-minutes 0.3'",
    "make grid TASK": "make grid ARGS='--learning-rates 1e-3 --seeds 0 --epochs 8' TASK",
}
"""Replacements that shorten half an hour of training to minutes."""


def blocks(page, language):
    """Return the code blocks of a page, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Checkout:
    """Copy of the repository in which shell blocks run."""

    def __init__(self, path):
        self.path, self.port, self.metrics_port = path, free_port(), free_port()
        tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in tracked.splitlines():
            if not name.startswith(("tests/", "docs/")) and (ROOT / name).exists():
                (path / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, path / name)
        (path / ".venv").symlink_to(ROOT / ".venv")
        tools = path / "tools"
        tools.mkdir()
        (tools / "make").write_text(
            f'#!/bin/sh\nexec {shutil.which("make")} -o .venv/.ready "$@"\n'
        )  # installs nothing
        (tools / "make").chmod(0o755)
        self.environment = {
            **os.environ,
            "BERTLINE_TARGET": f"127.0.0.1:{self.port}",
            "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(path / "clients"),
        }
        self.server = None

    def run(self, block):
        """Run a block; a server that it starts keeps running."""
        for old, new in SHORTER.items():
            block = block.replace(old, new)
        block = block.replace("make setup", "true")
        if "make serve" in block:
            block, _, _ = block.partition("make serve")
            self.shell(block)
            return self.serve()
        return self.shell(block)

    def shell(self, block):
        command = ["bash", "-ec", block]
        done = subprocess.run(
            command, cwd=self.path, env=self.environment, capture_output=True, text=True, check=False, timeout=900
        )
        assert done.returncode == 0, f"{block}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        return done.stdout

    def serve(self):
        self.close()
        ports = f"PORT={self.port}", f"METRICS_PORT={self.metrics_port}", "HTTP_PORT=0"
        command = [self.path / "tools/make", "serve", *ports]
        self.server = subprocess.Popen(command, cwd=self.path, env=self.environment, start_new_session=True)
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            health = [sys.executable, "-m", "bertline.cli", "health"]
            if subprocess.run(health, env=self.environment, capture_output=True, check=False).returncode == 0:
                return ""
            time.sleep(1)
        raise AssertionError("the server did not start")

    def python(self, block):
        """Run Python code of an application and return its output."""
        code = block.replace("127.0.0.1:50051", f"127.0.0.1:{self.port}")
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def close(self):
        if self.server:
            os.killpg(self.server.pid, 15)
            self.server.wait(60)


@pytest.fixture
def checkout(tmp_path):
    checkout = Checkout(tmp_path)
    yield checkout
    checkout.close()


@pytest.mark.timeout(1800)
def test_serve_a_model(checkout):
    """The tutorial turns a CSV file into a served classifier, and the README's Python code runs against it."""
    page = "docs/start/serve-a-model.md"
    printed = "".join(map(checkout.run, blocks(page, "sh")))

    assert '"label"' in printed
    assert len(checkout.python(blocks(page, "python")[0]).splitlines()) == 2
    assert "positive" in checkout.python(blocks("README.md", "python")[0])


@pytest.mark.timeout(1800)
def test_train_your_own(checkout):
    """The tutorial turns running text into a served classifier."""
    page = "docs/start/train-your-own.md"
    paragraphs = [
        paragraph
        for path in sorted((ROOT / "docs").rglob("*.md"))
        for paragraph in path.read_text("utf-8").split("\n\n")
        if len(paragraph) > 200 and "|" not in paragraph and "```" not in paragraph
    ]
    for folder, part in (("texts", paragraphs[20:]), ("held-out", paragraphs[:20])):
        (checkout.path / folder).mkdir()
        (checkout.path / folder / "a.txt").write_text("\n\n".join(part), "utf-8")
    rows = [
        f"{word} is here,{label}" for label, words in (("a", "one two"), ("b", "red blue")) for word in words.split()
    ]
    for name in ("train.csv", "dev.csv"):
        (checkout.path / name).write_text("\n".join(["text,label", *rows * 40]), "utf-8")
    for block in blocks(page, "sh"):
        checkout.run(block)

    assert checkout.shell(".venv/bin/bertline health --model task/1") == "serving\n"
    assert (checkout.path / "runs/encoder/report.html").exists()
