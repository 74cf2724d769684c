"""What the elements of `kvabi/1` are worth and how numbers become elements (4, 8)."""

import math
import struct

from conformance.abi_from_the_document_fields import BITS

# exponent bits, mantissa bits, bias, the largest finite value, what the format has besides numbers
FLOATS: dict[str, tuple[int, int, int, float, str]] = {
    "f32": (8, 23, 127, (2 - 2.0**-23) * 2.0**127, "inf"),
    "f16": (5, 10, 15, 65504.0, "inf"),
    "bf16": (8, 7, 127, (2 - 2.0**-7) * 2.0**127, "inf"),
    "e4m3": (4, 3, 7, 448.0, "7f"),
    "e5m2": (5, 2, 15, 57344.0, "inf"),
    "e4m3fnuz": (4, 3, 8, 240.0, "80"),
    "e5m2fnuz": (5, 2, 16, 57344.0, "80"),
    "e2m1": (2, 1, 1, 6.0, ""),
}
SIGNED = ("i8", "i64")
LARGEST_F32 = FLOATS["f32"][3]


def decode(dtype: str, element: int) -> float:
    """The value of an element."""
    bits = BITS[dtype]
    if dtype == "ue8m0":
        return math.nan if element == 0xFF else math.ldexp(1.0, element - 127)
    if dtype not in FLOATS:
        below = dtype in SIGNED and element >> (bits - 1)
        return float(element - (1 << bits) if below else element)
    width, digits, bias, _, special = FLOATS[dtype]
    sign = -1.0 if element >> (bits - 1) else 1.0
    size = element & ((1 << (bits - 1)) - 1)
    exponent, mantissa = size >> digits, size & ((1 << digits) - 1)
    if special == "inf" and exponent == (1 << width) - 1:
        return sign * math.inf if mantissa == 0 else math.nan
    if (special == "7f" and size == 0x7F) or (special == "80" and element == 0x80):
        return math.nan
    mantissa += (1 << digits) if exponent else 0
    return sign * math.ldexp(mantissa, max(exponent, 1) - bias - digits)


def encode(dtype: str, value: float) -> int:
    """The element nearest to a value, ties to even; types of 8 and 4 bits have no infinities (8).

    A value of `ue8m0` is a power of two, or NaN: that is all that conversions make of it.
    """
    if dtype == "ue8m0":
        return 0xFF if math.isnan(value) else math.frexp(value)[1] + 126
    if dtype not in FLOATS:
        return _encode_integer(dtype, value)
    bits = BITS[dtype]
    width, digits, bias, largest, special = FLOATS[dtype]
    negative = math.copysign(1.0, value) < 0
    sign = int(negative) << (bits - 1)
    if math.isnan(value):
        quiet = (1 << (bits - 1)) - (1 << (digits - 1))
        return quiet if special == "inf" else int(special or "0", 16)
    size = abs(value)
    units = 0
    if math.isfinite(size) and size:
        unit = max(math.frexp(size)[1] - 1, 1 - bias) - digits
        units = round(math.ldexp(size, -unit))
        size = math.ldexp(units, unit)
    if size > largest:
        if special == "inf" and bits > 8:
            return sign | (((1 << width) - 1) << digits)
        size = largest
    if size == 0:
        return 0 if special == "80" else sign
    exponent = max(math.frexp(size)[1] - 1, 1 - bias)
    units = int(math.ldexp(size, digits - exponent))
    return sign | (units + ((exponent + bias - 1) << digits))


def _encode_integer(dtype: str, value: float) -> int:
    span = 1 << BITS[dtype]
    least = -span // 2 if dtype in SIGNED else 0
    return 0 if math.isnan(value) else round(min(max(value, least), least + span - 1)) % span


def single(value: float) -> float:
    """Round to a binary32."""
    return decode("f32", encode("f32", value))


def pattern_of(value: float) -> int:
    """The bits of a binary32."""
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def within_f32(value: float) -> float:
    """A value as one to make a scale of: NaN as 0, infinities as the outermost binary32 (8)."""
    return 0.0 if math.isnan(value) else min(max(value, -LARGEST_F32), LARGEST_F32)


def inline_scale(scale_dtype: str, dtype: str, values: list[float], param: float = 1.0) -> float:
    """The scale that a converter makes for some values of elements of `dtype` (8)."""
    largest = FLOATS[dtype][3] if dtype in FLOATS else 127.0
    peak = single(max(abs(within_f32(value)) for value in values) / param)
    quotient = single(peak / largest)
    if quotient == 0:
        return 1.0
    if scale_dtype == "f32":
        return quotient
    if scale_dtype == "ue8m0":
        fraction, exponent = math.frexp(min(quotient, 2.0**127))
        return math.ldexp(1.0, max(exponent - (fraction == 0.5), -127))
    return decode(scale_dtype, encode(scale_dtype, quotient)) or decode(scale_dtype, 1)


def with_zero_point(values: list[float]) -> tuple[int, list[int]]:
    """The pattern of the scale and the elements that `int4_zero_point` makes of values (8)."""
    inside = [within_f32(value) for value in values]
    step = single(single(max(inside) - min(inside)) / 15)
    pattern = pattern_of(step) & ~15
    step = decode("f32", pattern) or 1.0
    zero = _encode_integer("u4", single(-min(inside) / step))
    elements = [_encode_integer("u4", single(single(x / step) + zero)) for x in inside]
    return pattern_of(step) | zero, elements
