from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from zoo.parsing.fields import accepted, choices, kind, limits


class Sample(BaseModel):
    text: str | dict[str, Any] | None = None
    number: float | None = Field(None, gt=0)
    share: float = Field(0.2, ge=0, lt=1)
    count: int = Field(1, ge=1)
    below: float = Field(0.0, le=0.5)
    choice: Literal["a", "b"] | None = None
    switch: bool = False
    many: tuple[str, ...] | None = None
    mapping: dict[str, Any] = {}


FIELDS = Sample.model_fields


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("text", str),
        ("number", float),
        ("count", int),
        ("choice", str),
        ("switch", bool),
        ("many", tuple),
        ("mapping", dict),
    ],
)
def test_kind(name, expected):
    assert kind(FIELDS[name]) is expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("number", "x > 0"),
        ("share", "0 <= x < 1"),
        ("count", "x >= 1"),
        ("below", "x <= 0.5"),
        ("text", ""),
    ],
)
def test_limits(name, expected):
    assert limits(FIELDS[name]) == expected


def test_choices():
    assert choices(FIELDS["choice"]) == ("a", "b")
    assert choices(FIELDS["text"]) == ()
    assert accepted(FIELDS["choice"]) == "a|b"
    assert accepted(FIELDS["number"]) == "float"
