"""Chromium, servers, and windows with the page."""

import os

import pytest

from tasks import settings_from_dict
from tests.serving.conftest import serve
from tests.serving.http_api.playground.page import CHROMIUM, NO_DRIVER, ROOT, Page
from tests.serving.models import SETTINGS, write_model

NAMES = {
    "classification": "classifier",
    "tagging": "tagger",
    "spans": "reader",
    "regression": "scorer",
    "multiple-choice": "chooser",
    "masked-lm": "filler",
    "embedding": "embedder",
    "sparse-embedding": "sparse",
    "token-embedding": "matcher",
}


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason=NO_DRIVER)
    with playwright.sync_playwright() as driver:
        flags = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def shipped():
    """Server of the models of the repository."""
    with serve(ROOT / "models", http_port=0) as running:
        yield running


@pytest.fixture(scope="session")
def small_models(tmp_path_factory):
    """Directory with a tiny model of each task, which reads the page's examples whole."""
    models = tmp_path_factory.mktemp("models")
    for task, name in NAMES.items():
        longer = {"max_seq_length": 64} | ({"query_length": 32} if task == "token-embedding" else {})
        settings = settings_from_dict(task, SETTINGS[task] | longer)
        write_model(models, name, task=task, settings=settings)
    return models


@pytest.fixture(scope="session")
def small(small_models):
    """Server of the tiny models."""
    with serve(small_models, http_port=0) as running:
        yield running


@pytest.fixture
def visit(browser):
    """Return a function that opens the page of a server; all must end without complaints of the browser."""
    opened = []

    def visit(server, place="", **options):
        opened.append(Page(browser, server, place, **options))
        return opened[-1]

    yield visit
    for page in opened:
        page.context.close()
    assert [text for page in opened for text in page.complaints if "status of 4" not in text] == []
