"""Examples of clients/examples with a real server: the index as a command, the service over HTTP."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import urllib.request
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import bertline
from tests.clients.command import Result, run_example

EXAMPLES = Path(__file__).parents[3] / "clients" / "examples"
LINES = ["Owls sleep in the old oak.", "A cat at night?", "the river", "owls near the river", "the old tree"]


@pytest.fixture(scope="module")
def search(served):
    """Run search.py; return its exit code and output."""
    return lambda *arguments, **changes: run_example(
        "search", *arguments, **{"BERTLINE_TARGET": served.target} | changes
    )


@pytest.fixture(scope="module")
def index(search, tmp_path_factory):
    """Return the index of a file that has blank lines, and a line twice."""
    folder = tmp_path_factory.mktemp("search")
    (folder / "notes.txt").write_text("\n\n".join([*LINES, f" {LINES[1]} "]) + "\n  \n", encoding="utf-8")
    result = search("index", folder / "notes.txt", folder / "notes.db", "--model", "plain")
    assert result == Result(0, f"{len(LINES)} texts\n", "")
    return folder / "notes.db"


def nearest(reference, query):
    """Return LINES in the reference model's order, by their cosines."""
    vectors = reference.encode([query, *LINES], normalize_embeddings=True)
    return [LINES[row] for row in np.argsort(-(vectors[1:] @ vectors[0]))]


def ranked(client, query):
    """Return LINES as the served model ranks them."""
    (ranking,) = client.rerank([(query, LINES)])
    return [(item.score, LINES[item.document]) for item in ranking.documents]


def test_the_index_is_searched(search, index, served_client):
    """A query finds lines by words and vectors, which come in the order and with the scores of the model that ranks."""
    result = search("query", index, "the owl in a tree", "--top-k", "3")

    printed = [line.split("  ", 1) for line in result.out.splitlines()]
    expected = ranked(served_client, "the owl in a tree")[:3]
    assert result.code == 0
    assert [text for _, text in printed] == [text for _, text in expected]
    assert [float(score) for score, _ in printed] == pytest.approx([score for score, _ in expected], abs=6e-4)


def test_evaluation(search, index, served, served_client, tmp_path):
    """The evaluation counts where the line that answers stands after each step."""
    rows = [{"query": "the owl in a tree", "text": "  the   river"}, {"query": "!?", "text": LINES[2]}]
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    vectors = [nearest(served.plain, row["query"]).index(LINES[2]) + 1 for row in rows]
    reranked = [[text for _, text in ranked(served_client, row["query"])].index(LINES[2]) + 1 for row in rows]

    result = search("evaluate", index, tmp_path / "questions.jsonl")

    rows = re.findall(r"(\w+) +([\d.]+) +[\d.]+ +([\d.]+)\n", result.out)
    found = {name: (recall, mrr) for name, recall, mrr in rows}
    assert list(found) == ["BM25", "vectors", "both", "reranked"]
    assert found["BM25"][0] == "50.0"  # the second query has no word
    for name, ranks in (("vectors", vectors), ("reranked", reranked)):
        assert found[name] == ("100.0", f"{100 * np.mean([1 / rank for rank in ranks]):.1f}")


