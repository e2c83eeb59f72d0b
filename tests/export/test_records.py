"""Graph, card and report of the models in the repository can be read again."""

from pathlib import Path

import pytest

from export import card, html_report
from export.autotune.model_directory import read_graph
from export.records import precision_of
from tasks.bundle.model_directory import read_model_directory

MODELS = Path(__file__).parents[2] / "models"
SHIPPED = sorted(path.parent for path in MODELS.glob("*/*/manifest.json"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.parent.name)
def test_shipped_models_can_be_read(path):
    """Graph, card and report of each model in the repository."""
    directory = read_model_directory(path)

    network, precision = read_graph(directory)

    assert precision == precision_of(directory.manifest)
    assert precision.matmul in ("static int8", "dynamic int8", "SmoothQuant int8")
    assert set(network.ranges) == (set() if precision.matmul == "dynamic int8" else set(network.layers))
    assert f"| graph | {precision.name}," in card.render(directory.manifest, 1)
    assert f"{precision.name} (this graph)" in html_report.render(directory.manifest, 1)
