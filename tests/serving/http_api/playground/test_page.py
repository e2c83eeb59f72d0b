"""The page as a whole: models, operations, tokens of access, speed."""

import json

from tests.serving.conftest import serve
from tests.serving.http_api.playground.page import IN_BROWSER, OPERATIONS
from tests.serving.http_api.requests import send

MAX_FIRST_VIEW_S = 1.0

pytestmark = IN_BROWSER


def test_every_operation_shows_a_result(visit, small):
    """Each operation of each model runs on its example, with times, tokens and code, and only what fits is offered."""
    page = visit(small)
    for model, operation in OPERATIONS:
        page.open(model, operation)

        assert page.page.input_value("#model") == model
        assert page.texts("#error") == [""], (model, operation)
        assert len(page.texts("#timings dd")) == 4
        assert page.texts("#status") != [""]
        offered = page.page.eval_on_selector_all("#operations input", "found => found.map(item => item.value)")
        assert offered == [name for other, name in OPERATIONS if other == model]


def test_choosing_and_typing(visit, shipped):
    """A person chooses a model in the list, types and runs; the labels change, and the address names the model."""
    page = visit(shipped)
    page.page.select_option("#model", "sentiment")
    page.page.wait_for_selector(".bars >> text=positive")
    page.run(text="Two hours that nobody will give me back.")

    assert page.texts(".bars .chosen .text") == ["negative"]
    assert page.texts("#status")[0].startswith("negative, ")
    assert "model=sentiment" in page.page.url


def test_a_model_of_an_unknown_task(visit, small):
    """A model that the page has no operation for shows one line, and no form."""
    models = json.loads(send(small, "POST", "/v1/list-models", {}).data)["models"]
    models[0]["task"] = "new-task"
    page = visit(small)
    page.answer("list-models", {"models": models})
    page.open(models[0]["model"]["name"], "labels")

    assert page.texts("#result") == ["This page cannot run models of task new-task. Call them over gRPC or HTTP."]
    assert page.page.locator("#input").is_hidden()
    assert page.page.locator("#error").is_hidden()
    page.page.select_option("#model", models[1]["model"]["name"])
    page.page.wait_for_selector("#input:not([hidden])")


def test_the_token_stays_in_memory(visit, small_models, tmp_path):
    """The page asks for a token, reports a wrong one, and forgets the right one when it is reloaded."""
    (tmp_path / "tokens").write_text("a-token")
    with serve(small_models, http_port=0, tokens_file=tmp_path / "tokens") as running:
        page = visit(running)
        page.page.wait_for_selector("#token")
        assert page.page.evaluate("document.activeElement.id") == "token"
        for token, expected in (("wrong", "token"), ("not ascii \u00e9", "ASCII")):
            page.page.fill("#token", token)
            page.page.keyboard.press("Enter")
            page.page.wait_for_selector(f"#error:has-text('{expected}')")
        page.page.fill("#token", "a-token")
        page.page.click("text=Use token")
        page.wait()
        page.page.click("#code summary")
        page.wait_for_text("#snippet", "$TOKEN")

        assert page.page.locator("#token-form").is_hidden()
        assert page.page.evaluate("localStorage.length + sessionStorage.length + document.cookie.length") == 0
        page.page.reload()
        page.page.wait_for_selector("#token")


def test_the_first_view_is_fast(visit, shipped):
    """The first result is there within a second of opening the page."""
    seconds = []
    for _ in range(3):
        page = visit(shipped)
        page.wait()
        seconds.append(page.page.evaluate("performance.now()") / 1000)

    assert min(seconds) < MAX_FIRST_VIEW_S
