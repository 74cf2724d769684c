"""Each codec's values and scales against numbers that are worked out here by hand."""

import math
import struct

import numpy as np
import pytest
from numpy.typing import NDArray

from transload_abi.oracle_codecs import Rule, to_elements, to_values

F32 = NDArray[np.float32]


def floats(*numbers: float) -> F32:
    return np.array(numbers, np.float32)


def codes(*numbers: int) -> NDArray[np.uint8]:
    return np.array(numbers, np.uint8)


def pattern(value: float) -> int:
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    return int(bits)


# --- zero points

INT4 = Rule("int4_zero_point", "u4", "f32")


def test_the_lowest_bits_of_a_scale_are_the_zero_point() -> None:
    scales = np.array([pattern(0.5) | 3], np.uint32)
    values = to_values(INT4, codes(0, 3, 4, 15).reshape(1, 4), scales)
    assert values.tolist() == [[-1.5, 0.0, 0.5, 6.0]]


def test_the_zero_point_takes_no_part_in_the_scale() -> None:
    bits = 0x3DCCCCCF
    (step,) = struct.unpack("<f", struct.pack("<I", 0x3DCCCCC0))
    values = to_values(INT4, codes(15, 14).reshape(1, 2), np.array([bits], np.uint32))
    assert values.tolist() == [[0.0, float(np.float32(-1) * np.float32(step))]]


@pytest.mark.parametrize(
    ("values", "elements", "scale"),
    [
        ((-2, 13, 0, 5), (0, 15, 2, 7), pattern(1.0) | 2),
        ((0, 7.5, 0.5, 0.2), (0, 15, 1, 0), pattern(0.5)),
        # Below zero alone: the zero point would be above 15.
        ((-40, -25, -30, -25), (0, 0, 0, 0), pattern(1.0) | 15),
        # Above zero alone: it would be below 0.
        ((25, 40, 30, 25), (15, 15, 15, 15), pattern(1.0)),
        ((0, 0, 0, 0), (0, 0, 0, 0), pattern(1.0)),
        # Equal ones have no distance, and so the scale 1.
        ((-3, -3, -3, -3), (0, 0, 0, 0), pattern(1.0) | 3),
        ((math.nan, -1, 14, 0), (1, 0, 15, 1), pattern(1.0) | 1),
        # 2.5 is rounded to the even 2, and so is the 14.5 that it makes.
        ((-2.5, 12.5, 0, 1), (0, 14, 2, 3), pattern(1.0) | 2),
    ],
)
def test_a_zero_point_is_made(
    values: tuple[float, ...], elements: tuple[int, ...], scale: int
) -> None:
    found, scales = to_elements(INT4, floats(*values).reshape(1, -1))
    assert found.tolist() == [list(elements)]
    assert scales is not None
    assert scales.tolist() == [scale]


def test_a_step_loses_its_lowest_four_bits() -> None:
    found, scales = to_elements(INT4, floats(0, 1).reshape(1, 2))
    assert scales is not None
    assert scales.tolist() == [pattern(1 / 15) & ~15]
    assert found.tolist() == [[0, 15]]


def test_infinities_count_as_the_outermost_numbers() -> None:
    found, scales = to_elements(INT4, floats(-math.inf, 0, math.inf).reshape(1, 3))
    # The distance is beyond binary32, so the step is infinite and everything 0.
    assert scales is not None
    assert scales.tolist() == [0x7F800000]
    assert found.tolist() == [[0, 0, 0]]
    found, scales = to_elements(INT4, floats(0, math.inf).reshape(1, 2))
    assert scales is not None
    assert scales.tolist() == [pattern(3.4028234663852886e38 / 15) & ~15]
    assert found.tolist() == [[0, 15]]


# --- scales of groups


def test_a_scale_of_the_page_comes_before_one_of_the_layer() -> None:
    rule = Rule("block_scaled", "e4m3", "e4m3", 1)
    # 448 * 448 * 2^126 is beyond binary32 only if the layer's scale came first.
    layer = floats(2.0**-20).reshape(1, 1)
    values = to_values(rule, codes(0x7E, 0x38).reshape(1, 2), codes(0x7E).reshape(1, 1), layer)
    assert values.tolist() == [[448.0 * 448 * 2.0**-20, 448.0 * 2.0**-20]]
    third = floats(1 / 3).reshape(1, 1)
    values = to_values(rule, codes(0x3B).reshape(1, 1), codes(0x3D).reshape(1, 1), third)
    first = np.float32(1.375) * np.float32(1.625)
    assert values.tolist() == [[float(first * np.float32(1 / 3))]]


