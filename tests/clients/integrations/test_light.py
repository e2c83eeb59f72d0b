from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.clients.test_light import run

CLIENTS = Path(__file__).parents[3] / "clients"
HEAVY = {"torch", "transformers", "sentence_transformers", "langchain_core", "mteb", "datasets", "tqdm", "onnxruntime"}


@pytest.mark.parametrize(
    ("module", "may_load"),
    [
        ("bertline.integrations", set()),
        ("bertline.integrations.sentence_transformers", set()),
        ("bertline.integrations.langchain", {"langchain_core"}),
    ],
)
def test_an_integration_loads_its_own_library_only(module: str, may_load: set[str]) -> None:
    """Each integration imports no library but its own, and the client imports no integration."""
    for library in may_load:
        pytest.importorskip(library, reason=f"{library} is not installed; it is in the group `integrations`")

    _, modules = run(f"import {module}")
    _, of_the_client = run("from bertline import AsyncClient, Client")

    assert HEAVY & modules <= may_load
    assert not [name for name in of_the_client if name.startswith("bertline.integrations")]


def test_the_wheel_holds_every_package() -> None:
    """clients/pyproject.toml lists every package folder."""
    listed = tomllib.loads((CLIENTS / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["packages"]
    there = {path.parent.relative_to(CLIENTS) for path in (CLIENTS / "bertline").rglob("*.py")}

    assert set(listed) == {".".join(path.parts) for path in there}
