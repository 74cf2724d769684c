"""From elements and their scales to values and back, as sections 5 and 8 of `ABI.md` say.

Knows nothing of addresses. The last axis of elements is `D`; that of scales in the page is `G`, or
they lack it and one serves all of `D`. Every step is rounded to binary32.
"""

from typing import Final, NamedTuple

import numpy as np

from transload_abi.oracle_numbers import Bits, Values, bits_type, decode, encode, largest

_ZERO_POINT: Final = "int4_zero_point"
_ZERO_POINT_BITS: Final = np.uint32(0xF)
"""The lowest bits of such a scale's pattern hold the zero point."""

_LARGEST_CODE: Final = np.float32(15)
_ONE: Final = np.uint32(0x3F800000)


class Rule(NamedTuple):
    """How the elements of one role become numbers.

    Attributes:
        codec: Its id.
        dtype: Of the elements.
        scale_dtype: Of their scales in the page; empty: there are none.
        num_groups: Extent of `G` of these scales; 0: they lack the axis.
    """

    codec: str
    dtype: str
    scale_dtype: str = ""
    num_groups: int = 0


def to_values(
    rule: Rule, elements: Bits, scales: Bits | None = None, outside: Values | None = None
) -> Values:
    """The values of elements, of their shape.

    Args:
        rule: Of the elements.
        elements: `[..., D]`.
        scales: In the page, `[..., G]` or `[...]`; None: there are none.
        outside: Scales among the codec's parameters, to be multiplied with the result.
    """
    values = decode(elements, rule.dtype)
    if scales is not None:
        if rule.codec == _ZERO_POINT:
            zeros = (scales & _ZERO_POINT_BITS).astype(np.float32)
            values = np.subtract(values, _spread(zeros, rule, values), dtype=np.float32)
            scales = scales & ~_ZERO_POINT_BITS
        factors = decode(scales, rule.scale_dtype)
        values = _product(values, _spread(factors, rule, values))
    return values if outside is None else _product(values, outside)


def to_elements(
    rule: Rule, values: Values, outside: Values | None = None
) -> tuple[Bits, Bits | None]:
    """The elements nearest to values, and the scales in the page that are made for them.

    Args:
        rule: Of the elements.
        values: `[..., D]`.
        outside: Scales among the codec's parameters, of as many axes.

    Returns:
        Elements `[..., D]`; scales `[..., G]` or `[...]`, None where the page has none.
    """
    if rule.codec == _ZERO_POINT:
        return _zero_pointed(values)
    scales = _made_scales(rule, values, outside) if rule.scale_dtype else None
    if outside is not None:
        values = _quotient(values, outside)
    if scales is not None:
        factors = decode(scales, rule.scale_dtype)
        values = _quotient(values, _spread(factors, rule, values))
    return encode(values, rule.dtype), scales


def _made_scales(rule: Rule, values: Values, outside: Values | None) -> Bits:
    *outer, size = values.shape
    num_groups = max(rule.num_groups, 1)
    grouped = values.reshape(*outer, num_groups, size // num_groups)
    # A NaN has no magnitude, and an infinity that of the largest number.
    peaks = np.nan_to_num(np.abs(grouped), nan=0.0).max(axis=-1)
    if outside is not None:
        peaks = _quotient(peaks, outside)
    quotients = _quotient(peaks, largest(rule.dtype))
    scales = encode(np.where(quotients == 0, np.float32(1), quotients), rule.scale_dtype)
    if rule.scale_dtype == "e4m3":
        scales = np.maximum(scales, bits_type("e4m3").type(1))
    return scales if rule.num_groups else scales[..., 0]


def _zero_pointed(values: Values) -> tuple[Bits, Bits]:
    counted = np.nan_to_num(values, nan=0.0)  # infinities become the outermost numbers
    least, most = counted.min(axis=-1), counted.max(axis=-1)
    with np.errstate(over="ignore"):
        span = np.subtract(most, least, dtype=np.float32)
    patterns = _quotient(span, _LARGEST_CODE).view(np.uint32) & ~_ZERO_POINT_BITS
    patterns = np.where(patterns == 0, _ONE, patterns)
    steps = patterns.view(np.float32)
    zeros = np.clip(np.rint(_quotient(-least, steps)), 0, _LARGEST_CODE)
    numbers = np.where(np.isnan(values), np.float32(0), values)
    codes = np.add(_quotient(numbers, steps[..., None]), zeros[..., None], dtype=np.float32)
    return encode(codes, "u4"), patterns | zeros.astype(np.uint32)


def _spread(scales: Values, rule: Rule, values: Values) -> Values:
    """Scales, repeated for the elements under each."""
    if not rule.num_groups:
        return scales[..., None]
    return np.repeat(scales, values.shape[-1] // rule.num_groups, axis=-1)


def _product(values: Values, scales: Values) -> Values:
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return np.multiply(values, scales, dtype=np.float32)


def _quotient(values: Values, scales: Values | np.float32) -> Values:
    with np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore"):
        return np.divide(values, scales, dtype=np.float32)
