"""The benchmark of growth."""

import math
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

import benchmarks.scaling.__main__ as scaling
from benchmarks.report import Part
from benchmarks.scaling import data, server
from benchmarks.scaling.growth import exponent, plot, table
from benchmarks.scaling.settings import ScalingSettings
from bertline.testing import FakeServer
from tests.commands import call
from tests.serving.models import write_model

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


@pytest.mark.parametrize("length", [4, 300, 512])
def test_rates_count_the_tokens_of_a_step(length, monkeypatch):
    """Tokens/s are those of whole sequences, also of a length that does not divide the tokens of a step."""

    class Step(SimpleNamespace):
        def __init__(self, work, shape, batch_size, length):
            super().__init__(receive=lambda: 2.0, close=lambda: None, num_tokens=batch_size * length)
            steps.append(self)

    steps = []
    monkeypatch.setattr(data, "Worker", Step)

    assert data._step((1, 8, 2), length)["tokens/s"] == steps[0].num_tokens / 2 == 4096 // length * length / 2


def test_rows_of_connections_have_as_many(monkeypatch):
    """Each row has its number of open connections, in whatever order they are asked for."""
    opened = []

    def connect(address):
        opened.append(address)
        return create_connection(address)

    @contextmanager
    def fake(models):
        with FakeServer() as found:
            yield Running(found.target)

    class Running(SimpleNamespace):
        def __init__(self, target):
            super().__init__(target=target)

        @property
        def resident_mb(self):
            return 1 + len(opened)

    create_connection = server.socket.create_connection
    monkeypatch.setattr(server.socket, "create_connection", connect)
    monkeypatch.setattr(server, "_server", fake)
    monkeypatch.setattr(server, "REPEATS", 1)
    (found,) = server.connections(ScalingSettings(num_connections=(20, 1, 5)))

    assert [(row["connections"], row["memory, MB"]) for row in found.rows] == [(1, 1), (5, 5), (20, 20)]


@pytest.mark.parametrize("part", [server.models, server.texts, server.connections, server.process])
@pytest.mark.parametrize("folder", ["nosuch", "empty", "models", "models/labels"])
def test_models_are_the_folder_of_an_embedding_model(part, folder, tmp_path, monkeypatch):
    """A missing or empty folder, a folder of several models, and a model of another task are refused by name."""
    (tmp_path / "empty").mkdir()
    write_model(tmp_path / "models")
    write_model(tmp_path / "models", "labels", task="classification")
    monkeypatch.setattr(server, "tiny_model", lambda folder: folder)

    with pytest.raises(ValueError, match=f"`{tmp_path / folder}` is not the folder of an embedding model"):
        next(part(ScalingSettings(models=tmp_path / folder)))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_all_parts_run(tmp_path, monkeypatch, capfd):
    """Every part comes to its end with small sizes."""
    ended = call(scaling.main, [*SMALL.split(), "--out", str(tmp_path / "scaling")], monkeypatch, capfd)

    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "scaling.md").read_text("utf-8").count("\n## ") == len(scaling.PARTS)
    assert (tmp_path / "scaling.png").exists()
