"""Files of deploy/, parsed for the tests."""

import json
import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
RULES = [rule for group in yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
PANELS = {
    panel["title"]: [target["expr"] for target in panel["targets"]]
    for panel in json.loads((DEPLOY / "dashboard.json").read_text())["panels"]
    if "targets" in panel
}

(ADAPTER_RULE,) = yaml.safe_load((DEPLOY / "prometheus-adapter.yaml").read_text())["rules"]["custom"]
"""Rule of prometheus-adapter for the metric of the autoscaler."""


def adapter_query(labels):
    """Return the adapter's query for the pods that have labels, given as in PromQL."""
    return ADAPTER_RULE["metricsQuery"].replace("<<.LabelMatchers>>", labels).replace("<<.GroupBy>>", "instance")


def page(path):
    """Return a page of docs/."""
    return (ROOT / "docs" / path).read_text("utf-8")


def section(path, name):
    """Return a section of a page of docs/."""
    return re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", page(path), re.MULTILINE | re.DOTALL)[1]


def names(expression):
    """Return the names of series in PromQL."""
    return set(re.findall(r"\b(?:bertline|process|grpc_server)_\w+", expression))


def labels(expression):
    """Return the label names in the selectors and groupings of PromQL."""
    grouped = re.findall(r"\b(?:by|on|ignoring|without)\s*\(([\w, ]*)\)", expression)
    matched = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", expression)
    return set(matched) | {name for group in grouped for name in re.split(r",\s*", group)}
