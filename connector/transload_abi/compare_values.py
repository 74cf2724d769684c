"""What becomes of the numbers when elements of one codec are written in another.

A value is a binary32; `connector/ABI.md`, section 8 says which conversions keep every value that
the source can hold. Non-finite elements are not looked at, and rotations are compared before.
"""

import math
from typing import Final, Literal, NamedTuple

from transload_abi.codecs import CODECS, scale_param
from transload_abi.dtypes import DTYPES
from transload_abi.floats import read_float
from transload_abi.picture_words import scale_words
from transload_abi.types import Group, Role

Change = Literal["none", "lossless", "lossy"]
"""`none`: the element's bits are moved as they are, with their scales in the page."""


class Values(NamedTuple):
    """How the elements of one role become numbers in one layer.

    Attributes:
        codec: Its id.
        dtype: Of the elements.
        inline: Dtype of their scales in the page; empty where there are none.
        share: How many elements share such a scale; 0: those of a head and state.
        scale: Of the layer, where the codec keeps it outside of the page.
    """

    codec: str
    dtype: str
    inline: str = ""
    share: int = 0
    scale: float | None = None

    @property
    def words(self) -> str:
        """For operators: `e4m3 with scale 0.5`."""
        parts = []
        if self.inline:
            whose = f"{self.share} elements" if self.share else "head"
            parts.append(f"{_SCALE_WORDS[self.inline]} per token and {whose}")
        if self.scale is not None:
            parts.append(f"scale {scale_words(self.scale)}")
        return f"{self.dtype} with {' and '.join(parts)}" if parts else self.dtype


_SCALE_WORDS: Final = {"f32": "a scale", "e4m3": "an e4m3 scale", "ue8m0": "a ue8m0 scale"}


def values_of(group: Group, role: Role, layer: int) -> Values:
    """How a role of a checked group becomes numbers in one of its layers."""
    inline = group.role(CODECS[group.codec.id].scale_role.get(role.role, ""))
    num_groups = inline.shape.get("G", 0) if inline else 0
    scales = group.codec.params.get(scale_param(role.role))
    return Values(
        codec=group.codec.id,
        dtype=role.dtype,
        inline=inline.dtype if inline else "",
        share=role.shape["D"] // num_groups if num_groups else 0,
        scale=read_float(str(scales[group.layers.index(layer)]))
        if isinstance(scales, list)
        else None,
    )


def change(src: Values, dst: Values) -> Change:
    """What becomes of all values that the source can hold."""
    if src == dst or (not dst.inline and src._replace(codec=dst.codec) == dst):
        return "none"
    if dst.inline:
        # Scales of its own: no dtype holds another's values under all scales.
        return "lossy"
    is_kept = dst.dtype == "f32" or _holds(dst, src)
    return "lossless" if is_kept else "lossy"


class _Span(NamedTuple):
    """Some values: all have so many significant bits, and lie between these, or are 0."""

    significant_bits: int
    least_exponent: int
    largest: float


_ONE: Final = _Span(0, 0, 1.0)


def _span(dtype: str) -> _Span:
    """The finite values of a type of floats."""
    rule = DTYPES[dtype]
    # The top pattern of OCP's E4M3 is its NaN, so the largest is one step below.
    steps = 2 if dtype == "e4m3" else 1
    largest = math.ldexp(2.0 - steps * 2.0 ** (1 - rule.significant_bits), rule.max_exponent)
    return _Span(rule.significant_bits, rule.min_exponent, largest)


def _holds(dst: Values, src: Values) -> bool:
    """Whether a destination without scales in the page keeps all finite values of a source."""
    shift = _shift(src.scale or 1.0, dst.scale or 1.0)
    if shift is None or DTYPES[src.dtype].kind != "float":
        return False
    element, wide = _span(src.dtype), _span(dst.dtype)
    if src.inline == "ue8m0":
        return dst.dtype == "bf16" and element.significant_bits <= wide.significant_bits
    scale = _span(src.inline) if src.inline else _ONE
    return (
        element.significant_bits + scale.significant_bits <= wide.significant_bits
        and element.least_exponent + scale.least_exponent + shift >= wide.least_exponent
        and math.ldexp(element.largest * scale.largest, shift) <= wide.largest
    )


def _shift(src: float, dst: float) -> int | None:
    """The power of two that one scale of parameters is of another; None where there is none.

    Products with scales that are no powers of two are rounded: far from the ends of binary32 the
    quotients are still so near that rounding finds the element again.
    """
    (ours, exponent), (theirs, other) = math.frexp(src), math.frexp(dst)
    if ours != theirs:
        return None
    is_safe = ours == 0.5 or all(2.0**-100 <= each <= 2.0**100 for each in (src, dst))
    return exponent - other if is_safe else None
