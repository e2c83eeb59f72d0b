"""Attacks of `withstands.py` for some seconds each, on a server with little memory for messages."""

import pytest

from tests.serving.models import write_model
from tests.serving.soak import soak
from tests.serving.withstands import ATTACKS, MIB, measure

BUFFER = 64 * MIB
MORE_MB = 128
"""Memory that attackers may use besides the memory for messages."""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    path = tmp_path_factory.mktemp("models")
    write_model(path, "embed", task="embedding")
    write_model(path, "tag", task="tagging", seed=6)
    return path


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_a_bystander_is_answered(models, attack):
    """Other calls are answered soon during an attack, and memory is bounded and freed afterwards."""
    row = measure(models, attack, 5.0, 15.0, flags=[f"--buffer-bytes={BUFFER}"])

    assert set(row.noticed.codes) == {"OK"}
    assert max(row.noticed.seconds) < 5
    assert row.most_mb - row.before_mb < BUFFER / MIB + MORE_MB
    assert row.after_mb < row.before_mb + 64


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_soak(models):
    """Honest calls and jobs are correct during two rounds of all attacks, and memory does not grow with them."""
    assert soak(models, 380) == []
