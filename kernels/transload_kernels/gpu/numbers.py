# mypy: disable-error-code="import-untyped,no-untyped-def,no-untyped-call,untyped-decorator"
"""Elements to binary32 and back in integer arithmetic, as `reference.numbers` and `.scales` say.

No conversion instruction of a GPU is used for 8-bit floats: which there are depends on the chip,
and how they saturate too. Additions that round (`_TO_INTEGER` and its like) are right only while
nothing fuses them with a product: kernels that use this are compiled without fusing.
"""

import triton
import triton.language as tl

LARGEST_F32 = tl.constexpr(3.4028234663852886e38)
_TO_INTEGER = tl.constexpr(12582912.0)
"""1.5 * 2 ** 23: a binary32 of less than 2 ** 22 plus this has no bits below one."""


@triton.jit
def bits_of(values):
    """The pattern of binary32."""
    return values.to(tl.uint32, bitcast=True)


@triton.jit
def is_nan(values):
    """Whether a pattern's exponent is all ones and its mantissa is not zero."""
    return (bits_of(values) & 0x7FFFFFFF) > 0x7F800000


@triton.jit
def known(values):
    """NaN as 0, infinities as the largest finite number of their sign."""
    values = tl.where(is_nan(values), 0.0, values)
    values = tl.where(values > LARGEST_F32, LARGEST_F32, values)
    return tl.where(values < -LARGEST_F32, -LARGEST_F32, values)


@triton.jit
def nearest_integer(values):
    """Ties to even; for magnitudes below 2 ** 22."""
    return (values + _TO_INTEGER) - _TO_INTEGER


@triton.jit
def clamp(values, low, high):
    """Without a NaN among them."""
    values = tl.where(values < low, low, values)
    return tl.where(values > high, high, values)


@triton.jit
def decode_float8(code, MANTISSA_BITS: tl.constexpr, BIAS: tl.constexpr):
    """The number of a pattern's 7 low bits under its sign, as if all were finite."""
    size = code & 0x7F
    exponent = size >> MANTISSA_BITS
    normal = (size << (23 - MANTISSA_BITS)) + ((127 - BIAS) << 23)
    least = size.to(tl.float32) * (1.0 / (1 << (BIAS + MANTISSA_BITS - 1)))
    bits = tl.where(exponent == 0, bits_of(least), normal) | ((code & 0x80) << 24)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def decode(raw, ELEMENT: tl.constexpr):
    """The value of each element; `raw` is uint32 and holds its bits."""
    if ELEMENT == "f32":
        return raw.to(tl.float32, bitcast=True)
    elif ELEMENT == "bf16":
        return (raw << 16).to(tl.float32, bitcast=True)
    elif ELEMENT == "f16":
        return raw.to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)
    elif ELEMENT == "i8":
        return raw.to(tl.uint8).to(tl.int8, bitcast=True).to(tl.float32)
    elif ELEMENT == "u4":
        return raw.to(tl.float32)
    elif ELEMENT == "e4m3":
        return tl.where((raw & 0x7F) == 0x7F, float("nan"), decode_float8(raw, 3, 7))
    elif ELEMENT == "e4m3fnuz":
        return tl.where(raw == 0x80, float("nan"), decode_float8(raw, 3, 8))
    elif ELEMENT == "e5m2fnuz":
        return tl.where(raw == 0x80, float("nan"), decode_float8(raw, 2, 16))
    else:
        tl.static_assert(ELEMENT == "e5m2")
        infinite = tl.where(raw >= 0x80, float("-inf"), float("inf"))
        special = tl.where((raw & 3) == 0, infinite, float("nan"))
        return tl.where((raw & 0x7C) == 0x7C, special, decode_float8(raw, 2, 15))


@triton.jit
def encode_float8(
    values, MANTISSA_BITS: tl.constexpr, BIAS: tl.constexpr, LAST: tl.constexpr, NAN: tl.constexpr
):
    """Nearest pattern, at most LAST in size; a minus zero becomes zero where NAN is 0x80."""
    bits = bits_of(values)
    size = bits & 0x7FFFFFFF
    DROPPED: tl.constexpr = 23 - MANTISSA_BITS
    rounded = size + ((1 << (DROPPED - 1)) - 1) + ((size >> DROPPED) & 1)
    normal = (rounded >> DROPPED) - ((127 - BIAS) << MANTISSA_BITS)
    # A sum whose last bit weighs as much as the type's least number rounds to a multiple of it.
    ONE: tl.constexpr = 1 << (24 - BIAS - MANTISSA_BITS)
    shifted = size.to(tl.float32, bitcast=True) + ONE * 1.0
    least = bits_of(shifted) - ((127 + 24 - BIAS - MANTISSA_BITS) << 23)
    code = tl.where(size < ((128 - BIAS) << 23), least, normal)
    code = tl.where(code > LAST, LAST, code)
    sign = (bits >> 24) & 0x80
    if NAN == 0x80:
        sign = tl.where(code == 0, 0, sign)
    return tl.where(size > 0x7F800000, NAN, code | sign)


@triton.jit
def encode(values, ELEMENT: tl.constexpr):
    """The bits of the nearest element to each value, uint32."""
    bits = bits_of(values)
    if ELEMENT == "f32":
        return tl.where(is_nan(values), 0x7FC00000, bits)
    elif ELEMENT == "bf16":
        return tl.where(is_nan(values), 0x7FC0, (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)
    elif ELEMENT == "f16":
        half = values.to(tl.float16).to(tl.uint16, bitcast=True).to(tl.uint32)
        return tl.where(is_nan(values), 0x7E00, half)
    elif ELEMENT == "i8":
        whole = nearest_integer(clamp(tl.where(is_nan(values), 0.0, values), -128.0, 127.0))
        return whole.to(tl.int32).to(tl.uint32, bitcast=True) & 0xFF
    elif ELEMENT == "u4":
        whole = nearest_integer(clamp(tl.where(is_nan(values), 0.0, values), 0.0, 15.0))
        return whole.to(tl.int32).to(tl.uint32, bitcast=True)
    elif ELEMENT == "e4m3":
        return encode_float8(values, 3, 7, 0x7E, 0x7F)
    elif ELEMENT == "e4m3fnuz":
        return encode_float8(values, 3, 8, 0x7F, 0x80)
    elif ELEMENT == "e5m2fnuz":
        return encode_float8(values, 2, 16, 0x7F, 0x80)
    else:
        tl.static_assert(ELEMENT == "e5m2")
        return encode_float8(values, 2, 15, 0x7B, 0x7F)


@triton.jit
def power(byte):
    """2 ** (byte - 127), whose least is subnormal; NaN for 255. `byte` is uint32."""
    bits = tl.where(byte == 0, 1 << 22, byte << 23)
    return tl.where(byte == 255, 0x7FC00000, bits).to(tl.float32, bitcast=True)


@triton.jit
def least_power(peak, LARGEST: tl.constexpr):
    """The byte of the least power of two under which `peak` fits; LARGEST is a pattern."""
    bits = bits_of(peak).to(tl.int32, bitcast=True)
    carry = ((bits & 0x7FFFFF) > (LARGEST & 0x7FFFFF)).to(tl.int32)
    byte = (bits >> 23) - (LARGEST >> 23) + 127 + carry
    byte = tl.where(byte < 0, 0, byte)
    return tl.where(bits == 0, 127, byte).to(tl.uint32, bitcast=True)
