"""Prometheus itself reads the files of deploy/. Needs Debian's package `prometheus`."""

import json
import math
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import contextmanager

import pytest

from tests.deploy.files import DEPLOY, PANELS, RULES, adapter_query

AT_ZERO = {
    "Cancelled sequences a second",
    "Rejected a second",
    "Waiting sequences",
    "Padding",
    "Replies from the cache",
}
"""Series that the traffic does not change."""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which("promtool") and shutil.which("prometheus")),
        reason="promtool and prometheus are not installed (Debian: apt-get install prometheus)",
    ),
]


def promtool(*arguments, **options):
    done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_configuration():
    """promtool accepts the scrape configuration and its alerts."""
    assert f"{len(RULES)} rules found" in promtool("check", "config", DEPLOY / "prometheus.yml")


def test_rules():
    """Each alert fires on its problem, and none on a healthy server."""
    tested = (DEPLOY / "alerts_test.yml").read_text()

    promtool("test", "rules", DEPLOY / "alerts_test.yml")
    assert not [rule["alert"] for rule in RULES if rule["alert"] not in tested]


def test_page(asked):
    """promtool's lint accepts the metrics of a real server, except for customary names."""
    assert promtool("check", "metrics", input=asked.page()) == ""


class Prometheus:
    """Running Prometheus."""

    def __init__(self, port):
        self.address = f"http://127.0.0.1:{port}"

    def ask(self, path, **parameters):
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.address}/api/v1/{path}?{query}", timeout=10) as reply:
            return json.load(reply)["data"]

    def values(self, expression):
        return [float(result["value"][1]) for result in self.ask("query", query=expression)["result"]]

    def wait_for(self, expression):
        """Wait until a query returns a number other than 0."""
        end = time.monotonic() + 60
        while True:
            try:
                if any(value and not math.isnan(value) for value in self.values(expression)):
                    return
            except (urllib.error.URLError, ConnectionError):
                pass
            assert time.monotonic() < end, expression
            time.sleep(0.2)


@contextmanager
def started(folder, target):
    """Prometheus with the configuration in deploy/, but scraping a server under test, and often."""
    text = (DEPLOY / "prometheus.yml").read_text()
    text = text.replace("127.0.0.1:9090", target).replace("15s", "1s")
    assert target in text
    (folder / "prometheus.yml").write_text(text)
    shutil.copy(DEPLOY / "alerts.yml", folder)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield Prometheus(port)
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture(scope="module")
def prometheus(asked, tmp_path_factory):
    with started(tmp_path_factory.mktemp("prometheus"), f"127.0.0.1:{asked.server.metrics_port}") as running:
        running.wait_for('up{job="bertline"} == 1')
        running.wait_for("rate(bertline_tokens_total[5s])")
        yield running


@pytest.mark.parametrize("title", PANELS)
def test_dashboard(title, prometheus):
    """Every query of the dashboard returns numbers for a server with traffic, and other than 0 where it should."""
    for expression in PANELS[title]:
        query = expression.replace("$__rate_interval", "5s").replace("$instance", ".*").replace("$model", ".*")
        values = [value for value in prometheus.values(query) if math.isfinite(value)]

        assert values, query
        assert max(values) > 0 or title in AT_ZERO, query


def test_metric_of_the_autoscaler(prometheus):
    """The adapter's query returns the mean wait of a pod, and 0 (not NaN) for a histogram without traffic."""
    idle = adapter_query('grpc_method="Tag"').replace("bertline_queue_seconds", "grpc_server_handling_seconds")
    (wait_s,) = prometheus.values(adapter_query('model="embedder"'))

    assert 0 < wait_s < 10
    assert prometheus.values(idle) == [0]


def test_alerts(prometheus):
    """All alerts are evaluated without error; for a server with a broken model, the alert for that is pending."""
    prometheus.wait_for('ALERTS{alertname="BertlineModelFailed", model="broken"}')
    rules = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]

    assert [rule["name"] for rule in rules] == [rule["alert"] for rule in RULES]
    assert {rule["health"] for rule in rules} == {"ok"}
    assert [rule["name"] for rule in rules if rule["state"] != "inactive"] == ["BertlineModelFailed"]
