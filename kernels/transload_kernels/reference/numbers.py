"""Elements to binary32 and back: the specification of every element type.

**Rules.** To a value, exactly: each finite pattern is its IEEE 754 or OFP8 number, `i8` is two's
complement, `u4` is 0 to 15 with the even element in the low half of its byte. From a value: the
nearest element, ties to the even pattern, subnormals kept. Then

- too large for an 8-bit float, infinities included: its largest finite element of that sign;
- too large for `f16`, `bf16`: the infinity; beyond `i8` or `u4`: the least or largest integer;
- a NaN of any sign and payload: the type's one NaN of `NAN_PATTERNS`; for `i8` and `u4`: 0;
- minus zero, and what rounds to it, keeps its sign; the `fnuz` types have none and store zero.
"""

from functools import cache
from typing import Final, NamedTuple

import torch
from torch import Tensor

from transload_kernels.formats import ElementType


class Float8(NamedTuple):
    """An 8-bit float: its widths and bias, and its patterns that are no numbers."""

    mantissa_bits: int
    bias: int
    infinities: frozenset[int]
    nans: frozenset[int]


FLOAT8: Final[dict[str, Float8]] = {
    "e4m3": Float8(3, 7, frozenset(), frozenset({0x7F, 0xFF})),
    "e5m2": Float8(2, 15, frozenset({0x7C, 0xFC}), frozenset({0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF})),
    "e4m3fnuz": Float8(3, 8, frozenset(), frozenset({0x80})),
    "e5m2fnuz": Float8(2, 16, frozenset(), frozenset({0x80})),
}

NAN_PATTERNS: Final[dict[ElementType, int]] = {
    "f32": 0x7FC00000,
    "f16": 0x7E00,
    "bf16": 0x7FC0,
    "e4m3": 0x7F,
    "e5m2": 0x7F,
    "e4m3fnuz": 0x80,
    "e5m2fnuz": 0x80,
}
"""What a NaN is written as."""

LARGEST: Final[dict[ElementType, float]] = {
    "e4m3": 448.0,
    "e5m2": 57344.0,
    "e4m3fnuz": 240.0,
    "e5m2fnuz": 57344.0,
    "i8": 127.0,
}
"""The largest value of the types that are scaled. `i8` also has -128; no scale is made for it."""

_TWO_BYTES: Final = {"f16": torch.float16, "bf16": torch.bfloat16}


def decode(raw: Tensor, element: ElementType) -> Tensor:
    """The value of each element.

    Args:
        raw: uint8 `[num_bytes]`, a whole number of elements.
        element: Their type.

    Returns:
        float32 `[num_elements]`; integers as they are, without a scale.
    """
    raw = raw.clone()
    if element == "f32":
        return raw.view(torch.float32)
    if element in _TWO_BYTES:
        return raw.view(_TWO_BYTES[element]).to(torch.float32)
    if element == "i8":
        return raw.view(torch.int8).to(torch.float32)
    if element == "u4":
        return torch.stack((raw & 15, raw >> 4), dim=1).flatten().to(torch.float32)
    return torch.tensor(_values(element), dtype=torch.float32, device="cpu")[raw.long()]


def encode(values: Tensor, element: ElementType) -> Tensor:
    """The nearest element to each value.

    Args:
        values: float32 `[num_elements]`; an even count for `u4`.
        element: Type to write.

    Returns:
        uint8 `[num_bytes]`.
    """
    nan = values.isnan()
    if element == "f32":
        return _with_nans(values.view(torch.int32), nan, element, torch.int32)
    if element == "bf16":
        return _with_nans(_nearest_bf16(values), nan, element, torch.int16)
    if element == "f16":
        return _with_nans(values.half().view(torch.int16), nan, element, torch.int16)
    if element == "i8":
        return values.nan_to_num(0.0).round().clamp(-128, 127).to(torch.int8).view(torch.uint8)
    if element == "u4":
        codes = values.nan_to_num(0.0).round().clamp(0, 15).to(torch.uint8)
        return codes[0::2] | codes[1::2] << 4
    return _with_nans(_nearest_float8(values, element), nan, element, torch.uint8)


def _with_nans(patterns: Tensor, nan: Tensor, element: ElementType, dtype: torch.dtype) -> Tensor:
    """Patterns of `dtype` as bytes, the type's one NaN where `nan`."""
    wide = torch.where(nan, NAN_PATTERNS[element], patterns.long())
    return wide.to(dtype).view(torch.uint8)


def _nearest_bf16(values: Tensor) -> Tensor:
    """The upper half of a binary32, one more if the lower half rounds up."""
    bits = values.view(torch.int32).long() & 0xFFFFFFFF
    is_odd = bits >> 16 & 1
    return bits + 0x7FFF + is_odd >> 16


def _nearest_float8(values: Tensor, element: ElementType) -> Tensor:
    """By search among the finite values: those of one sign ascend with their patterns."""
    ladder = torch.tensor(_ladder(element), dtype=torch.float64, device="cpu")
    size = values.abs().double()
    above = torch.searchsorted(ladder, size).clamp(1, len(ladder) - 1)
    middle = (ladder[above - 1] + ladder[above]) / 2
    is_up = (size > middle) | ((size == middle) & (above % 2 == 0))
    code = torch.where(is_up, above, above - 1)
    is_minus = values.signbit()
    if 0x80 in FLOAT8[element].nans:
        is_minus &= code > 0
    return torch.where(is_minus, code | 0x80, code)


@cache
def _values(element: ElementType) -> tuple[float, ...]:
    """The value of each of the 256 patterns of an 8-bit float, from its definition."""
    return tuple(_value(code, FLOAT8[element]) for code in range(256))


def _value(code: int, rule: Float8) -> float:
    sign = -1.0 if code & 0x80 else 1.0
    exponent = (code & 0x7F) >> rule.mantissa_bits
    mantissa = code & (1 << rule.mantissa_bits) - 1
    if code in rule.nans:
        return float("nan")
    if code in rule.infinities:
        return sign * float("inf")
    if exponent == 0:
        return sign * mantissa * 2.0 ** (1 - rule.bias - rule.mantissa_bits)
    significand = (1 << rule.mantissa_bits) + mantissa
    return float(sign * significand * 2.0 ** (exponent - rule.bias - rule.mantissa_bits))


@cache
def _ladder(element: ElementType) -> tuple[float, ...]:
    """The finite values without a sign, ascending from zero; the index is the pattern."""
    rule = FLOAT8[element]
    no_number = rule.infinities | rule.nans
    return tuple(_value(code, rule) for code in range(128) if code not in no_number)
