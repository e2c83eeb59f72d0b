"""Custom labels, by the client, the command and jobs."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from bertline import Client, InvalidInput, Usage
from bertline.testing import FakeServer
from tests.clients.command import Run

LABELS = ["sports", "politics", "weather"]


def test_labels_fit_texts(client: Client) -> None:
    """One label is selected, or any number; scores are in order."""
    one, other = client.zero_shot(["It rains.", "A goal."], LABELS)
    (several,) = client.zero_shot(["It rains."], LABELS, multi_label=True)

    assert sorted(item.label for item in one.labels) == sorted(LABELS)
    assert sum(item.score for item in other.labels) == pytest.approx(1)
    assert (one.multi_label, several.multi_label) == (False, True)
    assert one.selected == (one.label,)
    assert several.selected == tuple(item.label for item in several.labels if item.score >= 0.5)


def test_requests_hold_few_pairs(client: Client, server: FakeServer) -> None:
    """Many labels leave room for few texts in a request; options reach the server in each."""
    labels = [f"label {number}" for number in range(400)]
    usage = Usage()
    found = client.zero_shot(["a", "b", "c"], labels, template="It is {}.", top_k=2, truncate=True, usage=usage)

    assert sorted(len(request.texts) for request in server.requests) == [1, 2]
    assert {(request.template, request.top_k, len(request.labels)) for request in server.requests} == {
        ("It is {}.", 2, 400)
    }
    assert [len(item.labels) for item in found] == [2, 2, 2]
    assert len(usage.num_tokens) == 3


def test_errors(client: Client) -> None:
    """Labels must be a list; texts are named by position."""
    with pytest.raises(TypeError, match="`labels` must be a list, not one string"):
        client.zero_shot(["a"], "sports")
    with pytest.raises(InvalidInput) as caught:
        client.zero_shot(["a"] * 5 + [" "], LABELS)

    assert [(item.index, item.field) for item in caught.value.items] == [(5, "text")]


def test_command(run: Run, target: str) -> None:
    """`--label` names the labels; a row has the most likely first."""
    with Client(target) as client:
        (expected,) = client.zero_shot(["A goal."], LABELS)
    (row,) = run("zero-shot", *(part for label in LABELS for part in ("--label", label)), "A goal.").rows

    assert row["label"] == expected.label
    assert [item["label"] for item in row["labels"]] == [item.label for item in expected.labels]
    assert "selected" not in row


def test_command_without_labels(run: Run) -> None:
    """Labels are needed."""
    result = run("zero-shot", "text")

    assert result.code == 2
    assert "name the labels: bertline zero-shot --label sports --label politics TEXT" in result.err


@pytest.mark.parametrize("multi_label", [False, True])
def test_job(run: Run, tmp_path: Path, multi_label: bool) -> None:
    """A job writes labels as `classify` does, with the selected ones if there may be any number."""
    (tmp_path / "texts.jsonl").write_text('{"text": "A goal."}\n{"text": "It rains."}\n', encoding="utf-8")
    output = tmp_path / "labels.parquet"
    flags = ["--multi-label"] if multi_label else []
    names = [part for label in LABELS for part in ("--label", label)]

    result = run("zero-shot", *names, *flags, "-i", str(tmp_path / "texts.jsonl"), "-o", str(output))

    table = pq.read_table(output)
    assert result.code == 0
    assert ("selected" in table.column_names) == multi_label
    assert len(table["labels"][0].as_py()) == 3
    assert json.loads(table.schema.metadata[b"bertline"])["options"]["labels"] == LABELS