@pytest.mark.parametrize(
    "row", ['{"query": "a", "text": null}', '{"query": 5, "text": "a"}', '{"query": " ", "text": "a"}', "[" * 100_000]
)
def test_bad_questions(search, index, tmp_path, row):
    """Questions must be texts, with the text that answers them."""
    (tmp_path / "questions.jsonl").write_text(f"{row}\n", encoding="utf-8")

    result = search("evaluate", index, tmp_path / "questions.jsonl")

    line = "questions.jsonl`, line 1: expected an object with the texts `query` and `text`\n"
    assert (result.code, result.err.count("\n")) == (1, 1)
    assert result.err.endswith(line)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["index", "{notes}", "{index}", "--model", "plain"], "already exists"),
        (["index", "{notes}", "{new}", "--model", "labels"], "`labels` has task `classification`"),
        (["index", "{notes}", "{new}"], "model `embed` does not exist"),
        (["index", "{empty}", "{new}", "--model", "plain"], "has no text"),
        (["index", "{new}", "{new}", "--model", "plain"], "No such file"),
        (["query", "{new}", "owl"], "no index at `.*new`; make one"),
    ],
    ids=str,
)
def test_mistakes_of_the_command(search, index, tmp_path, arguments, message):
    """The command reports a mistake in one line and writes nothing."""
    (tmp_path / "empty.txt").write_text("\n \n")
    paths = {
        "notes": index.with_suffix(".txt"),
        "index": index,
        "new": tmp_path / "new",
        "empty": tmp_path / "empty.txt",
    }

    result = search(*(argument.format(**paths) for argument in arguments))

    assert result.code == 1
    assert re.fullmatch(rf"search: .*{message}.*\n", result.err)
    assert [path.name for path in tmp_path.iterdir()] == ["empty.txt"]


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM about WHERE name = 'space'",
        "DELETE FROM lines",
        "UPDATE lines SET vector = 'a'",
        "DROP TABLE lines",
    ],
)
def test_damaged_index(search, index, tmp_path, change):
    """A damaged index is refused in one line, and so is a file of another kind."""
    damaged, other = tmp_path / "damaged", tmp_path / "other"
    shutil.copy(index, damaged)
    with closing(sqlite3.connect(damaged)) as database, database:
        database.execute(change)
    other.write_text("owls\n" * 100)

    for file in (damaged, other):
        result = search("query", file, "owl")

        assert result.code == 1
        assert re.fullmatch(r"search: `.*` is no index, or is damaged; make it again: .*\n", result.err)


def test_vectors_of_another_space(search, index, tmp_path):
    """Queries whose vectors do not belong to those of the index are refused."""
    shutil.copy(index, tmp_path / "other.db")
    with closing(sqlite3.connect(tmp_path / "other.db")) as database, database:
        database.execute("UPDATE about SET value = '0123456789abcdef' WHERE name = 'space'")

    result = search("query", tmp_path / "other.db", "owl")

    assert result.code == 1
    assert re.fullmatch(r"search: .*gives vectors of space `\w+`, not of `0123456789abcdef`.*\n", result.err)


def test_a_line_that_cannot_be_used(search, tmp_path):
    """The command names an unusable line by its number in the file."""
    (tmp_path / "notes.txt").write_text("an owl\n\n \nthe tree\n\x7f\n")

    result = search("index", tmp_path / "notes.txt", tmp_path / "new", "--model", "plain")

    assert (result.code, result.err) == (1, "search: line 5: empty text; it needs at least one word\n")


def test_variables_may_be_empty(search, index, start):
    """Command and service treat empty environment variables as unset."""
    assert search("query", index, "owl", BERTLINE_TOKEN="").code == 0
    assert "a target must be" not in search("query", index, "owl", BERTLINE_TARGET="").err
    with start(BERTLINE_TOKEN="") as http:
        assert http.get("/health").status_code == 200


