import math
import xml.etree.ElementTree as ET

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from training.reports.plot import LOSS, MAX_POINTS, curve, legend, panels, svg

LINES = [
    {"step": 10, "epoch": 0, "mlm": 6.0, "nsp": 0.7, "loss": 6.7, "learning_rate": 1e-3, "num_tokens": 100, "mfu": 0.4},
    {
        "step": 20,
        "epoch": 0,
        "mlm": 5.0,
        "nsp": 0.6,
        "loss": 5.6,
        "learning_rate": 0.0,
        "num_tokens": 200,
        "odd_key": 3,
    },
    {"step": 20, "eval_mlm_loss": 5.1, "eval_mlm_accuracy": 0.2},
]


def test_every_number_of_the_metrics_has_a_panel():
    """Losses share a panel, dev scores another, and a key that nobody knows gets its own."""
    found = {panel.title: panel.keys for panel in panels(LINES)}

    assert found == {
        "loss (nats)": ("loss", "mlm", "nsp", "eval_mlm_loss"),
        "scores on dev": ("eval_mlm_accuracy",),
        "learning rate": ("learning_rate",),
        "model FLOP utilization": ("mfu",),
        "odd key": ("odd_key",),
    }
    assert panels([]) == []


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=400))
def test_thinned_curves_keep_range_and_ends(values):
    """However many lines there are, few points are drawn, and no peak is lost."""
    points = curve([{"step": step, "loss": value} for step, value in enumerate(values, start=1)], "loss")

    assert len(points.steps) <= MAX_POINTS
    assert points.steps[0] == 1
    assert points.steps[-1] == len(values)
    assert (np.diff(points.steps) > 0).all()
    assert points.highs.max() == max(values)
    assert points.lows.min() == min(values)
    assert (points.lows <= points.means + 1e-6).all()
    assert (points.means <= points.highs + 1e-6).all()


def test_what_is_no_number_is_left_out():
    """An infinite gradient norm leaves a gap, not a broken picture."""
    lines = [{"step": 1, "x": math.inf}, {"step": 2, "x": 1.0}, {"step": 3, "x": math.nan}, {"step": 4, "x": "?"}]

    assert curve(lines, "x").means.tolist() == [1.0]
    assert len(curve(lines, "nothing").steps) == 0


def test_drawings_are_elements_of_a_page():
    """An SVG parses, repeats no ids with another, sets no font, and takes the colour of the text."""
    drawings = [svg(LINES, panel) for panel in panels(LINES)]
    ids = [element.get("id") for text in drawings for element in ET.fromstring(text).iter() if element.get("id")]

    assert len(ids) == len(set(ids))
    assert all("currentColor" in text and "font-family" not in text for text in drawings)
    assert svg(LINES, panels(LINES)[0]) == drawings[0]


def test_each_curve_has_a_name_and_a_colour():
    """In the order in which they are drawn."""
    (panel,) = [panel for panel in panels(LINES) if panel.title == LOSS]

    assert [label for label, _ in legend(panel)] == ["loss", "masked words", "next sentence", "masked words on dev"]
    assert len({colour for _, colour in legend(panel)}) == 4
