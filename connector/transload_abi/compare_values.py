"""What becomes of the numbers when elements of one codec are written in another.

A value is a binary32; `connector/ABI.md`, section 8 says which conversions keep every value that
the source can hold. Non-finite elements are not looked at.
"""

import math
from typing import Final, Literal, NamedTuple

from transload_abi.codecs import CODECS, scale_param
from transload_abi.dtypes import DTYPES
from transload_abi.floats import read_float
from transload_abi.picture_words import scale_words
from transload_abi.types import Group, Role

Change = Literal["none", "lossless", "lossy"]
"""`none`: the element's bits are moved as they are."""


class Values(NamedTuple):
    """How the elements of one role become numbers in one layer.

    Attributes:
        codec: Its id.
        dtype: Of the elements.
        inline: Whether their scales lie in the page.
        scale: Of the layer, where the codec keeps it outside of the page.
    """

    codec: str
    dtype: str
    inline: bool = False
    scale: float | None = None

    @property
    def words(self) -> str:
        """For operators: `e4m3 with scale 0.5`."""
        if self.scale is not None:
            return f"{self.dtype} with scale {scale_words(self.scale)}"
        if self.inline:
            return f"{self.dtype} with {_INLINE_WORDS[self.codec]}"
        return self.dtype


_INLINE_WORDS: Final = {
    "per_token_head": "a scale per token and head",
    "fp8_ds_mla_656": "a scale per token and 128 elements",
}


def values_of(group: Group, role: Role, layer: int) -> Values:
    """How a role of a checked group becomes numbers in one of its layers."""
    rule = CODECS[group.codec.id]
    scale = None
    if rule.has_scales_param:
        scales = group.codec.params[scale_param(role.role)]
        assert isinstance(scales, list), "a checked codec has a list of scales"
        scale = read_float(str(scales[group.layers.index(layer)]))
    return Values(group.codec.id, role.dtype, role.role in rule.scale_role, scale)


def change(src: Values, dst: Values) -> Change:
    """What becomes of all values that the source can hold."""
    if src == dst:
        return "none"
    if dst.inline or dst.scale is not None:
        # A scale of its own, and eight bits: no dtype holds another's values under all scales.
        return "lossy"
    if src.inline:
        return "lossless" if dst.dtype == "f32" else "lossy"
    if src.scale is not None:
        return _change_scaled(src.dtype, src.scale, dst.dtype)
    if src.dtype == dst.dtype:
        return "none"
    return "lossless" if _holds(dst.dtype, src.dtype, 0) else "lossy"


def _change_scaled(src: str, scale: float, dst: str) -> Change:
    if dst == "f32":
        return "lossless"
    mantissa, exponent = math.frexp(scale)
    is_power_of_two = mantissa == 0.5
    return "lossless" if is_power_of_two and _holds(dst, src, exponent - 1) else "lossy"


def _holds(dst: str, src: str, shift: int) -> bool:
    """Whether a float type holds all finite values of another, each times `2 ** shift`."""
    wide, narrow = DTYPES[dst], DTYPES[src]
    return (
        wide.significant_bits >= narrow.significant_bits
        and wide.max_exponent >= narrow.max_exponent + shift
        and wide.min_exponent <= narrow.min_exponent + shift
    )
