"""Alerts, dashboard and documentation name existing series."""

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.deploy.files import ADAPTER_RULE, PANELS, RULES, adapter_query, labels, names, page, section

OF_PROCESSES = {"bertline_processes", "bertline_process_replaced_total"}
"""Series of servers with several processes."""
ADDED_BY_PROMETHEUS = {"job", "instance", "namespace", "pod"}


@pytest.fixture(scope="module")
def families(asked):
    """Series and labels of a real server's metrics."""
    return list(text_string_to_metric_families(asked.page()))


@pytest.mark.parametrize(
    "expression",
    [rule["expr"] for rule in RULES]
    + [expression for panel in PANELS.values() for expression in panel]
    + [ADAPTER_RULE["seriesQuery"], adapter_query('namespace="default"')],
)
def test_series_exist(expression, families):
    """Each name and label of a query is in the metrics of a real server."""
    samples = [sample for family in families for sample in family.samples]

    assert names(expression) <= {sample.name for sample in samples} | OF_PROCESSES
    assert labels(expression) <= {name for sample in samples for name in sample.labels} | ADDED_BY_PROMETHEUS
    assert names(expression) or "up{" in expression


def test_every_series_is_documented(families):
    """All our series are in the table of docs/reference/metrics.md, and no others."""
    documented = set(re.findall(r"^\| `(\w+)`", page("reference/metrics.md"), re.MULTILINE))
    ours = {family.name + "_total" * (family.type == "counter") for family in families}

    assert documented - {"process_resident_memory_bytes", "process_cpu_seconds_total", *OF_PROCESSES} == {
        name for name in ours if not name.startswith("process_")
    }


def test_documented_queries(families):
    """Queries in docs/guides/monitor.md name existing series."""
    samples = {sample.name for family in families for sample in family.samples}
    queries = re.findall(r"^```promql\n(.*?)^```", section("guides/monitor.md", "Metrics"), re.MULTILINE | re.DOTALL)

    assert queries
    assert names("\n".join(queries)) <= samples


def test_every_alert_is_explained():
    """docs/guides/monitor.md explains what to do about each alert."""
    explained = re.findall(r"^\| `(Bertline\w+)` \|", section("guides/monitor.md", "Alerts"), re.MULTILINE)

    assert explained == [rule["alert"] for rule in RULES]
