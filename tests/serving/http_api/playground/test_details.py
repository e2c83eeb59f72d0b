"""Views below the result: tokens, code of the request, load of the server."""

import os
import subprocess
import sys

from tests.serving.conftest import serve
from tests.serving.http_api.playground.page import ACCENT, FAMILY, IN_BROWSER, ROOT
from tests.serving.http_api.requests import send

pytestmark = IN_BROWSER


def test_tokens_are_shown(visit, small):
    """Opened, the tokens of the text are shown with their ids, and follow the next run."""
    page = visit(small, "#model=classifier&do=labels")
    page.wait()
    page.page.click("#tokens summary")
    page.page.wait_for_selector(".tokens li")
    with page.page.expect_response("**/v1/tokenize"):
        page.run(text="the cats <b>")
    page.page.wait_for_selector("text=##s")

    assert page.texts(".tokens bdi")[:4] == ["[CLS]", "the", "cat", "##s"]
    assert page.texts(".tokens small")[0] == "2"


def test_labels_are_put_into_the_sentence_as_they_are(visit, small):
    """A label with characters that JavaScript gives a meaning in replacements stays as it is."""
    page = visit(small, "#model=classifier&do=own-labels")
    page.wait()
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


def test_the_load_is_live(visit, small):
    """Opened, the view shows rates, latency and queue, and counts what the page did."""
    page = visit(small, "#model=classifier&do=labels")
    page.wait()
    page.page.click("#load summary")
    page.page.wait_for_selector("#gauges dd")
    for _ in range(5):
        page.run()
    page.page.wait_for_selector("#gauges div:has-text('Requests') dd:text-matches('[1-9]')")

    assert len(page.texts("#gauges dd")) == 7
    assert page.texts("#gauges dd")[3].endswith(" ms")


def test_health_checks_are_no_load(visit, small):
    """Calls of TEI's route at the address of the page count, and health checks do not."""
    page = visit(small)
    page.wait()
    read = """async () => {
      const { totals } = await import("/playground/load.js");
      return totals(await (await fetch("/metrics")).text()).handled;
    }"""
    before = page.page.evaluate(read)
    send(small, "POST", "/", {"inputs": "the cat"})
    for path in ("/", "/health", "/v2/health/live", "/v2/health/ready", "/v2/models/filler/ready"):
        send(small, "GET", path)

    assert page.page.evaluate(read) == before + 1


def test_rates_survive_a_restart(visit, small):
    """When counters fall, the earlier sample is dropped, so that no rate is negative."""
    page = visit(small)
    counters = iter([100, 3, *range(5, 100, 2)])
    metrics = "**/metrics", lambda route: route.fulfill(body=f"bertline_batch_rows_sum {next(counters)}\n")
    page.page.route(*metrics)
    page.wait()
    page.page.click("#load summary")
    page.page.wait_for_selector("#gauges div:has-text('Sequences') dd:text-matches('[0-9]')")

    assert 0 < float(page.texts("#gauges div:has-text('Sequences') dd")[0]) <= 1


def test_quantiles(visit, small):
    """Latencies are estimated as Prometheus does, from what was added between two pages."""
    page = visit(small)
    found = page.page.evaluate(
        """async () => {
          const { quantile } = await import("/playground/load.js");
          const [before, now] = [[[1, 5], [2, 5], [Infinity, 5]], [[1, 5], [2, 15], [Infinity, 15]]];
          return [quantile(0.5, new Map(now), new Map(before)), quantile(0.5, new Map(now), new Map(now)) ?? null];
        }"""
    )

    assert found == [1.5, None]


def test_a_port_without_metrics_says_so(visit, small_models):
    """Where the metrics have an address of their own, the view says why it is empty."""
    with serve(small_models, http_port=0, metrics_host="127.0.0.1") as running:
        page = visit(running)
        page.wait()
        page.page.click("#load summary")
        page.page.wait_for_selector("#gauges >> text=--metrics-host")
