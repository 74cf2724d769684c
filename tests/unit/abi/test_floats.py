"""Floats as text: literal bits both ways, and what is no such text."""

import math

import pytest

from transload_abi.errors import MalformedDescriptor
from transload_abi.floats import f32, f64, read_float

BITS = [
    ("f32:3f800000", 1.0),
    ("f32:00000000", 0.0),
    ("f32:00000001", 2.0**-149),
    ("f32:7f7fffff", (2 - 2**-23) * 2.0**127),
    ("f32:c0490fdb", -3.1415927410125732),
    ("f64:3ff0000000000000", 1.0),
    ("f64:40c3880000000000", 10000.0),
    ("f64:3fb999999999999a", 0.1),
    ("f64:7fefffffffffffff", 1.7976931348623157e308),
]


@pytest.mark.parametrize(("text", "value"), BITS)
def test_both_ways(text: str, value: float) -> None:
    assert read_float(text) == value
    assert (f32 if text.startswith("f32") else f64)(value) == text


def test_the_sign_of_zero_is_kept() -> None:
    assert f32(-0.0) == "f32:80000000"
    assert math.copysign(1, read_float("f64:8000000000000000")) == -1


@pytest.mark.parametrize("value", [0.1, 1e39, -1e39, 2.0**-150, math.inf, -math.inf, math.nan])
def test_what_binary32_does_not_hold(value: float) -> None:
    with pytest.raises(ValueError, match="is not a binary32 value"):
        f32(value)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite(value: float) -> None:
    with pytest.raises(ValueError, match="is not finite"):
        f64(value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1.0",
        "f32:",
        "f32:3F800000",
        "f32:3f80000",
        "f32:3f8000000",
        "f32: 3f80000",
        "f32:3f800000\n",
        "f64:3f800000",
        "f16:3c00",
        "F32:3f800000",
        "f32:7f800000",
        "f32:ff800000",
        "f32:7fc00000",
        "f64:7ff0000000000000",
    ],
)
def test_what_is_no_float(text: str) -> None:
    with pytest.raises(MalformedDescriptor) as caught:
        read_float(text, "somewhere")
    assert caught.value.path == "somewhere"


def test_the_error_does_not_repeat_a_long_text() -> None:
    with pytest.raises(MalformedDescriptor) as caught:
        read_float("f32:" + "0" * 500)
    assert len(str(caught.value)) < 200
