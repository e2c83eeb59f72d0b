"""The example that searches by words and then ranks."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bertline import Client
from bertline.testing import FakeServer
from tests.clients.command import Result, run_example

LINES = ["Owls sleep in hollow trees.", "The river is wide.", "Owls hunt at night.", "Cats sleep all day."]


@pytest.fixture
def example(server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that runs the example in a folder with `notes.txt`."""
    (tmp_path / "notes.txt").write_text("\n\n".join([*LINES, f" {LINES[1]} "]) + "\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return partial(run_example, "hybrid_search", BERTLINE_TARGET=server.target)


def test_two_steps(example: Any, server: FakeServer, tmp_path: Path) -> None:
    """Words find lines, and the model orders them; the evaluation counts where the right line stands."""
    with Client(server.target) as client:
        found = [LINES[0], LINES[2], LINES[3]]  # those with a word of the query
        (ranking,) = client.rerank([("Where do owls sleep?", found)])
    rows = [{"query": "Where do owls sleep?", "text": LINES[0]}, {"query": "!", "text": LINES[1]}]
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    made = example("index", "notes.txt", "notes.db")
    asked = example("query", "notes.db", "Where do owls sleep?", "--top-k", "3")
    counted = example("evaluate", "notes.db", "questions.jsonl")

    assert made == Result(0, "4 texts\n", "")
    assert sorted(line[7:] for line in asked.out.splitlines()) == sorted(found)
    scores = {line[7:]: line[:5] for line in asked.out.splitlines()}
    assert scores == {found[item.document]: f"{item.score:.3f}" for item in ranking.documents}
    table = dict(re.findall(r"(\w+) +([\d.]+) +[\d.]+\n", counted.out))
    assert table == {"BM25": "50.0", "rerank": "50.0", "both": "50.0"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("query", "none.db", "a"), "no index at `none.db`"),
        (("index", "none.txt", "a.db"), "No such file or directory: `none.txt`"),
        (("index", "notes.txt", "notes.txt"), "`notes.txt` already exists"),
    ],
)
def test_mistakes(example: Any, arguments: tuple[str, ...], message: str) -> None:
    """A mistake is one line."""
    result = example(*arguments)

    assert (result.code, result.out) == (1, "")
    assert result.err.startswith(f"hybrid_search: {message}")
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    "row", ['{"query": "a", "text": null}', '{"query": 5, "text": "a"}', '{"query": " ", "text": "a"}', "[" * 100_000]
)
def test_bad_questions(example: Any, tmp_path: Path, row: str) -> None:
    """Questions must be texts, with the text that answers them."""
    (tmp_path / "questions.jsonl").write_text(f"{row}\n", encoding="utf-8")
    example("index", "notes.txt", "notes.db")

    result = example("evaluate", "notes.db", "questions.jsonl")

    line = "`questions.jsonl`, line 1: expected an object with the texts `query` and `text`"
    assert result == Result(1, "", f"hybrid_search: {line}\n")
