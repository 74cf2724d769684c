"""The element types a role can have: bits, and what their values are."""

from typing import Final, Literal, NamedTuple


class Dtype(NamedTuple):
    """One element type.

    Attributes:
        bits: Of an element.
        kind: `float`, `int` (two's complement), `uint`, or `exponent` (a power of two).
        significant_bits: Of a float or an exponent, with the hidden one; 0 for integers.
        max_exponent: Of a float: the largest finite value is below `2 ** (max_exponent + 1)`.
        min_exponent: Of a float: the least value above zero is `2 ** min_exponent` (subnormal).
    """

    bits: int
    kind: Literal["float", "int", "uint", "exponent"]
    significant_bits: int = 0
    max_exponent: int = 0
    min_exponent: int = 0


DTYPES: Final[dict[str, Dtype]] = {
    "f32": Dtype(32, "float", 24, 127, -149),
    "f16": Dtype(16, "float", 11, 15, -24),
    "bf16": Dtype(16, "float", 8, 127, -133),
    # OCP 8-bit floating point: E4M3 has no infinities and one NaN pattern per sign.
    "e4m3": Dtype(8, "float", 4, 8, -9),
    "e5m2": Dtype(8, "float", 3, 15, -16),
    # AMD MI300's variants: no negative zero, bias one higher, so the same byte is half as much.
    "e4m3fnuz": Dtype(8, "float", 4, 7, -10),
    "e5m2fnuz": Dtype(8, "float", 3, 15, -17),
    # OCP microscaling formats: E2M1 has no infinities and no NaN; E8M0 is a biased exponent alone.
    "e2m1": Dtype(4, "float", 2, 2, -1),
    "ue8m0": Dtype(8, "exponent", 1, 127, -127),
    "i8": Dtype(8, "int"),
    "i64": Dtype(64, "int"),
    "u4": Dtype(4, "uint"),
    "u8": Dtype(8, "uint"),
}
"""By name. IEEE 754 binary32 and binary16; bfloat16; OFP8 E4M3 (FN) and E5M2 and their FNUZ
variants; OCP MX E2M1 and E8M0; integers."""
