"""Clients that applications use, unchanged: LangChain, LlamaIndex, curl.

They are installed into a separate environment, as their pytest plugins would change all other tests.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
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
def vectors(web):
    """Vectors of `TEXTS` from the Python client."""
    with Client(web.target) as client:
        return client.embed(TEXTS, model=MODEL, normalize=True).tolist()


def normalized(vectors):
    """Return vectors of length 1: Text Embeddings Inference always returns such, OpenAI's route the model's own."""
    return np.array(vectors) / np.linalg.norm(vectors, axis=-1, keepdims=True)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ["clients.py", "langchain_suite.py"])
def test_clients_of_applications(python, web, vectors, tmp_path, name):
    """Clients of LangChain and LlamaIndex give the vectors of the Python client; ours passes LangChain's tests."""
    environment = os.environ | {
        "URL": f"http://127.0.0.1:{port_of(web)}",
        "TARGET": web.target,
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


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize(
    ("path", "request_body", "reply"),
    [
        ("/v1/embeddings", {"model": MODEL, "input": TEXTS}, lambda body: [item["embedding"] for item in body["data"]]),
        (f"/tei/{MODEL}/embed", {"inputs": TEXTS}, lambda body: body),
    ],
)
def test_curl(web, vectors, path, request_body, reply):
    """The examples for curl give the vectors of the Python client."""
    address = f"http://127.0.0.1:{port_of(web)}{path}"
    sent = ["-H", "Content-Type: application/json", "-d", json.dumps(request_body)]
    result = subprocess.run(
        ["curl", "--silent", "--fail", "--noproxy", "*", address, *sent], capture_output=True, timeout=30, check=True
    )

    assert normalized(reply(json.loads(result.stdout))) == pytest.approx(np.array(vectors), abs=1e-6)
