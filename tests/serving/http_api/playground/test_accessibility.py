"""The page for everyone: with the keyboard, in narrow windows, by the rules of axe."""

import pytest

from tests.serving.conftest import serve
from tests.serving.http_api.playground.page import IN_BROWSER, NO_DRIVER, OPERATIONS

SCHEMES = ["light", "dark"]

pytestmark = IN_BROWSER


def violations(page):
    """Return what axe finds wrong: the rule, and the first element."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason=NO_DRIVER).Axe()
    return [(item["id"], item["nodes"][0]["html"]) for item in axe.run(page.page).response["violations"]]


def test_the_keyboard_suffices(visit, shipped):
    """All is reached by Tab in order, and Ctrl + Enter runs; nothing needs a mouse."""
    page = visit(shipped, "#model=answer&do=answer")
    page.wait()
    reached = []
    for _ in range(16):
        page.page.keyboard.press("Tab")
        reached.append(page.page.evaluate("document.activeElement.id || document.activeElement.name || ''"))
    page.page.focus("#field-question")
    page.page.keyboard.press("Control+A")
    page.page.keyboard.type("Where does the owl wait in winter?")
    with page.page.expect_response("**/v1/answer"):
        page.page.keyboard.press("Control+Enter")
    page.wait_for_text("#status", "barns")

    order = [name for name in ("model", "operations", "field-question", "field-context", "run") if name in reached]
    assert [name for name in reached if name in order] == order
    assert page.page.locator(".bars button").first.get_attribute("aria-pressed") == "true"


def test_narrow_windows(visit, small):
    """At 320 px nothing makes the page scroll sideways, with everything open."""
    page = visit(small, viewport={"width": 320, "height": 640})
    for model, operation in OPERATIONS:
        page.open(model, operation)
        for name in ("#tokens", "#code"):
            page.page.click(f"{name} summary")
        page.page.wait_for_selector("#snippet:not(:empty)")
        assert page.page.evaluate("document.documentElement.scrollWidth") <= 320, (model, operation)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_accessibility(visit, small, scheme):
    """axe finds no violation, in light and dark, with everything open."""
    page = visit(small, color_scheme=scheme)
    for model, operation in OPERATIONS:
        page.open(model, operation)
        for name in ("#tokens", "#code"):
            page.page.click(f"{name} summary")
        page.page.wait_for_selector("#snippet:not(:empty)")
        page.page.wait_for_selector(".tokens li")
        assert violations(page) == [], (model, operation)


def test_accessibility_of_the_form_for_tokens(visit, small_models, tmp_path):
    """axe finds no violation where a token is requested and a wrong one is reported."""
    (tmp_path / "tokens").write_text("a-token")
    with serve(small_models, http_port=0, tokens_file=tmp_path / "tokens") as running:
        page = visit(running)
        page.page.fill("#token", "wrong")
        page.page.keyboard.press("Enter")
        page.wait()

        assert violations(page) == []
