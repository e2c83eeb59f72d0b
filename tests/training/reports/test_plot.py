import json
import math
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.text import Text

from training.reports import plot
from training.reports.plot import DEV_SCORES, LOSS, MAX_POINTS, Ticks, curve, curve_name, legend, panels, svg

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


@given(st.integers(-10_000, 10_000), st.integers(1, 9), st.integers(-9, 9), st.sampled_from([1, 100]))
def test_no_two_ticks_read_the_same(first, digit, exponent, factor):
    """Tick labels differ from each other and equal their values."""
    step = float(f"{digit}e{exponent}")
    values = [(first + count) * step for count in range(5)]

    labels = Ticks(factor).format_ticks(values)

    assert len(set(labels)) == 5
    sizes = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
    numbers = [float(label.rstrip("kMGTP")) * sizes.get(label[-1], 1) for label in labels]
    np.testing.assert_allclose(numbers, factor * np.array(values), rtol=1e-6, atol=1e-6 * factor * step)


def test_ticks_are_short():
    """The labels of an axis have one unit and only the decimals needed."""
    assert Ticks().format_ticks([0, 500, 1000, 1500]) == ["0", "0.5k", "1.0k", "1.5k"]
    assert Ticks().format_ticks([1.386, 1.3862]) == ["1.3860", "1.3862"]
    assert Ticks().format_ticks([0, 8e-5, 1.6e-4]) == ["0", "0.8e-4", "1.6e-4"]
    assert Ticks(100).format_ticks([0, 0.25, 0.5]) == ["0", "25", "50"]


def test_fractions_are_drawn_in_percent():
    """The axes show fractions in percent, but not losses and rates."""
    lines = [{"step": 1, "eval_accuracy": 0.1, "mfu": 0.1, "loss": 0.1}]
    lines += [{"step": 2, "eval_accuracy": 0.9, "mfu": 0.9, "loss": 0.9}]
    ticks = [[float(tick) for tick in re.findall(r">([\d.]+)</text>", svg(lines, panel))] for panel in panels(lines)]

    assert [panel.title for panel in panels(lines)] == ["loss", DEV_SCORES, "model FLOP utilization, percent"]
    assert [max(found) > 50 for found in ticks] == [False, True, True]


def test_drawings_are_elements_of_a_page():
    """An SVG parses, has unique ids, sets no font, and takes the text's colour."""
    drawings = [svg(LINES, panel) for panel in panels(LINES)]
    ids = [element.get("id") for text in drawings for element in ET.fromstring(text).iter() if element.get("id")]

    assert len(ids) == len(set(ids))
    assert all("currentColor" in text and "font-family" not in text for text in drawings)
    assert svg(LINES, panels(LINES)[0]) == drawings[0]


def test_each_curve_has_a_name_and_a_colour():
    """The legend names the curves in drawing order, each with its own colour."""
    (panel,) = [panel for panel in panels(LINES) if panel.title == LOSS]

    assert [label for label, _ in legend(panel)] == ["loss", "masked words", "next sentence", "masked words on dev"]
    assert len({colour for _, colour in legend(panel)}) == 4


def test_the_unit_of_a_score_stays_in_its_name():
    """The curve's name ends with the unit of the score."""
    assert curve_name("eval_has_answer_f1 (characters)") == "F1, answerable (characters)"
    assert curve_name("exact_match (characters)") == "exact match (characters)"


def test_errors_have_a_panel_of_their_own():
    """Errors have their own panels, because their unit is that of the labels."""
    found = panels([{"step": 1, "loss": 1.0, "eval_pearson": 0.5, "eval_mean_absolute_error": 7.0}])

    assert [panel.keys for panel in found] == [("loss",), ("eval_pearson",), ("eval_mean_absolute_error",)]
    assert not found[2].in_percent
    assert legend(found[2])[0][0] == "mean absolute error on dev"


@pytest.mark.parametrize("is_installed", [True, False])
def test_labels_in_other_scripts_can_be_told_apart(is_installed, tmp_path, monkeypatch, capsys, recwarn):
    """Labels of any script are drawn with fonts of the system; without one, as codes, with a note."""
    if not is_installed:
        monkeypatch.setattr(plot, "findSystemFonts", list)
    lines = [{"step": step, "eval_f1_好评": 0.1 * step, "eval_f1_差评": 0.2, "eval_f1_ok": 0.3} for step in (1, 2)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    drawn = []
    monkeypatch.setattr(plot, "atomic_write", lambda path, data: drawn.extend(texts))
    set_fonts, texts = plot.set_fonts, []

    def noted(figure):
        missing = set_fonts(figure)
        texts.extend(text.get_text() for text in figure.findobj(Text))
        return missing

    monkeypatch.setattr(plot, "set_fonts", noted)
    plot.plot_run(tmp_path)

    note, has_codes = capsys.readouterr().out, any(r"\u" in text for text in drawn)
    assert len({text for text in drawn if text.startswith("F1 of")}) == 3
    assert has_codes == ("has codes for characters that no installed font has" in note)
    assert has_codes or is_installed
    assert not any("Glyph" in str(warning.message) for warning in recwarn)
