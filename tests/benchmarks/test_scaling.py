"""The benchmark of growth."""

import math

import pytest

import benchmarks.scaling.__main__ as scaling
from benchmarks.report import Part
from benchmarks.scaling.growth import exponent, plot, table
from tests.commands import call

SMALL = "--seconds 0.5 --num-models 1 3 --num-texts 1 8 --num-connections 1 20 --num-workers 1 4 --num-rows 300 600"
SMALL += " --corpus-mb 1 2 --lengths 32 64"


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.0])
def test_exponent_of_a_power_law(power):
    """The exponent is that of the law which the costs follow."""
    sizes = [1, 10, 100]

    assert exponent(sizes, [3 * size**power for size in sizes]) == pytest.approx(power)
    assert math.isnan(exponent([5], [1]))


def test_tables_name_their_exponents(tmp_path):
    """A table says how its costs grow, and is drawn if its sizes are numbers."""
    found = table("Rows", [{"rows": 10, "s": 1.0}, {"rows": 100, "s": 10.0}], ("s",), "On two cores.")
    words = table("Set-ups", [{"set-up": "one", "s": 1.0}, {"set-up": "two", "s": 2.0}], ())

    assert found.note == "Exponents: s: 1.00. On two cores."
    plot({"rows": Part([found, words])}, tmp_path / "growth.png")
    assert (tmp_path / "growth.png").stat().st_size > 5000


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_all_parts_run(tmp_path, monkeypatch, capfd):
    """Every part comes to its end with small sizes."""
    ended = call(scaling.main, [*SMALL.split(), "--out", str(tmp_path / "scaling")], monkeypatch, capfd)

    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "scaling.md").read_text("utf-8").count("\n## ") == len(scaling.PARTS)
    assert (tmp_path / "scaling.png").exists()
