"""Examples and tables of docs/guides/integrations.md."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from bertline import Client, integrations
from tests.serving.conftest import serve

PAGE = (Path(__file__).parents[3] / "docs" / "guides" / "integrations.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
LIBRARIES = {"langchain_core": "integrations", "mteb": "mteb"}
"""Modules that examples import, with their dependency groups."""


@pytest.fixture(scope="module")
def alone(served, tmp_path_factory):
    """Return the target of a server with one model, because the examples name none."""
    models = tmp_path_factory.mktemp("alone")
    shutil.copytree(served.models / "plain", models / "plain")
    with serve(models) as running:
        yield running.target


@pytest.mark.parametrize(
    "code", [pytest.param(code, marks=[pytest.mark.slow] if "import mteb" in code else []) for code in EXAMPLES]
)
def test_the_examples_run(code, alone, capsys, request, monkeypatch):
    """Every Python example runs unchanged, except for the address and the data of the benchmark."""
    for library, group in LIBRARIES.items():
        if re.search(rf"^(import|from) {library}\b", code, re.MULTILINE):
            pytest.importorskip(library, reason=f"{library} is not installed; it is in the group `{group}`")
    if "import mteb" in code:
        mteb, task = request.getfixturevalue("mteb"), request.getfixturevalue("sts")
        monkeypatch.setattr(mteb, "get_task", {"STSBenchmark": task}.get)

    exec(code.replace("127.0.0.1:50051", alone), {"__name__": "__main__"})

    assert capsys.readouterr().out


def test_every_module_has_an_example():
    """The page has an example of every module that the package names."""
    modules = re.findall(r"^(\w+) {2,}", integrations.__doc__, re.MULTILINE)

    assert modules
    assert all(f"from bertline.integrations.{module} import" in "".join(EXAMPLES) for module in modules)


def test_the_table_of_statuses_is_the_services(served_client: Client):
    """The page lists the same errors and statuses as app.py."""
    import bertline

    source = (Path(__file__).parents[3] / "clients/examples/app.py").read_text(encoding="utf-8")
    in_code = {(name, status) for name, status in re.findall(r"^    (\w+): (\d+),$", source, re.MULTILINE)}
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| (\d+)", PAGE, re.MULTILINE)
    on_page = {(name, status) for names, status in rows for name in re.findall(r"`(\w+)`", names)}

    assert on_page == in_code
    assert all(issubclass(getattr(bertline, name), bertline.BertlineError) for name, _ in in_code)