@pytest.fixture
def start(served, index, monkeypatch):
    """Start the service with some variables; return a client of its HTTP."""
    pytest.importorskip("fastapi", reason="fastapi is not installed; it is in the group `integrations`")
    from fastapi.testclient import TestClient

    monkeypatch.syspath_prepend(str(EXAMPLES))
    spec = importlib.util.spec_from_file_location("app", EXAMPLES / "app.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def make(**variables):
        for name, value in ({"BERTLINE_TARGET": served.target, "BERTLINE_INDEX": str(index)} | variables).items():
            monkeypatch.setenv(name, value)
        return TestClient(module.app)

    yield make
    sys.modules.pop("search", None)


@pytest.fixture
def http(start):
    with start() as client:
        yield client


def test_vectors_over_http(http, served):
    """`/embed` returns the reference model's vectors, for several requests on one connection."""
    for texts in (LINES[:1], LINES):
        reply = http.post("/embed", json={"texts": texts, "model": "unit"})

        assert reply.status_code == 200
        np.testing.assert_allclose(reply.json()["vectors"], served.unit.encode(texts), atol=1e-5)


def test_labels_over_http(http, served_client):
    """`/classify` returns the client's labels."""
    texts = ["the cat", "the dog sees the bird"]

    results = http.post("/classify", json={"texts": texts}).json()["results"]

    expected = [[(item.label, item.score) for item in result.labels] for result in served_client.classify(texts)]
    assert [[(item["label"], item["score"]) for item in result] for result in results] == expected


def test_search_over_http(http, served_client):
    """`/search` returns the ranked lines of the index that the command wrote."""
    results = http.post("/search", json={"text": "the owl in a tree", "top_k": 2}).json()["results"]

    expected = ranked(served_client, "the owl in a tree")[:2]
    assert [item["text"] for item in results] == [text for _, text in expected]
    assert [item["score"] for item in results] == pytest.approx([score for score, _ in expected], abs=1e-5)


@pytest.mark.parametrize(
    ("path", "body", "status", "detail"),
    [
        ("/embed", {"texts": ["owl", " "], "model": "plain"}, 422, '"items":[{"index":1,"reason":"empty text'),
        ("/embed", {"texts": ["owl " * 99], "model": "plain"}, 422, "input 0, text: "),
        ("/embed", {"texts": ["owl"], "model": "other"}, 404, "other"),
        ("/embed", {"texts": ["owl"]}, 422, "several models are loaded"),
        ("/embed", {"texts": []}, 422, "at least 1 item"),
        ("/embed", {"texts": "owl"}, 422, "valid list"),
        ("/search", {"text": "owl", "top_k": 0}, 422, "greater than or equal to 1"),
        ("/search", {"text": ""}, 422, "input 0, text: empty text"),
    ],
    ids=str,
)
def test_mistakes_over_http(http, path, body, status, detail):
    """Each mistake gets its HTTP status and its reason."""
    reply = http.post(path, json=body)

    assert reply.status_code == status
    assert detail in reply.text


def test_without_a_server_over_http(start, dead_target):
    """Without a server, every path returns 503 with Retry-After, `/health` included."""
    with start(BERTLINE_TARGET=dead_target) as http:
        replies = [http.get("/health"), http.post("/embed", json={"texts": ["owl"]})]

    assert [(reply.status_code, reply.headers["Retry-After"]) for reply in replies] == [(503, "1")] * 2


def test_an_index_of_a_model_that_is_gone(start, index, tmp_path):
    """A search in the index of a removed model returns 503, because the caller named no model."""
    shutil.copy(index, tmp_path / "index")
    with closing(sqlite3.connect(tmp_path / "index")) as database, database:
        database.execute("UPDATE about SET value = '9' WHERE name = 'version'")

    with start(BERTLINE_INDEX=str(tmp_path / "index")) as http:
        reply = http.post("/search", json={"text": "owl"})

    assert (reply.status_code, "build the index again" in reply.text) == (503, True)


def test_without_an_index_over_http(start):
    """Without an index, `/search` returns 404 and names the variable to set."""
    with start(BERTLINE_INDEX="") as http:
        reply = http.post("/search", json={"text": "owl"})

    assert (reply.status_code, "BERTLINE_INDEX" in reply.text) == (404, True)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ("InvalidInput", 422),
        ("ModelNotFound", 404),
        ("Overloaded", 503),
        ("ConnectionFailed", 503),
        ("TimedOut", 504),
        ("Unauthenticated", 502),
        ("PermissionDenied", 502),
        ("ServerError", 502),
        ("TooLarge", 413),
    ],
)
def test_every_error_has_a_status(http, monkeypatch, error, status):
    """Every error has an HTTP status; errors with status 502 hide their message, and 503 has Retry-After."""

    class TooLarge(bertline.Overloaded):
        is_final = True

    async def fail(*texts, **options):
        raise getattr(bertline, error, TooLarge)("secret")

    monkeypatch.setattr(http.app.state.client, "embed", fail)
    reply = http.post("/embed", json={"texts": ["owl"]})

    assert reply.status_code == status
    assert ("secret" in reply.text) == (status != 502)
    assert ("Retry-After" in reply.headers) == (status == 503)


def test_the_service_runs_as_its_first_lines_say(served):
    """The command in the first lines of app.py starts a service that answers."""
    pytest.importorskip("uvicorn", reason="uvicorn is not installed; it is in the group `integrations`")
    command = [sys.executable, "-m", "uvicorn", "app:app", "--app-dir", str(EXAMPLES), "--port", "0"]
    environment = os.environ | {"BERTLINE_TARGET": served.target, "BERTLINE_INDEX": ""}
    service = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        address = next(found[0] for line in service.stderr if (found := re.search(r"http://\S+:\d+", line)))
        with urllib.request.urlopen(f"{address}/health", timeout=10) as reply:
            health = json.load(reply)
    finally:
        service.send_signal(signal.SIGINT)
        service.communicate(timeout=30)

    assert health["models"] == ["labels/1", "plain/1", "ranker/1", "unit/1"]
