"""Elements to binary32 and back, with numpy and slowly enough to be plain.

Every conversion that anything else makes is compared with these.
"""

from functools import cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from transload_abi.dtypes import DTYPES

Bits = NDArray[np.unsignedinteger]
Values = NDArray[np.float32]


class _Float8(NamedTuple):
    """An 8-bit float: its widths, bias, and which of its patterns are no numbers."""

    mantissa_bits: int
    bias: int
    infinities: tuple[int, ...]
    nans: tuple[int, ...]


_FLOAT8: Final = {
    "e4m3": _Float8(3, 7, (), (0x7F, 0xFF)),
    "e5m2": _Float8(2, 15, (0x7C, 0xFC), (0x7F, 0x7E, 0x7D, 0xFD, 0xFE, 0xFF)),
    "e4m3fnuz": _Float8(3, 8, (), (0x80,)),
    "e5m2fnuz": _Float8(2, 16, (), (0x80,)),
}


def bits_type(dtype: str) -> np.dtype[np.unsignedinteger]:
    """The little-endian unsigned integer that holds an element of a dtype."""
    return np.dtype(f"<u{DTYPES[dtype].bits // 8}")


def decode(bits: Bits, dtype: str) -> Values:
    """The value of each element.

    Args:
        bits: Of any shape, of `bits_type(dtype)`.
        dtype: A name of `dtypes.DTYPES`.

    Returns:
        The same shape; exact.
    """
    if dtype in _FLOAT8:
        return _table(dtype)[bits]
    if dtype == "bf16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    if dtype == "f16":
        return bits.view(np.float16).astype(np.float32)
    if dtype == "f32":
        return bits.view(np.float32).copy()
    return bits.view(np.int8).astype(np.float32)


def encode(values: Values, dtype: str) -> Bits:
    """The nearest element to each value, ties to even.

    Too large for an 8-bit type: its outermost finite element of that sign; for `f16` and `bf16`:
    infinity. NaN: the type's positive quiet NaN, or 0 for `i8`.

    Args:
        values: Binary32, of any shape.
        dtype: A name of `dtypes.DTYPES`.

    Returns:
        The same shape, of `bits_type(dtype)`.
    """
    values = np.ascontiguousarray(values, np.float32)
    if dtype in _FLOAT8:
        return _encode_float8(values, dtype)
    if dtype == "bf16":
        return _encode_bf16(values)
    if dtype == "f16":
        with np.errstate(over="ignore", under="ignore"):
            bits = values.astype(np.float16).view(np.uint16)
        return np.where(np.isnan(values), np.uint16(0x7E00), bits)
    if dtype == "f32":
        return np.where(np.isnan(values), np.uint32(0x7FC00000), values.view(np.uint32))
    return _encode_i8(values)


def largest(dtype: str) -> np.float32:
    """The largest finite value of a dtype."""
    if dtype in _FLOAT8:
        return np.float32(_positive(dtype)[-1])
    patterns = {"i8": 0x7F, "f32": 0x7F7FFFFF, "f16": 0x7BFF, "bf16": 0x7F7F}
    return np.float32(decode(np.array([patterns[dtype]], bits_type(dtype)), dtype)[0])


def _encode_i8(values: Values) -> Bits:
    near = np.rint(np.where(np.isnan(values), np.float32(0), values))
    return np.clip(near, -128, 127).astype(np.int8).view(np.uint8)


def _encode_bf16(values: Values) -> Bits:
    bits = values.view(np.uint32).astype(np.uint64)
    odd = (bits >> 16) & 1
    near = ((bits + 0x7FFF + odd) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), near)


def _encode_float8(values: Values, dtype: str) -> Bits:
    rule = _FLOAT8[dtype]
    # Codes of one sign ascend with their values, so an even code is an even mantissa.
    steps = _positive(dtype).astype(np.float64)
    size = np.abs(np.where(np.isnan(values), 0, values).astype(np.float64))
    above = np.searchsorted(steps, size).clip(1, len(steps) - 1)
    middle = (steps[above - 1] + steps[above]) / 2
    is_up = (size > middle) | ((size == middle) & (above % 2 == 0))
    code = np.where(is_up, above, above - 1).astype(np.uint8)
    has_minus_zero = 0x80 not in rule.nans
    is_minus = np.signbit(values) & ((code > 0) | has_minus_zero)
    code = np.where(is_minus, code | 0x80, code).astype(np.uint8)
    return np.where(np.isnan(values), np.uint8(rule.nans[0]), code)


@cache
def _table(dtype: str) -> Values:
    """The value of each of the 256 patterns."""
    rule = _FLOAT8[dtype]
    values = np.empty(256, np.float32)
    for code in range(256):
        sign = -1.0 if code & 0x80 else 1.0
        exponent = (code & 0x7F) >> rule.mantissa_bits
        mantissa = code & ((1 << rule.mantissa_bits) - 1)
        if code in rule.nans:
            values[code] = np.nan
        elif code in rule.infinities:
            values[code] = sign * np.inf
        else:
            hidden = 1 << rule.mantissa_bits if exponent else 0
            power = max(exponent, 1) - rule.bias - rule.mantissa_bits
            values[code] = sign * (hidden + mantissa) * 2.0**power
    values.flags.writeable = False
    return values


@cache
def _positive(dtype: str) -> Values:
    """The finite values without a sign, ascending from zero: the index is the code."""
    values = _table(dtype)[:128]
    return values[np.isfinite(values)]
