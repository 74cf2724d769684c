"""The transfers of `convert/` whose numbers lie where other ways to compute give other bits.

Patterns are binary32. Each of the halfway ones was looked for: computed in one step, in another
order, in binary64 or with a reciprocal it becomes another element or scale.
"""

from typing import Any

from abi_vectors import formats, quantized
from abi_vectors.decode_cases import f32
from abi_vectors.kept_cases import KV
from abi_vectors.pages import Cache
from abi_vectors.transfers import SMALL, ConvertCase, small

EIGHT = SMALL._replace(size=8)
HALF, ONE, TWO, THREE = 0x3F000000, 0x3F800000, 0x40000000, 0x40400000
MINUS, INFINITY, NAN, LARGEST = 1 << 31, 0x7F800000, 0x7FC00000, 0x7F7FFFFF


def quotient_cases() -> list[ConvertCase]:
    """All of them."""
    return [*_outside(), *_two_quotients(), *_scales(), *_int4(), *_ends()]


def _plain(dtype: str = "f32") -> Cache:
    return formats.vllm("LBNHC", EIGHT._replace(dtype=dtype))


def _per_tensor(dtype: str, k: str, v: str) -> Cache:
    codec = {"id": "fp8_per_tensor", "params": {"scales.k": [k], "scales.v": [v]}}
    return formats.vllm("LBNHC", EIGHT._replace(dtype=dtype), codec=codec)


def _under(dtype: str, scale: str, factor: float = 0) -> Cache:
    """One scale in the page for a key and one for a value."""
    codec: dict[str, Any] = {"id": "block_scaled"}
    if factor:
        codec["params"] = {"scales.k": [f32(factor)], "scales.v": [f32(factor)]}
    return quantized.group_scaled_cells("LBNHC", EIGHT._replace(dtype=dtype), 8, scale, codec=codec)


def _case(
    name: str, words: str, dst: Cache, *patterns: int, src: Cache | None = None
) -> ConvertCase:
    """Keys and values of such patterns, values with the other sign."""
    return small(
        name,
        words,
        src or _plain(),
        dst,
        "lossy",
        change=KV,
        patterns={"k": patterns, "v": tuple(bits ^ MINUS for bits in patterns)},
    )


def _outside() -> list[ConvertCase]:
    return [
        _case(
            "quotients-halfway",
            "quotients by a layer's scale that are halfway once they are binary32",
            _per_tensor("e4m3", f32(0.3), f32(0.3)),
            *(0x3AC00001, 0x3BA33334, 0x3BDCCCCD, 0x3BF00001, 0x3C14CCCD, 0x3C233334),
            *(0x3B533333, 0x3B900000, 0x3C700001, 0x3CF00001, 0x3D700001, 0x3DF00001),
        ),
        small(
            "products-halfway",
            "products with a layer's scale that are halfway once they are binary32",
            _per_tensor("e4m3", "f32:3f508888", "f32:3f31d89e"),
            _plain("bf16"),
            "lossy",
            change=KV,
            patterns={"k": (0x3F, 0x38, 0xBF, 0x47), "v": (0x3D, 0x45, 0xBD, 0x38)},
        ),
    ]


def _two_quotients() -> list[ConvertCase]:
    halfway = (
        *(0x396541D6, 0x3A8F4926, 0x3B1D9D42, 0x3B881F16, 0x3BA4C751, 0x3BB31B6F, 0x3A2BF160),
        *(0x3AC8999A, 0x3B56EDB8, 0x3B7395F3, 0x3B7395F4, 0x3BCFC3AA, 0x3BDE17C6, 0x3BC16F8B),
    )
    nvfp4 = (0x3EBB3333, 0x3F1C0001, 0x3F9C0001, 0x401C0001, 0x3DF9999B, 0x3DF9999A, ONE)
    # 100.3 and 3 are the peaks under which these are halfway.
    return [
        _case(
            "two-quotients-halfway",
            "divided by the layer's scale, and then by that in the page",
            _under("e4m3", "f32", 7.1),
            *(0x42C8999A, *halfway[:7], 0x42C8999A, *halfway[7:]),
        ),
        _case(
            "two-quotients-halfway-in-four-bits",
            "the same of elements of four bits under e4m3",
            _under("e2m1", "e4m3", 0.3),
            *(THREE, *nvfp4),
        ),
    ]


