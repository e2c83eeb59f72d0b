"""JSON bodies: values and mistakes are the same, wherever the body is cut into pieces, and are counted before."""

import json
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.core.errors import InvalidRequestError
from serving.http_api import json_pieces
from serving.http_api.json_pieces import memory_of_values, parse_object


@pytest.mark.parametrize("seed", range(4))
def test_half_of_a_surrogate_pair(seed, monkeypatch):
    """Strings with halves of pairs are refused, wherever the body is cut, and others are as Python reads them."""
    monkeypatch.setattr(json_pieces, "PIECE_BYTES", 64)
    rng = random.Random(seed)
    parts = [r"\ud83d", r"\ude00", r"\uDBFF", r"\uDFFF", r"\\", r"\n", r"\u00e9", "ud83d", "a", "\u00e9", "\U0001f600"]
    for _ in range(100):
        body = f'{{"a": 1, "b": ["x", "{"".join(rng.choices(parts, k=30))}"]}}'
        text = json.loads(body)["b"][1]
        if not re.search("[\ud800-\udfff]", text):
            assert parse_object(body.encode())["b"][1] == text
            continue
        with pytest.raises(InvalidRequestError, match="half of a surrogate pair, which is no character, at line 1"):
            parse_object(body.encode())


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
    | st.sampled_from([',[{"}]\\\n' * 9, "\U0001f600" * 40, "a" * 300, "é\\" * 70]),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=9), inner, max_size=6),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=9), JSON), st.booleans(), st.sampled_from([None, 1]), st.integers(64, 200))
def test_values_of_pieces(values, in_ascii, indent, piece_bytes):
    """Values are those of Python's own parser, wherever the body is cut."""
    try:
        body = json.dumps(values, ensure_ascii=in_ascii, indent=indent).encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_pieces, "PIECE_BYTES", piece_bytes)
        try:
            found = parse_object(body)
        except InvalidRequestError as error:
            refused = "half of a surrogate|key of more than|without a text or a comma|number out of range"
            assert re.search(refused, str(error))  # noqa: PT017
            return

    assert found == values


MISTAKES = [b"{", b"}", b"[", b"]", b'"', b",", b":", b"\\", b"\xff", b"\x00", b"NaN", b"-", b"1", b"\\ud800"]


@given(
    st.lists(st.text(max_size=100), min_size=3, max_size=20),
    st.sampled_from(MISTAKES),
    st.randoms(use_true_random=False),
    st.integers(64, 200),
)
def test_mistakes_of_pieces(texts, mistake, rng, piece_bytes):
    """A body is accepted if it is accepted as a whole, and refused in one line otherwise."""
    body = bytearray(json.dumps({"texts": texts, "more": [{"a": text} for text in texts]}, ensure_ascii=True).encode())
    place = rng.randrange(len(body))
    body[place : place + rng.randrange(2)] = mistake
    outcomes = []
    for size in (len(body) + 1, piece_bytes):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(json_pieces, "PIECE_BYTES", size)
            try:
                outcomes.append(parse_object(bytes(body)))
            except InvalidRequestError as error:
                outcomes.append(None)
                assert "\n" not in str(error)  # noqa: PT017

    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"a": 1,\n "b": [1, 2,\n' + b"3,\n" * 50 + b"x]}", "expected value at line 53 column 1"),
        (b'{"a": 1, "b": "' + b"a" * 500 + b'", "c": [1, 2 3]}', "expected `,` or `]` at line 1 column 530"),
        (b'{"a": 1, "b": "' + b"a" * 500 + b'", "a": 2}', 'detected duplicate key "a"'),
        (b'{"a": "' + b"a" * 500, "EOF while parsing a string"),
        (b'{"a": [' + b"1," * 500 + b"1}", "expected `,` or `]`"),
        (b'{"' + b"a" * 500 + b'": 1}', "a key of more than"),
        (b'{"a":' + b" " * 500 + b"1}", "without a text or a comma"),
        (b'"' + b"a" * 500 + b'"', "must be a JSON object"),
        (b'"' + b"a" * 500 + b'"{"a": 1}', "must be a JSON object"),
        (b'{"a": [' + b" " * 60 + b" , 1" + b" " * 90 + b"]}", "expected value at line 1 column 69"),
        (b'{"a": "a' + b"\x80" * 500 + b'"}', "invalid unicode code point"),
    ],
)
def test_messages_of_pieces(body, message, monkeypatch):
    """Errors are those of the whole body, and their places too."""
    monkeypatch.setattr(json_pieces, "PIECE_BYTES", 100)

    with pytest.raises(InvalidRequestError, match=re.escape(message)):
        parse_object(body)


@given(JSON, st.integers(64, 200))
def test_count_of_values(values, piece_bytes):
    """Strings, objects and lists are counted exactly."""
    body = json.dumps(values, ensure_ascii=False).encode(errors="replace")
    count = 0
    rest = [json.loads(body)]
    while rest:
        value = rest.pop()
        count += isinstance(value, str | list | dict)
        if isinstance(value, dict):
            count += len(value)
            rest += value.values()
        elif isinstance(value, list):
            rest += value
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_pieces, "PIECE_BYTES", piece_bytes)
        memory_of_values(body, count, lambda: None)
        if count:
            with pytest.raises(InvalidRequestError, match=f"more than {count - 1} texts, objects and lists"):
                memory_of_values(body, count - 1, lambda: None)