def test_each_group_has_its_own() -> None:
    rule = Rule("block_scaled", "e2m1", "ue8m0", 2)
    elements = codes(2, 7, 10, 1, 2, 7, 10, 1).reshape(1, 8)
    values = to_values(rule, elements, codes(128, 126).reshape(1, 2))
    assert values.tolist() == [[2, 12, -2, 1, 0.5, 3, -0.5, 0.25]]


@pytest.mark.parametrize(
    ("dtype", "scale_dtype", "peak", "scale"),
    [
        # 6 is the largest e2m1.
        ("e2m1", "f32", 12.0, pattern(2.0)),
        ("e2m1", "f32", 7.0, pattern(float(np.float32(7) / np.float32(6)))),
        ("e2m1", "ue8m0", 12.0, 128),
        ("e2m1", "ue8m0", 12.5, 129),
        ("e2m1", "ue8m0", 5.9, 127),
        ("e2m1", "ue8m0", 1e-45, 127),
        ("e2m1", "ue8m0", 6 * 2.0**-130, 0),
        ("e2m1", "e4m3", 12.0, 0x40),
        ("e2m1", "e4m3", 6 * 1.06, 0x38),
        ("e2m1", "e4m3", 6 * 1.07, 0x39),
        ("e2m1", "e4m3", 6 * 2.0**-20, 0x01),
        ("e2m1", "e4m3", 1e9, 0x7E),
        ("e4m3", "ue8m0", 448.0, 127),
        ("e4m3", "ue8m0", 449.0, 128),
        ("e2m1", "f32", 0.0, pattern(1.0)),
        ("e2m1", "ue8m0", 0.0, 127),
        ("e2m1", "e4m3", 0.0, 0x38),
    ],
)
def test_a_scale_is_made(dtype: str, scale_dtype: str, peak: float, scale: int) -> None:
    rule = Rule("block_scaled", dtype, scale_dtype, 1)
    _, scales = to_elements(rule, floats(0, -peak, peak / 2).reshape(1, 3))
    assert scales is not None
    assert scales.tolist() == [[scale]]


def test_peaks_are_those_of_the_layers_scale() -> None:
    rule = Rule("block_scaled", "e2m1", "e4m3", 2)
    layer = floats(0.25).reshape(1, 1)
    values = floats(3, -1.5, 0.75, 0.0625).reshape(1, 4)
    elements, scales = to_elements(rule, values, layer)
    # 3 / 0.25 / 6 = 2; 0.75 / 0.25 / 6 = 0.5.
    assert scales is not None
    assert scales.tolist() == [[0x40, 0x30]]
    assert elements.tolist() == [[7, 0xD, 7, 1]]


def test_what_is_no_number_does_not_make_a_scale() -> None:
    rule = Rule("block_scaled", "e2m1", "ue8m0", 2)
    values = floats(math.nan, 12, math.inf, 1).reshape(1, 4)
    elements, scales = to_elements(rule, values)
    # A sixth of the largest binary32 is a little above 2^125.
    assert scales is not None
    assert scales.tolist() == [[128, 253]]
    assert elements.tolist() == [[0, 7, 7, 0]]


def test_elements_are_rounded_under_the_scale_that_is_stored() -> None:
    rule = Rule("block_scaled", "e2m1", "e4m3", 1)
    # 7.2 / 6 = 1.2 is stored as 1.25, and 7.2 / 1.25 = 5.76, 2.9 / 1.25 = 2.32.
    elements, scales = to_elements(rule, floats(7.2, 2.9).reshape(1, 2))
    assert scales is not None
    assert scales.tolist() == [[0x3A]]
    assert elements.tolist() == [[7, 4]]


def test_quotients_are_taken_one_after_the_other() -> None:
    rule = Rule("block_scaled", "e4m3", "f32", 1)
    layer = floats(3.0).reshape(1, 1)
    values = floats(100, 7.3).reshape(1, 2)
    elements, scales = to_elements(rule, values, layer)
    third = np.float32(100) / np.float32(3)
    assert scales is not None
    assert scales.view(np.float32).tolist() == [[float(third / np.float32(448))]]
    assert elements[0, 0] == 0x7E


def test_nothing_has_no_scales() -> None:
    rule = Rule("block_scaled", "e2m1", "e4m3", 2)
    elements, scales = to_elements(rule, np.zeros((0, 4), np.float32))
    assert scales is not None
    assert (elements.shape, scales.shape) == ((0, 4), (0, 2))