def _scales() -> list[ConvertCase]:
    return [
        _case(
            "power-of-two-of-a-rounded-peak",
            "the peak, divided by the layer's scale, is above 448 until it is rounded",
            _under("e4m3", "ue8m0", 1.1),
            *(0x43F66667, ONE, TWO, THREE, 0x42000000, 0x43000000, 0, 0x41000000),
            *(0x43F66668, ONE, TWO, THREE, 0x42000000, 0x43000000, 0, 0x41000000),
        ),
        _case(
            "powers-of-two-rounded-up",
            "a quotient a little above a power of two, one that is it, and one a little below",
            _under("e2m1", "ue8m0"),
            *(0x40C00001, ONE, TWO, THREE, 0x40800000, HALF, 0x40A00000, 0),
            *(0x40C00000, ONE, TWO, THREE, 0x40800000, HALF, 0x40A00000, 0),
            *(0x40BFFFFF, ONE, TWO, THREE, 0x40800000, HALF, 0x40A00000, 0),
        ),
        _case(
            "powers-of-two-at-their-least",
            "peaks of 2^-120 to 2^-126: the scale is 2^-127 below a quotient of 2^-127",
            _under("e4m3", "ue8m0"),
            *(0x00800000, 0x00400000, 0x00200000, 0x00600000, 0x00700000, 0x00080000, 0, 1),
            *(0x03800000, 0x03400000, 0x03000000, 0x02400000, 0x00700000, 0x00080000, 0, 1),
            *(0x00080000, 0x00040000, 0x00020000, 0x00060000, 0x00070000, 0x00008000, 0, 1),
        ),
        _case(
            "powers-of-two-at-their-largest",
            "values beyond binary32 once they are divided by the layer's scale",
            _under("e4m3", "ue8m0", 2.0**-20),
            *(0x7F000000, ONE, TWO, 0x70000000, 0x72000000, 0x74000000, 0x75000000, 0),
        ),
        _case(
            "e4m3-scales-at-their-least",
            "quotients of which the nearest e4m3 is zero",
            _under("e2m1", "e4m3"),
            *(0x3AC00000, 0x3A800000, 0x3A400000, 0x3A000000, 0x3A900000, 0x39800000, 0, 1),
            *(0x38C00000, 0x38800000, 0x38400000, 0x38000000, 0x38900000, 0x37800000, 0, 1),
        ),
        _case(
            "e4m3-scales-at-their-largest",
            "quotients above 448: elements are beyond their range as well",
            _under("e2m1", "e4m3"),
            *(0x46000000, 0x45000000, 0x44800000, 0x44000000, 0x43000000, ONE, 0, 0x45400000),
        ),
    ]


