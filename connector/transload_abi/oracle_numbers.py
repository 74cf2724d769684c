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


class _SmallFloat(NamedTuple):
    """A float of 8 or 4 bits: its widths, bias, and which of its patterns are no numbers."""

    mantissa_bits: int
    bias: int
    infinities: tuple[int, ...] = ()
    nans: tuple[int, ...] = ()


_SMALL_FLOATS: Final = {
    "e4m3": _SmallFloat(3, 7, (), (0x7F, 0xFF)),
    "e5m2": _SmallFloat(2, 15, (0x7C, 0xFC), (0x7F, 0x7E, 0x7D, 0xFD, 0xFE, 0xFF)),
    "e4m3fnuz": _SmallFloat(3, 8, (), (0x80,)),
    "e5m2fnuz": _SmallFloat(2, 16, (), (0x80,)),
    "e2m1": _SmallFloat(1, 1),
}

_UE8M0_BIAS: Final = 127
_UE8M0_NAN: Final = 0xFF

_INTEGERS: Final = {"i8": np.dtype(np.int8), "u4": np.dtype(np.uint8), "u8": np.dtype(np.uint8)}


def bits_type(dtype: str) -> np.dtype[np.unsignedinteger]:
    """The little-endian unsigned integer that holds an element of a dtype; of 4 bits, its low 4."""
    return np.dtype(f"<u{max(DTYPES[dtype].bits // 8, 1)}")


def decode(bits: Bits, dtype: str) -> Values:
    """The value of each element.

    Args:
        bits: Of any shape, of `bits_type(dtype)`.
        dtype: A name of `dtypes.DTYPES` but `i64`, whose elements are no binary32.

    Returns:
        The same shape; exact.
    """
    if dtype in _SMALL_FLOATS:
        return _table(dtype)[bits]
    if dtype == "ue8m0":
        is_nan = bits == _UE8M0_NAN
        exponents = np.where(is_nan, 0, bits.astype(np.int32) - _UE8M0_BIAS)
        return np.where(is_nan, np.float32(np.nan), np.ldexp(np.float32(1), exponents))
    if dtype == "bf16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    if dtype == "f16":
        return bits.view(np.float16).astype(np.float32)
    if dtype == "f32":
        return bits.view(np.float32).copy()
    return bits.view(_INTEGERS[dtype]).astype(np.float32)


def encode(values: Values, dtype: str) -> Bits:
    """The nearest element to each value, ties to even.

    Too large for a type of 8 or 4 bits: its outermost finite element of that sign; for `f16` and
    `bf16`: infinity. NaN: the type's positive quiet NaN, or 0 where it has none. To `ue8m0`, which
    holds nothing but scales: the least power of two that is not below the value.

    Args:
        values: Binary32, of any shape.
        dtype: A name of `dtypes.DTYPES` but `i64`.

    Returns:
        The same shape, of `bits_type(dtype)`.
    """
    values = np.ascontiguousarray(values, np.float32)
    if dtype in _SMALL_FLOATS:
        return _encode_small_float(values, dtype)
    if dtype == "ue8m0":
        return _encode_ue8m0(values)
    if dtype == "bf16":
        return _encode_bf16(values)
    if dtype == "f16":
        with np.errstate(over="ignore", under="ignore"):
            bits = values.astype(np.float16).view(np.uint16)
        return np.where(np.isnan(values), np.uint16(0x7E00), bits)
    if dtype == "f32":
        return np.where(np.isnan(values), np.uint32(0x7FC00000), values.view(np.uint32))
    return _encode_integer(values, dtype)


def largest(dtype: str) -> np.float32:
    """The largest finite value of a dtype."""
    if dtype in _SMALL_FLOATS:
        return np.float32(_positive(dtype)[-1])
    patterns = {"i8": 0x7F, "f32": 0x7F7FFFFF, "f16": 0x7BFF, "bf16": 0x7F7F}
    return np.float32(decode(np.array([patterns[dtype]], bits_type(dtype)), dtype)[0])


def _encode_integer(values: Values, dtype: str) -> Bits:
    near = np.rint(np.where(np.isnan(values), np.float32(0), values))
    bits, kind, *_ = DTYPES[dtype]
    least = -(1 << bits - 1) if kind == "int" else 0
    clamped = np.clip(near, least, least + (1 << bits) - 1)
    return clamped.astype(_INTEGERS[dtype]).view(np.uint8)


def _encode_ue8m0(values: Values) -> Bits:
    # A power of two is half of the mantissa's upper bound, so its exponent is one too high.
    mantissa, exponent = np.frexp(np.where(np.isfinite(values), values, np.float32(1)))
    power = np.where(mantissa == 0.5, exponent - 1, exponent)
    power = np.where(values > 0, power, -_UE8M0_BIAS)
    power = np.where(np.isposinf(values), _UE8M0_BIAS, power)
    code = np.clip(power, -_UE8M0_BIAS, _UE8M0_BIAS) + _UE8M0_BIAS
    return np.where(np.isnan(values), _UE8M0_NAN, code).astype(np.uint8)


def _encode_bf16(values: Values) -> Bits:
    bits = values.view(np.uint32).astype(np.uint64)
    odd = (bits >> 16) & 1
    near = ((bits + 0x7FFF + odd) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), near)


def _encode_small_float(values: Values, dtype: str) -> Bits:
    rule, sign = _SMALL_FLOATS[dtype], 1 << DTYPES[dtype].bits - 1
    # Codes of one sign ascend with their values, so an even code is an even mantissa.
    steps = _positive(dtype).astype(np.float64)
    size = np.abs(np.where(np.isnan(values), 0, values).astype(np.float64))
    above = np.searchsorted(steps, size).clip(1, len(steps) - 1)
    middle = (steps[above - 1] + steps[above]) / 2
    is_up = (size > middle) | ((size == middle) & (above % 2 == 0))
    code = np.where(is_up, above, above - 1).astype(np.uint8)
    has_minus_zero = sign not in rule.nans
    is_minus = np.signbit(values) & ((code > 0) | has_minus_zero)
    code = np.where(is_minus, code | sign, code)
    return np.where(np.isnan(values), rule.nans[0] if rule.nans else 0, code).astype(np.uint8)


@cache
def _table(dtype: str) -> Values:
    """The value of each pattern."""
    rule, bits = _SMALL_FLOATS[dtype], DTYPES[dtype].bits
    values = np.empty(1 << bits, np.float32)
    for code in range(1 << bits):
        sign = -1.0 if code >> bits - 1 else 1.0
        exponent = (code & (1 << bits - 1) - 1) >> rule.mantissa_bits
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
    values = _table(dtype)[: 1 << DTYPES[dtype].bits - 1]
    return values[np.isfinite(values)]
