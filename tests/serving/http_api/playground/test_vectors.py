"""Results that are made of vectors: similarity, search, weights of tokens."""

import re

import pytest

from tests.serving.http_api.playground.page import ACCENT, FAMILY, IN_BROWSER
from tests.serving.http_api.requests import send

pytestmark = IN_BROWSER


def test_similarity_is_a_table(visit, shipped):
    """The heat map is a table with a row and a column for each sentence, and its numbers are the cosines."""
    lines = ["A man plays the guitar.", "Someone is making music.", f"{FAMILY} 我喜欢 e{ACCENT}te{ACCENT}"]
    page = visit(shipped, "#model=embed&do=similarity")
    page.wait()
    page.run(texts="\n\n".join(lines))
    cells = page.texts(".heat tbody td")

    assert page.texts(".heat tbody th bdi") == lines
    assert [cells[0], cells[4], cells[8]] == ["1.00"] * 3
    assert cells[1] == cells[3]
    assert float(cells[1]) > float(cells[2])
    assert page.texts("#status")[0].startswith("Most similar: 1 and 2")


def test_only_texts_of_the_table_are_compared(visit, small):
    """The most similar pair is one that the table shows, however many lines there are."""
    page = visit(small, "#model=embedder&do=similarity")
    page.wait()
    words = ["the", "cat", "dog", "bird", "river", "tree", "who", "what", "sees", "likes", "near", "under", "runs"]
    lines = [f"{first} {second}" for first in words[:2] for second in words if first != second]
    page.run(texts="\n".join([*lines, "old", "old", "old"]))

    assert page.page.locator(".heat tbody tr").count() == len(lines) == 24
    assert max(map(int, re.findall(r"\d+(?= |,)", page.texts("#status")[0]))) <= len(lines)


def test_search_ranks_lines(visit, shipped):
    """Lines come in the order of their vectors, and a ranking model changes it when it is chosen."""
    page = visit(shipped, "#model=embed&do=search")
    page.wait()
    page.run(query="Who makes music?", documents="The train is late.\n\nA band plays songs.\nOnions are sliced.")
    assert page.texts(".bars small")[0] == "text 2"
    by_vectors = page.texts(".bars bdi")
    assert page.texts("#field-ranker option") == ["nothing", "rerank"]
    page.page.select_option("#field-ranker", "rerank")
    page.run()

    assert by_vectors[0] == "A band plays songs."
    assert sorted(page.texts(".bars bdi")) == sorted(by_vectors)
    assert all("by vectors" in note for note in page.texts(".bars small"))
    assert page.texts("#timings .hint") == ["3 requests, times added up"]


def test_weights_of_tokens(visit, small):
    """A sparse vector is shown as its tokens, the largest weight first, with bars in proportion to it."""
    page = visit(small, "#model=sparse&do=weights")
    page.wait()
    page.run(text="the cat")
    inputs = {"model": {"name": "sparse"}, "texts": ["the cat"], "return_tokens": True}
    [expected] = send(small, "POST", "/v1/embed-sparse", inputs).json()["results"]

    assert page.texts(".bars bdi") == expected["tokens"]
    assert [float(value) for value in page.texts(".bars .value")] == pytest.approx(expected["values"], abs=1e-3)
    assert page.texts("#status") == [f"{len(expected['tokens'])} tokens"]
    page.answer("embed-sparse", {"results": [{"indices": [], "values": [], "tokens": []}]})
    page.run(text="the dog")
    assert page.texts("#result") == ["No token has a weight."]
