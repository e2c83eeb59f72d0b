"""Tables of results."""

import pytest

from recipes.mini.tables import seed_cells


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
