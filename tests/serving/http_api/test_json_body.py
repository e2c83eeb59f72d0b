"""Half of a surrogate pair in a JSON body is found where it is."""

import json
import random

import pytest

from serving.core.errors import InvalidRequestError
from serving.http_api import json_body
from serving.http_api.json_body import parse_object

PARTS = [r"\ud83d", r"\ude00", r"\uDBFF", r"\uDFFF", r"\\", r"\n", r"\u00e9", "ud83d", "a", "\u00e9", "\U0001f600"]


@pytest.mark.parametrize("seed", range(20))
def test_first_half_of_a_pair_is_found(seed, monkeypatch):
    """The place is that of the first surrogate in the text that Python's own parser, which allows them, reads."""
    monkeypatch.setattr(json_body, "PIECE_BYTES", 64)
    rng = random.Random(seed)
    for _ in range(100):
        body = f'{{"a": 1, "b": ["x", "{"".join(rng.choices(PARTS, k=30))}"]}}'
        text = json.loads(body)["b"][1]
        halves = [number for number, character in enumerate(text) if 0xD800 <= ord(character) < 0xE000]
        if not halves:
            assert parse_object(body.encode())["b"][1] == text
            continue
        with pytest.raises(InvalidRequestError) as raised:
            parse_object(body.encode())
        [found] = raised.value.violations
        assert found.field == "b[1]"
        assert found.reason.startswith(f"character {halves[0] + 1} is half of a surrogate pair")


def test_an_earlier_mistake_is_told_first():
    """A body that is no JSON before the half of a pair is told so."""
    with pytest.raises(InvalidRequestError, match="the body is not JSON: expected value at line 1 column 2"):
        parse_object(rb'[x, "\ud800"]')
