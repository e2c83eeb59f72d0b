"""Messages of the page when something is wrong, and text that tries to be HTML."""

import pytest

from tasks import settings_from_dict
from tests.serving.conftest import serve
from tests.serving.http_api.playground.page import FOREIGN, IN_BROWSER
from tests.serving.models import write_model

ATTACK = '<img src=x onerror="window.attacked=1"><script>window.attacked=1</script><b>bold</b>'
HTML = "<!doctype html><title>Log in</title>"

pytestmark = IN_BROWSER


def test_blank_lines_are_told(visit, small):
    """Input of blank lines only gives a one-line message, and no request."""
    page = visit(small, "#model=embedder&do=similarity")
    page.wait()
    page.page.on("request", lambda request: page.complaints.append(request.url))
    page.page.fill("#field-texts", " \n\t\n")
    page.page.click("#run")
    page.wait_for_text("#error", "blank")

    assert page.texts("#error") == ['All lines of "Sentences, one per line" are blank; type some text.']
    assert page.texts("#result") == [""]


def test_errors_are_told(visit, small):
    """An error of the server is an alert with its reason, and the option that it names helps."""
    page = visit(small, "#model=embedder&do=similarity")
    page.wait()
    page.run(texts="the cat " * 50)
    error = page.page.locator("#error")

    assert "too long" in error.text_content()
    assert error.get_attribute("role") == "alert"
    page.page.click("#fields summary")
    page.page.check("#field-truncate")
    page.run()
    assert error.is_hidden()
    assert page.texts("#result .notice") == ["Cut, and not read by the model: 38 tokens."]
    page.run(texts="the cat\n" + "the cat " * 50 + "\n" + "the cat " * 32)
    assert page.texts("#result .notice") == ["Cut, and not read by the model: 40 tokens of texts 2 and 3."]
    page.open("embedder", "search")
    page.page.click("#fields summary")
    page.page.check("#field-truncate")
    page.run(query="the cat " * 50, documents="the cat")
    assert page.texts("#result .notice") == ["Cut, and not read by the model: 40 tokens of the query."]


@pytest.mark.parametrize("body", [HTML, '{"results": [{"labels": [{"label": "ye'])
@pytest.mark.parametrize("route", ["classify", "list-models", "tokenize"])
def test_replies_of_others_are_told(visit, small, route, body):
    """If a proxy answers with a page or half a reply, a one-line message reports it."""
    page = visit(small)
    page.wait()
    page.page.route(f"**/v1/{route}", lambda route: route.fulfill(body=body))
    page.open({"tokenize": "filler"}.get(route, "classifier"), "")

    assert page.texts("#error") == [FOREIGN]
    assert page.texts("#result") == [""]


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ({"body": HTML}, FOREIGN),
        ({"status": 429, "json": {"message": "Too many requests."}}, "Too many requests."),
    ],
)
def test_the_result_stays_if_tokens_or_code_fail(visit, small, reply, message):
    """A failure of what is below the result is reported there, and a later run clears it."""
    page = visit(small, "#model=classifier&do=labels")
    page.wait()
    for path in ("v1/tokenize", "playground/server"):
        page.page.route(f"**/{path}", lambda route: route.fulfill(**reply))
    for name, target in (("#tokens", "#token-list"), ("#code", "#copied")):
        page.page.click(f"{name} summary")
        page.wait_for_text(target, message)
    page.run(text="the cat")

    assert page.page.locator("#result .bars li").count() == 3
    assert page.page.locator("#error").is_hidden()
    page.page.unroute_all()
    page.run(text="the dog")
    page.wait_for_text("#token-list", "dog")
    page.wait_for_text("#snippet", "the dog")
    assert page.texts("#copied") == [""]


def test_text_is_never_html(visit, shipped, tmp_path):
    """Text that looks like HTML stays text, in inputs, results, tokens, code, errors and model outputs."""
    page = visit(shipped)
    names = {"tag": "text", "answer": "context", "sentiment": "text", "embed": "texts"}
    for model, field in names.items():
        page.open(model, "")
        page.run(**{field: ATTACK})
        for name in ("#tokens", "#code"):
            page.page.click(f"{name} summary")
        page.wait_for_text("#snippet", "curl")
        assert page.page.locator("main").locator("img, script, b").count() == 0
    settings = settings_from_dict("classification", {"max_seq_length": 32, "labels": [ATTACK, "b", "c"]})
    write_model(tmp_path, "labels", task="classification", settings=settings)
    with serve(tmp_path, http_port=0) as running:
        other = visit(running)
        other.wait()
        other.run(text="the cat " * 100)

        assert ATTACK in other.texts("#about")[0]
        assert "too long" in other.texts("#error")[0]
        assert other.page.locator("main").locator("img, script, b").count() == 0
    assert page.page.evaluate("window.attacked") is None
