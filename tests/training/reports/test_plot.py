import math
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.reports import plot
from training.reports.plot import DEV_SCORES, MAX_POINTS, curve, curve_name, legend, panels, svg

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
    """Losses form one panel, dev scores another, and an unknown key gets its own."""
    found = {panel.title: panel.keys for panel in panels(LINES)}

    assert found == {
        "loss": ("loss", "mlm", "nsp", "eval_mlm_loss"),
        "scores on dev, percent": ("eval_mlm_accuracy",),
        "learning rate": ("learning_rate",),
        "model FLOP utilization, percent": ("mfu",),
        "odd key": ("odd_key",),
    }
    labels = [label for panel in panels(LINES)[:1] for label, _ in legend(panel)]
    assert labels == ["loss", "masked words", "next sentence", "masked words on dev"]
    assert curve_name("eval_has_answer_f1 (characters)") == "F1, answerable (characters)"
    assert panels([]) == []


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=400))
def test_thinned_curves_keep_range_and_ends(values):
    """A thinned curve has at most MAX_POINTS points and keeps its ends and peaks."""
    points = curve([{"step": step, "loss": value} for step, value in enumerate(values, start=1)], "loss")

    assert len(points.steps) <= MAX_POINTS
    assert points.steps[0] == 1
    assert points.steps[-1] == len(values)
    assert (np.diff(points.steps) > 0).all()
    assert points.highs.max() == max(values)
    assert points.lows.min() == min(values)
    assert (points.lows <= points.means + 1e-6).all()
    assert (points.means <= points.highs + 1e-6).all()


def test_values_that_are_no_finite_numbers_are_left_out():
    """A curve leaves out infinite values, NaN and text."""
    lines = [{"step": 1, "x": math.inf}, {"step": 2, "x": 1.0}, {"step": 3, "x": math.nan}, {"step": 4, "x": "?"}]

    assert curve(lines, "x").means.tolist() == [1.0]
    assert len(curve(lines, "nothing").steps) == 0


def test_ticks_of_axes():
    """Fractions are in percent, but not losses and rates; large numbers have a unit, small differences all decimals."""
    lines = [{"step": 1, "eval_accuracy": 0.1, "mfu": 0.1, "loss": 0.1}]
    lines += [{"step": 2, "eval_accuracy": 0.9, "mfu": 0.9, "loss": 0.9}]
    ticks = [[float(tick) for tick in re.findall(r">([\d.]+)</text>", svg(lines, panel))] for panel in panels(lines)]

    assert [panel.title for panel in panels(lines)] == ["loss", DEV_SCORES, "model FLOP utilization, percent"]
    assert [max(found) > 50 for found in ticks] == [False, True, True]
    lines = [{"step": step, "loss": 1.386 + step / 1e7, "tokens_per_s": 30 * step} for step in (0, 1000, 2000)]
    loss, rate = ({*re.findall(">([^<]+)</text>", svg(lines, panel))} for panel in panels(lines))
    assert loss >= {"0", "1k", "2k", "1.38600", "1.38620"}
    assert rate >= {"30k", "60k"}


def test_drawings_are_elements_of_a_page():
    """An SVG parses, has unique ids, sets no font, and takes the text's colour."""
    drawings = [svg(LINES, panel) for panel in panels(LINES)]
    ids = [element.get("id") for text in drawings for element in ET.fromstring(text).iter() if element.get("id")]

    assert len(ids) == len(set(ids))
    assert all("currentColor" in text and "font-family" not in text for text in drawings)
    assert svg(LINES, panels(LINES)[0]) == drawings[0]


def test_errors_have_a_panel_of_their_own():
    """Errors have their own panels, because their unit is that of the labels."""
    found = panels([{"step": 1, "loss": 1.0, "eval_pearson": 0.5, "eval_mean_absolute_error": 7.0}])

    assert [panel.keys for panel in found] == [("loss",), ("eval_pearson",), ("eval_mean_absolute_error",)]
    assert not found[2].in_percent
    assert legend(found[2])[0][0] == "mean absolute error on dev"


@pytest.mark.parametrize("is_installed", [True, False])
def test_labels_in_other_scripts_can_be_told_apart(is_installed, monkeypatch, recwarn):
    """Labels of any script are drawn with a font of the system that has their characters; without one, as codes."""
    characters = plot._characters
    monkeypatch.setattr(plot, "_system_fonts", lambda: ["/other.ttf"])
    monkeypatch.setattr(
        plot,
        "_characters",
        lambda path: {*"F1 of好评"} if (path, is_installed) == ("/other.ttf", True) else characters(path),
    )
    figure, axes = plot.plt.subplots()
    axes.set_xlabel("F1 of 好评")

    plot.set_fonts(figure)
    plot.plt.close(figure)

    expected = ("F1 of 好评", "/other.ttf") if is_installed else (r"F1 of \u597d\u8bc4", None)
    assert (axes.xaxis.label.get_text(), axes.xaxis.label.get_fontproperties().get_file()) == expected
