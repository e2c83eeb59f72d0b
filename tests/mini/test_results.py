"""Cells of the tables of results."""

import pytest

from mini.cells import percent
from mini.results import seed_cells, target_rows


def grid(mean, deviation, *, unpretrained=0.10):
    """Make the record of a grid with one setting and one run."""

    def row(name, value):
        return {
            "mean": value,
            "standard_deviation": deviation,
            "num_seeds": 1,
            "runs": [{"name": name, "score": value}],
        }

    return {
        "settings": [row("seed0", mean)],
        "best": {"name": "seed0"},
        "unpretrained": row("scratch-seed0", unpretrained),
    }


@pytest.mark.parametrize(
    ("mean", "deviation", "unpretrained", "cells"),
    [
        (0.14, 0.02, 0.10, ["10.0 ± 2.0 (1)", "14.0 ± 2.0 (1)"]),
        (0.14, None, 0.10, ["10.0 (1)", "14.0 (1)"]),
        (0.14, None, None, ["none of 1 ended", "14.0 (1)"]),
    ],
)
def test_cells_of_seeds(mean, deviation, unpretrained, cells):
    """One seed has no deviation, and runs that all failed have no mean."""
    assert seed_cells(grid(mean, deviation, unpretrained=unpretrained)) == cells


@pytest.mark.parametrize(
    ("fp32", "int8", "reached"), [(0.83, 0.835, "both"), (0.815, 0.84, "two cores"), (0.84, 0.80, "**neither**")]
)
def test_target_needs_pytorch_and_served_scores(fp32, int8, reached):
    """A target is reached if the lower of the two scores reaches it."""
    scores = {"baseline": 0.812, "PyTorch": fp32, "served int8": int8}
    ways = {name: {"scores": {"f1_1": score}} for name, score in scores.items()}

    _, row = target_rows({"mrpc": {"ways": {"dev": ways}}})

    assert row[-1] == reached
    assert percent(fp32) in row
