"""JSON values are checked against the types and bounds of dataclass fields."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
from pydantic import with_config
from typing_extensions import TypedDict

from tasks.schema import Bounds, check_bounds, check_known_fields, read_fields, read_value
from tasks.text.json_files import as_json


@with_config(strict=True)
class Machine(TypedDict):
    cpu: str
    cores: int


@dataclass(frozen=True)
class Inner:
    name: str = "a"
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Record:
    kind: ClassVar[Literal["a"]] = "a"
    count: Annotated[int, Bounds(least=1, most=9)]
    rate: float = 0.5
    rates: tuple[Annotated[float, Bounds(above=0)], ...] = ()
    limit: Annotated[int, Bounds(below=5)] | None = None
    inner: Inner = field(default_factory=Inner)


VALUES = [
    (bool, True, 1, "true or false"),
    (int, 3, True, "a whole number"),
    (float, 0.5, float("nan"), "a finite number"),
    (str, "", None, "a string"),
    (Path, "a/b", 5, "a string"),
    (Literal["a", "b"], "b", "c", "'a' or 'b'"),
    (tuple[str, ...], ["a"], "a", "a list"),
    (dict[str, Any], {"a": 1}, [], "an object"),
    (int | None, None, "a", "a whole number"),
    (Inner, {"unknown": 1}, "a", "an object"),
]


@pytest.mark.parametrize(("hint", "right", "wrong", "words"), VALUES)
def test_values_of_each_type(hint, right, wrong, words):
    """A value of the type is accepted; another one is refused with the expected type."""
    read_value(right, hint, "a.b")
    with pytest.raises(ValueError, match=r"`a\.b` must be ") as caught:
        read_value(wrong, hint, "a.b")
    assert str(caught.value) == f"`a.b` must be {words}: `{as_json(wrong)}`"


@pytest.mark.parametrize(
    ("hint", "value", "message"),
    [
        (list[int], [1, True], "`a[1]` must be a whole number: `true`"),
        (Mapping[str, str], {"a": 1}, "`a.a` must be a string: `1`"),
        (Machine, {"cpu": "x", "cores": "2", "gpu": "y"}, '`a.cores` must be a whole number: `"2"`'),
        (Machine, {"cpu": "x"}, '`a.cores` must be present: `{"cpu": "x"}`'),
    ],
)
def test_parts_of_values(hint, value, message):
    """An error in a list or an object names its part."""
    with pytest.raises(ValueError, match="`a") as caught:
        read_value(value, hint, "a")
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"count": 1, "cout": 2}, r"unknown key `x\.cout` \(known: count, rate, rates, limit, inner\)"),
        ({"rate": 1}, r"missing key `x\.count`"),
        ({"count": "1"}, r'`x\.count` must be a whole number: `"1"`'),
        ({"count": 1, "inner": {"sizes": ["a"]}}, r'`x\.inner\.sizes\[0\]` must be a whole number: `"a"`'),
    ],
)
def test_wrong_objects(values, message):
    """Errors give the path of the wrong key."""
    with pytest.raises(ValueError, match=message):
        read_fields(Record, values, prefix="x.")


def test_values_are_converted():
    """Lists become tuples, and whole numbers become floats in float fields."""
    found = read_fields(Record, {"count": 1, "rate": 2, "rates": [1, 2.5]})

    assert found == {"count": 1, "rate": 2.0, "rates": (1.0, 2.5)}
    assert [type(value) for value in (found["rate"], *found["rates"])] == [float] * 3


def test_unknown_and_missing_fields_of_other_versions():
    """`check_known_fields` ignores unknown and missing fields and checks the types of the others."""
    check_known_fields(Record, {"kind": 5, "unknown": 1, "rate": 1})
    with pytest.raises(ValueError, match=r"`x\.inner\.name` must be a string: `1`"):
        check_known_fields(Record, {"inner": {"name": 1}}, prefix="x.")


def test_optional_fields():
    """Fields with a default may be missing, unless `optional` lists other fields."""
    assert read_fields(Record, {"count": 1}) == {"count": 1}
    with pytest.raises(ValueError, match="missing key `rate`"):
        read_fields(Record, {"count": 1}, optional=("rates", "limit", "inner"))


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (Record(0), "count must be at least 1: `0`"),
        (Record(1, rate=float("inf")), "rate must be a finite number: `inf`"),
        (Record(1, rates=(0.5, 0.0)), "rates must be above 0: `0.0`"),
        (Record(1, limit=5), "limit must be below 5: `5`"),
    ],
)
def test_numbers_out_of_bounds(record, message):
    """Errors give the first number out of bounds, with the caller's name for the field."""
    check_bounds(Record(9, rates=(0.1,), limit=None))
    with pytest.raises(ValueError, match=f"^--{message}"):
        check_bounds(record, named="--{}".format)
