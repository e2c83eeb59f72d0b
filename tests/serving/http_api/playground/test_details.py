"""Views below the result: tokens, code of the request."""

import os
import subprocess
import sys

from tests.serving.http_api.playground.page import ACCENT, FAMILY, IN_BROWSER, ROOT

pytestmark = IN_BROWSER


def test_tokens_are_shown(visit, small):
    """Opened, the tokens of the text are shown with their ids, and follow the next run, also those of any label."""
    page = visit(small, "#model=classifier&do=labels")
    page.wait()
    page.page.click("#tokens summary")
    page.page.wait_for_selector(".tokens li")
    with page.page.expect_response("**/v1/tokenize"):
        page.run(text="the cats <b>")
    page.page.wait_for_selector("text=##s")

    assert page.texts(".tokens bdi")[:4] == ["[CLS]", "the", "cat", "##s"]
    assert page.texts(".tokens small")[0] == "2"
    page.open("classifier", "own-labels")
    page.page.click("#tokens summary")
    page.page.wait_for_selector(".tokens li")
    page.page.fill("#field-labels", "$& and $$\nother")
    with page.page.expect_request("**/v1/tokenize") as request:
        page.page.click("#run")
    assert request.value.post_data_json["inputs"][0]["text_pair"] == "This example is about $& and $$."


def test_code_of_the_request_runs(visit, shipped):
    """The command for curl and the Python program give what the page shows."""
    text = f'It\'s "good" {FAMILY} \\ $HOME `ls` {ACCENT}!'
    page = visit(shipped, "#model=sentiment")
    page.wait()
    page.run(text=text)
    page.page.click("#code summary")
    label, value = page.texts(".bars .chosen .text")[0], page.texts(".bars .chosen .value")[0]
    commands = {}
    for language, start in (("curl", "curl"), ("python", "with Client"), ("grpc", "grpcurl")):
        page.page.check(f"#languages input[value={language}]", force=True)
        page.wait_for_text("#snippet", start)
        commands[language] = page.page.locator("#snippet").text_content()
    curl = subprocess.run(["bash", "-c", commands["curl"]], capture_output=True, text=True, check=True).stdout
    program = [sys.executable, "-c", commands["python"]]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "clients")}
    python = subprocess.run(program, capture_output=True, text=True, check=True, env=environment).stdout

    score = f"{float(value.rstrip('%')) / 100:.2f}"
    assert f'"label":"{label}"' in curl
    assert f"label='{label}'" in python
    assert score[:3] in curl
    assert score[:3] in python
    assert f"127.0.0.1:{shipped.server.port} bertline.v1.Encoder/Classify" in commands["grpc"]
