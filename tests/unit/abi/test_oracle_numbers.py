"""Elements and their values against what torch recorded, and at the ends of every type."""

import json
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from transload_abi.dtypes import DTYPES
from transload_abi.oracle_numbers import bits_type, decode, encode, largest

RECORDED: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "vectors" / "numbers.json").read_text()
)
SMALL = ("e4m3", "e5m2", "e4m3fnuz", "e5m2fnuz", "bf16", "f16")


def hex_of(value: float) -> str:
    return "nan" if math.isnan(value) else struct.pack(">f", value).hex()


def values_of(*numbers: float) -> NDArray[np.float32]:
    return np.array(numbers, np.float32)


@pytest.mark.parametrize("dtype", [*SMALL, "e2m1", "ue8m0"])
def test_patterns_are_worth_what_torch_says(dtype: str) -> None:
    step = RECORDED["step"].get(dtype, 1)
    bits = np.arange(0, 2 ** DTYPES[dtype].bits, step, dtype=bits_type(dtype))
    assert [hex_of(value) for value in decode(bits, dtype)] == RECORDED["decode"][dtype]


@pytest.mark.parametrize("dtype", SMALL)
def test_values_are_rounded_as_torch_does(dtype: str) -> None:
    texts, due = zip(*RECORDED["encode"][dtype], strict=True)
    values = np.frombuffer(bytes.fromhex("".join(texts)), ">f4").astype(np.float32)
    assert encode(values, dtype).tolist() == list(due)


@pytest.mark.parametrize("dtype", [*SMALL, "f32", "e2m1", "ue8m0", "i8", "u4", "u8"])
def test_a_pattern_that_is_a_number_comes_back_as_itself(dtype: str) -> None:
    bits = np.arange(2 ** min(DTYPES[dtype].bits, 16), dtype=bits_type(dtype))
    bits = bits * np.array(65537 if dtype == "f32" else 1, bits.dtype)
    values = decode(bits, dtype)
    is_number = ~np.isnan(values)
    is_number &= np.isfinite(values) | (DTYPES[dtype].bits > 8)
    assert np.array_equal(encode(values, dtype)[is_number], bits[is_number])


@pytest.mark.parametrize(
    ("dtype", "value", "bits"),
    [
        ("e4m3", 449.0, 0x7E),
        ("e4m3", 1e30, 0x7E),
        ("e4m3", -math.inf, 0xFE),
        ("e4m3", math.nan, 0x7F),
        ("e4m3", -1e-9, 0x80),
        ("e5m2", 60000.0, 0x7B),
        ("e5m2", math.inf, 0x7B),
        ("e5m2", math.nan, 0x7F),
        ("e4m3fnuz", 1000.0, 0x7F),
        ("e4m3fnuz", -1e-9, 0x00),
        ("e4m3fnuz", -0.0, 0x00),
        ("e4m3fnuz", math.nan, 0x80),
        ("e5m2fnuz", -1e9, 0xFF),
        ("e5m2fnuz", math.nan, 0x80),
        ("bf16", 3.4e38, 0x7F80),
        ("bf16", -math.inf, 0xFF80),
        ("bf16", math.nan, 0x7FC0),
        ("f16", 65520.0, 0x7C00),
        ("f16", math.nan, 0x7E00),
        ("f32", math.nan, 0x7FC00000),
        ("i8", 2.5, 0x02),
        ("i8", 3.5, 0x04),
        ("i8", -1e9, 0x80),
        ("i8", math.nan, 0x00),
        ("e2m1", math.inf, 0x7),
        ("e2m1", -7.0, 0xF),
        ("e2m1", math.nan, 0x0),
        ("e2m1", -math.nan, 0x0),
        ("e2m1", -0.0, 0x8),
        ("e2m1", 0.25, 0x0),
        ("e2m1", 0.75, 0x2),
        ("e2m1", 1.25, 0x2),
        ("e2m1", 2.5, 0x4),
        ("e2m1", -5.0, 0xE),
        ("e2m1", 5.1, 0x7),
        ("u4", 16.0, 0xF),
        ("u4", -1.0, 0x0),
        ("u4", 7.5, 0x8),
        ("u8", 256.0, 0xFF),
        ("u8", -1.0, 0x00),
    ],
)
def test_what_lies_outside_is_clamped_and_nan_stays(dtype: str, value: float, bits: int) -> None:
    assert encode(values_of(value), dtype).tolist() == [bits]


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [("e4m3", 0x7F), ("e5m2", 0x7F), ("bf16", 0x7FC0), ("f16", 0x7E00), ("f32", 0x7FC00000)],
)
def test_a_nan_of_any_kind_is_written_as_one(dtype: str, bits: int) -> None:
    patterns = np.array([0xFFFFFFFF, 0x7F800001, 0xFFC12345], np.uint32)
    assert encode(patterns.view(np.float32), dtype).tolist() == [bits] * 3


@pytest.mark.parametrize(
    ("value", "bits"),
    [
        (1.0, 127),
        (2.0**-127, 0),
        (2.0**127, 254),
        (1.0000001, 128),
        (3.0, 129),
        (2.0**-149, 0),
        (1.5 * 2.0**-127, 1),
        (3.0e38, 254),
        (math.inf, 254),
        (math.nan, 255),
    ],
)
def test_a_power_of_two_is_not_below_what_it_stands_for(value: float, bits: int) -> None:
    assert encode(values_of(value), "ue8m0").tolist() == [bits]


def test_the_largest_of_each_dtype() -> None:
    due = {"f32": 3.4028234663852886e38, "f16": 65504, "e4m3": 448, "e5m2": 57344, "i8": 127}
    due |= {"bf16": 3.3895313892515355e38, "e4m3fnuz": 240, "e5m2fnuz": 57344, "e2m1": 6}
    assert {dtype: float(largest(dtype)) for dtype in due} == due
