"""How rows of numbers are stored, for `convert_rows`: the element, and where its scales are."""

from typing import Final, Literal, NamedTuple

ElementType = Literal["f32", "f16", "bf16", "e4m3", "e5m2", "e4m3fnuz", "e5m2fnuz", "i8", "u4"]
ScaleType = Literal["none", "tensor", "f32", "ue8m0", "f32_zero4"]

ELEMENT_BITS: Final[dict[ElementType, int]] = {
    "f32": 32,
    "f16": 16,
    "bf16": 16,
    "e4m3": 8,
    "e5m2": 8,
    "e4m3fnuz": 8,
    "e5m2fnuz": 8,
    "i8": 8,
    "u4": 4,
}
"""`u4`: two in a byte, the even element in the low half."""

SCALE_BYTES: Final[dict[ScaleType, int]] = {
    "none": 0,
    "tensor": 0,
    "f32": 4,
    "ue8m0": 1,
    "f32_zero4": 4,
}


class Format(NamedTuple):
    """One side of a conversion.

    Attributes:
        element: Type of the elements, which lie without gaps in a row.
        scale: `none`: the value is the element. `tensor`: the element times `scale_value`. `f32`:
            times a binary32 in the buffer. `ue8m0`: times 2 ** (byte - 127). `f32_zero4`: a
            binary32 whose low four mantissa bits hold a zero point: (element - zero) * scale, the
            scale with those bits cleared.
        group_elements: Consecutive elements that share an inline scale; the row's length where
            there is one scale for the row, 0 where none is inline.
        scale_value: For `tensor`.
    """

    element: ElementType
    scale: ScaleType = "none"
    group_elements: int = 0
    scale_value: float = 1.0


class ScalePlace(NamedTuple):
    """Where the inline scales of one side are.

    The scale of group `g` of the row that the loops' indices name is at
    `offsets[i] + sum(index * stride) + g * group_stride` bytes of that side's buffer.

    Attributes:
        delta: Bytes from a row's first element (block offset, loops apart) to its first scale.
        strides: Bytes per loop, in the order of the call's `loops`; scales may be strided unlike
            the elements (a data region, then a scale region).
        group_stride: Bytes from a group's scale to the next.
    """

    delta: int
    strides: tuple[int, ...]
    group_stride: int
