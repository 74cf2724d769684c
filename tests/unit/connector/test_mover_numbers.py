"""Numbers that no kernel knows: torch makes the bits that the oracle makes."""

from itertools import product

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from transload_abi.oracle_codecs import Rule
from transload_abi.oracle_codecs import to_elements as oracle_elements
from transload_abi.oracle_codecs import to_values as oracle_values
from transload_abi.oracle_numbers import Bits, bits_type
from transload_connector.transports.kernel_calls_numbers import Numbers, to_elements, to_values

SIZE = 32
"""Elements of a row."""

FLOATS = ("f32", "f16", "bf16", "e4m3", "e5m2", "e4m3fnuz", "e5m2fnuz", "e2m1")
SMALL = ("e2m1", "e4m3", "e5m2", "e4m3fnuz", "e5m2fnuz", "i8")

NUMBERS = [
    *(Numbers("none", dtype) for dtype in FLOATS),
    *(Numbers("fp8_per_tensor", dtype, outside=0.3) for dtype in FLOATS[3:7]),
    *(Numbers("per_token_head", "i8", "f32", SIZE) for _ in range(1)),
    *(
        Numbers("block_scaled", dtype, scale, 8, outside)
        for dtype, scale, outside in product(
            SMALL[:5], ("ue8m0", "e4m3", "f32"), (None, 0.7, 1e-30)
        )
    ),
    Numbers("int4_zero_point", "u4", "f32", SIZE),
]


def _rule(of: Numbers) -> Rule:
    num_groups = SIZE // of.group_elements if of.codec == "block_scaled" else 0
    return Rule(of.codec, of.dtype, of.scale_dtype, num_groups)


def _outside(of: Numbers) -> NDArray[np.float32] | None:
    return None if of.outside is None else np.array(of.outside, np.float32)


def _raw(bits: Bits, dtype: str) -> torch.Tensor:
    """Elements as they lie in memory."""
    raw: NDArray[np.uint8] = np.ascontiguousarray(bits).view(np.uint8)
    if dtype in ("e2m1", "u4"):
        raw = (raw[..., 0::2] | raw[..., 1::2] << 4).astype(np.uint8)
    return torch.from_numpy(raw.reshape(-1).copy())


def _values() -> NDArray[np.float32]:
    """Rows of every size of numbers, and of those that are none."""
    chance = np.random.default_rng(11)
    patterns = chance.integers(0, 1 << 32, (400, SIZE), np.uint64).astype(np.uint32)
    rows = [patterns.view(np.float32)]
    for exponent in (-149, -140, -133, -127, -126, -100, -9, 0, 8, 100, 127):
        scale = np.float64(2.0) ** exponent
        any_number = chance.standard_normal((40, SIZE))
        powers = chance.choice([0, 1, -1, 2, 7, 448, 6, 0.25, 2.5, 5], (40, SIZE))
        with np.errstate(over="ignore", under="ignore"):
            rows += [(each * scale).astype(np.float32) for each in (any_number, powers)]
    whole = np.concatenate(rows)
    whole[::7, 3], whole[::11, 5], whole[::13, 6] = np.nan, np.inf, -np.inf
    whole[::17] = np.abs(whole[::17])
    return whole


@pytest.mark.parametrize("of", NUMBERS, ids=lambda of: "-".join(map(str, of)))
def test_elements_and_scales_are_made_as_the_oracle_makes_them(of: Numbers) -> None:
    values = _values()
    elements, scales = oracle_elements(_rule(of), values, _outside(of))
    made, made_scales = to_elements(of, torch.from_numpy(values.reshape(-1).copy()))
    np.testing.assert_array_equal(made, _raw(elements, of.dtype))
    assert (scales is None) == (made_scales is None)
    if scales is not None and made_scales is not None:
        np.testing.assert_array_equal(made_scales, _raw(scales, of.scale_dtype))


@pytest.mark.parametrize("of", NUMBERS, ids=lambda of: "-".join(map(str, of)))
def test_values_are_those_of_the_oracle(of: Numbers) -> None:
    chance = np.random.default_rng(12)
    num_bits = 4 if of.dtype in ("e2m1", "u4") else 8 * bits_type(of.dtype).itemsize
    kind = bits_type(of.dtype)
    bits: Bits = chance.integers(0, 1 << num_bits, (300, SIZE), np.uint64).astype(kind)
    scales: Bits | None = None
    if of.scale_dtype:
        kind = bits_type(of.scale_dtype)
        shape = (300, SIZE // of.group_elements) if of.codec == "block_scaled" else (300,)
        scales = chance.integers(0, 1 << 8 * kind.itemsize, shape, np.uint64).astype(kind)
    due = oracle_values(_rule(of), bits, scales, _outside(of))
    raw_scales = None if scales is None else _raw(scales, of.scale_dtype)
    found = to_values(of, _raw(bits, of.dtype), raw_scales).numpy().reshape(due.shape)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(due))
    is_number = ~np.isnan(due)
    np.testing.assert_array_equal(found.view(np.uint32)[is_number], due.view(np.uint32)[is_number])
