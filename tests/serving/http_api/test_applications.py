"""Clients that applications use, unchanged: LangChain, LlamaIndex.

They are installed into a separate environment, as their pytest plugins would change all other tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bertline import Client
from tests.serving.http_api.requests import port_of

ROOT = Path(__file__).parents[3]
APPLICATIONS = Path(__file__).with_name("applications")
TEXTS = ["the cat sleeps", "a dog", "the big house"]
MODEL = "embedder"


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """Python of an environment with the clients of group `applications`."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    found = folder / "bin/python"
    for packages in (["pip>=25.1"], ["--group", "applications", "-c", "constraints.txt"]):
        install = [found, "-m", "pip", "install", "-qq", "--upgrade", *packages]
        subprocess.run(install, check=True, cwd=ROOT, timeout=900)
    return found


@pytest.fixture(scope="module")
def vectors(server):
    """Vectors of `TEXTS` from the Python client."""
    with Client(server.target) as client:
        return client.embed(TEXTS, model=MODEL, normalize=True).tolist()


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ["clients.py", "langchain_suite.py"])
def test_clients_of_applications(python, server, vectors, tmp_path, name):
    """Clients of LangChain and LlamaIndex give the vectors of the Python client; ours passes LangChain's tests."""
    environment = os.environ | {
        "URL": f"http://127.0.0.1:{port_of(server)}",
        "TARGET": server.target,
        "MODEL": MODEL,
        "EXPECTED": json.dumps(dict(zip(TEXTS, vectors, strict=True))),
        "PYTHONPATH": str(ROOT / "clients"),
    }
    command = [
        python,
        "-m",
        "pytest",
        "-c",
        os.devnull,
        "--rootdir",
        tmp_path,
        "--noconftest",
        "--asyncio-mode=auto",
        "-p",
        "no:cacheprovider",
    ]
    result = subprocess.run(
        [*command, APPLICATIONS / name], capture_output=True, text=True, env=environment, timeout=600, check=False
    )

    assert result.returncode == 0, result.stdout[-3000:]
    assert "skipped" not in result.stdout
