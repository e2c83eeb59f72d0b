"""HTML report of a model directory."""

from __future__ import annotations

import re
from dataclasses import asdict, replace

import pytest

from export.autotune.search import Trial
from export.html_report import render
from tasks.bundle.manifest import Execution
from tasks.bundle.providers import CPU, OPENVINO


def test_trials_are_listed_with_ratio_and_speed(exported):
    """The chosen configuration is marked and the default described; unknown fields keep their names."""
    manifest = exported["embedding"].manifest
    graph = manifest.provenance["graph"]
    variant = graph["variant"] | {"attention": "Attention"}
    trials = [
        Trial("max_batch_tokens", 128, 0.805, 1234.5, 25.0),
        Trial("max_batch_tokens", manifest.execution.max_batch_tokens, 1.0, 2000, 25.0),
        Trial("another_choice", True, 0.25, 500, 25.0),
        Trial("finalists", "default", 0.5, 2000, 25.0),
        Trial("finalists", "attention: Attention", 0.99, 3960, 25.0),
        Trial("finalists", "attention: Attention, bias gelu: yes", 1.0, 4000, 25.0),
    ]
    tuned = graph | {"variant": variant, "trials": [asdict(trial) for trial in trials]}

    page = render(replace(manifest, provenance={**manifest.provenance, "graph": tuned}), 2_500_000)

    rows = [re.sub(r"<.*?>|\s+", " ", row).split() for row in re.findall("<tr.*?</tr>", page, re.DOTALL)]
    assert ["max_batch_tokens", "speed"] in rows
    assert ["128", "80%,", "1,234", "tokens/s"] in rows
    assert [str(manifest.execution.max_batch_tokens), "100%,", "2,000", "tokens/s"] in rows
    assert ["attention:", "Attention", "(chosen)", "99%,", "3,960", "tokens/s"] in rows
    assert page.count("(chosen)") == 1
    assert "3,960 tokens/s on sequences of 25 tokens" in page
    assert "(max batch tokens: 256)" in page
    assert ["another", "choice", "speed"] in rows
    assert "2.5 MB" in page


@pytest.mark.parametrize(("provider", "digest"), [(CPU, "of ONNX Runtime"), (OPENVINO, "of OpenVINO")])
def test_digest_is_that_of_the_graph_that_runs(provider, digest, exported):
    """Size, quality and digest on the page are of the same graph, also where a directory has two."""
    manifest = exported["embedding"].manifest
    files = manifest.files | {"model.onnx": "of ONNX Runtime", "model.openvino.onnx": "of OpenVINO"}
    execution = Execution(provider=provider)

    page = render(replace(manifest, files=files, execution=execution), 2_500_000)

    assert [digest] == [item for item in ("of ONNX Runtime", "of OpenVINO") if item in page]


def test_report_of_an_untuned_graph(exported):
    """The report of an untuned graph shows the command that tunes it."""
    page = (exported["embedding"].path / "report.html").read_text()

    assert "Not tuned" in page
    assert "python -m export tune" in page
