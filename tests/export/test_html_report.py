"""The page of a model directory."""

from __future__ import annotations

import re
from dataclasses import asdict, replace

from export.autotune.search import Trial
from export.html_report import render


def test_what_was_tried_is_told_in_words_and_percent(exported):
    """What was chosen in the end is marked, the default told; what has no other name keeps its own."""
    manifest = exported["embedding"].manifest
    graph = manifest.provenance["graph"]
    form = graph["form"] | {"attention": "Attention"}
    trials = [
        Trial("max_batch_tokens", 128, 0.805, 1234.5, 25.0),
        Trial("max_batch_tokens", manifest.execution.max_batch_tokens, 1.0, 2000, 25.0),
        Trial("another_choice", True, 0.25, 500, 25.0),
        Trial("together", "default", 0.5, 2000, 25.0),
        Trial("together", "attention: Attention", 0.99, 3960, 25.0),
        Trial("together", "attention: Attention, bias gelu: yes", 1.0, 4000, 25.0),
    ]
    tried = graph | {"form": form, "tried": [asdict(trial) for trial in trials]}

    page = render(replace(manifest, provenance={**manifest.provenance, "graph": tried}), 2_500_000)

    rows = [re.sub(r"<.*?>|\s+", " ", row).split() for row in re.findall("<tr.*?</tr>", page, re.DOTALL)]
    assert ["tokens", "of", "a", "batch,", "at", "most"] in rows
    assert ["128", "80%,", "1,234", "tokens/s"] in rows
    assert [str(manifest.execution.max_batch_tokens), "100%,", "2,000", "tokens/s"] in rows
    assert ["attention:", "Attention", "(chosen)", "99%,", "3,960", "tokens/s"] in rows
    assert page.count("(chosen)") == 1
    assert "3,960 tokens/s on sequences of 25 tokens" in page
    assert "(max batch tokens: 256)" in page
    assert ["another", "choice"] in rows
    assert "2.5 MB" in page


def test_the_page_of_an_untuned_graph_says_so(exported):
    """And how to tune it."""
    page = (exported["embedding"].path / "report.html").read_text()

    assert "Nothing was tried" in page
    assert "python -m export tune" in page
