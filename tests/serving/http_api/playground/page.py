"""The page to try the models in, in a window of Chromium."""

import shutil
from pathlib import Path

import pytest

from tests.serving.http_api.requests import port_of

ROOT = Path(__file__).parents[4]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FAMILY, FLAG, THUMB = "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1eb\U0001f1f7", "\U0001f44d\U0001f3fd"
ACCENT = "\u0301"
NO_CHROMIUM = "no chromium is on the PATH (Debian: apt-get install chromium)"
NO_DRIVER = "playwright and axe-playwright-python are not installed; they are in the group `browser`"
OPERATIONS = [
    ("classifier", "labels"),
    ("classifier", "own-labels"),
    ("tagger", "entities"),
    ("reader", "answer"),
    ("scorer", "number"),
    ("scorer", "rank"),
    ("chooser", "choose"),
    ("filler", "words"),
    ("embedder", "similarity"),
    ("embedder", "search"),
    ("sparse", "weights"),
    ("matcher", "rank"),
]
MAX_ROWS = 300
FOREIGN = "The reply is not from this server; is there a proxy?"
IN_BROWSER = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)]


class Page:
    """Page in a separate window, and what the browser complained about."""

    def __init__(self, browser, server, place="", **options):
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.complaints = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        self.base = f"http://127.0.0.1:{port_of(server)}/"
        self.page.goto(f"{self.base}{place}")

    def open(self, model, operation):
        """Go to an operation of a model by the address, and wait for its result."""
        self.page.goto("about:blank")
        self.page.goto(f"{self.base}#model={model}&do={operation}")
        self.wait()

    def wait(self):
        """Wait until a result or an error is there."""
        self.page.wait_for_selector("#result:not([aria-busy]) > *, #error:not([hidden])")

    def wait_for_text(self, selector, text):
        """Wait until an element has a text. (`wait_for_function` would need `eval`, which the page forbids.)"""
        self.page.wait_for_selector(f'{selector}:has-text("{text}")', state="attached")

    def run(self, **fields):
        """Type into fields, run, and wait for the result."""
        for name, text in fields.items():
            self.page.fill(f"#field-{name}", text)
        with self.page.expect_response("**/v1/*"):
            self.page.click("#run")
        self.wait()

    def answer(self, route, values):
        """Answer calls of a route in place of the server, until it is given another answer."""
        self.page.route(f"**/v1/{route}", lambda route: route.fulfill(json=values))

    def texts(self, selector):
        return self.page.locator(selector).all_text_contents()

    def marks(self):
        """Return the marked parts of the text, without their labels."""
        return self.page.eval_on_selector_all(".passage mark", "found => found.map(item => item.firstChild.data)")