def _int4() -> list[ConvertCase]:
    dst = quantized.int4_cells("LBNHC", EIGHT, codec={"id": "int4_zero_point"})
    same = (0x406CCCCD, MINUS | 0x406CCCCD, 0x42C80000, 0x3EB33333)
    rows = [
        # The span is rounded before it is divided.
        *(0xC041B664, 0x40B841A5, 0xC0032F95, 0xC028AAEB, 0x3E95ED40, 0xBFBB688D, 0x40032F97),
        0x3E95ED42,
        # Divided by 15, and not multiplied with its reciprocal.
        *(0xBF2947E4, 0x40BE70E0, 0x3FC57E79, 0x3FFDEBC4, 0x405399CF, 0x3FFDEBC2, 0x4037632A),
        0x40941EDE,
        # Likewise for the zero point.
        *(0xBF35F68C, 0x40CCB55E, 0x4026CCAC, 0xBE729E0E, 0x40637431, 0x4080E3FA, 0x400878E8),
        0x4026CCAA,
    ]
    more = [
        # The quotient and the sum are rounded one after the other.
        *(0xC0EA6025, 0x4087B0ED, 0x3FF6B60A, 0xC05E0A40, 0xBF9406D4, 0x3EC55E70, 0x405E0A40),
        0xC0EA6023,
        *(0xC077854F, 0x3EDC04B8, 0xC0408421, 0xC040841E, 0xBF375941, 0xC02E2E67, 0xBFEE5A6F),
        0x3E12ADD2,
        # Not the difference from the least, divided.
        *(0xC08306BE, 0x40F35197, 0xC0609B60, 0x40BB2C2A, 0xBF95BCEB, 0x40D420F8, 0xBEC7A692),
        0xBF95BCEB,
        # All are above zero.
        *(0x408CB22C, 0x4093C049, 0x408CB22C, 0x408F0000, 0x4090CCCD, 0x40920000, 0x408E8000),
        0x4092CCCD,
    ]
    ends = [
        *(NAN, MINUS | TWO, ONE, THREE, HALF, NAN | MINUS, 0, 0x40E00000),
        *(INFINITY, ONE, MINUS | TWO, 0x7F000000, NAN, LARGEST, HALF, 0),
        *(INFINITY, INFINITY | MINUS, ONE, 0, NAN, LARGEST, MINUS | TWO, 0x7F000000),
        *(NAN, ONE, TWO, THREE, NAN, HALF, ONE, TWO),
    ]
    return [
        _case("int4-spans-halfway", "each step is rounded to binary32", dst, *rows),
        _case("int4-elements-halfway", "each step is rounded to binary32", dst, *more),
        _case(
            "int4-of-equal-values",
            "3.7, -3.7, 100 and 0.35 alone, each under one scale, which is 1",
            dst,
            *(bits for bits in same for _ in range(8)),
        ),
        _case("int4-of-zeros", "zeros of both signs", dst, 0, MINUS),
        _case(
            "int4-of-no-numbers",
            "a NaN counts as 0, and infinities as the outermost binary32",
            dst,
            *ends,
        ),
    ]


def _ends() -> list[ConvertCase]:
    cells = formats.scaled_cells("LBNHC", EIGHT._replace(dtype="i8"))
    large = (INFINITY, LARGEST, 0x7F7F8000, 0x7F7F7FFF, 0x477FF000, 0x477FEFFF, ONE, 0)
    return [
        _case(
            "i8-of-no-numbers",
            "a NaN is 0, infinities are 127 and -128, under the scale of the largest binary32",
            cells,
            *(INFINITY, 0x7E000000, NAN, ONE, INFINITY | MINUS, LARGEST, 0x7D800000, 0),
            *(NAN, ONE, TWO, MINUS | TWO, HALF, 0, MINUS, 0x3FC00000),
        ),
        _case(
            "e5m2-of-infinities",
            "infinities, and what is beyond the range, become the outermost element",
            _per_tensor("e5m2", f32(1), f32(3)),
            *large,
        ),
        _case("bf16-of-infinities", "what is beyond the range", _plain("bf16"), *large),
        _case("f16-of-infinities", "what is beyond the range", _plain("f16"), *large),
        _case(
            "e2m1-of-no-numbers",
            "a NaN is 0, and an infinity the largest element, under the largest scale",
            _under("e2m1", "e4m3"),
            *(INFINITY, NAN, ONE, TWO, 0x45000000, LARGEST, HALF, INFINITY | MINUS),
            *(NAN, MINUS | ONE, TWO, THREE, HALF, 0x40C00000, 0, NAN),
        ),
    ]
