"""Elements to values and back in plain torch, for codecs that no kernel knows.

Section 5 of `connector/ABI.md` says what a value is, section 8 how elements and scales are made;
`transload_abi.oracle_codecs` is the same in numpy. Every step is rounded to binary32. Elements and
scales are rows of bytes, dense: an element of four bits shares its byte with its neighbour.
"""

from typing import Final, NamedTuple, cast

import torch
from torch import Tensor

from transload_kernels.formats import ElementType
from transload_kernels.reference.numbers import LARGEST
from transload_kernels.torch_path import numbers

_E2M1: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Values of the codes without a sign."""

_LARGEST: Final[dict[str, float]] = {"e2m1": 6.0} | {**LARGEST}
_ZERO_POINT: Final = "int4_zero_point"
_ZERO_POINT_BITS: Final = 15
_LARGEST_CODE: Final = 15.0
_LARGEST_F32: Final = float(torch.finfo(torch.float32).max)


class Numbers(NamedTuple):
    """How the elements of one role become numbers, in one layer of one side.

    Attributes:
        codec: Its id.
        dtype: Of the elements.
        scale_dtype: Of their scales in the page; empty: there are none.
        group_elements: That share such a scale; 0 where there are none.
        outside: The layer's scale among the codec's parameters; None: there is none.
    """

    codec: str
    dtype: str
    scale_dtype: str = ""
    group_elements: int = 0
    outside: float | None = None


def to_values(of: Numbers, elements: Tensor, scales: Tensor | None) -> Tensor:
    """The values of elements.

    Args:
        of: What they are.
        elements: uint8, flat: a whole number of groups.
        scales: uint8, flat: one for each group; None: there are none in the page.

    Returns:
        float32, flat, new memory.
    """
    values = _decode(elements, of.dtype)
    if scales is not None:
        values = values.view(-1, of.group_elements)
        if of.codec == _ZERO_POINT:
            patterns = scales.view(torch.int32)
            values -= (patterns & _ZERO_POINT_BITS).float()[:, None]
            factors = (patterns & ~_ZERO_POINT_BITS).view(torch.float32)
        else:
            factors = _decode(scales, of.scale_dtype)
        values = values.mul_(factors[:, None]).flatten()
    return values if of.outside is None else values.mul_(numbers.scalar(of.outside, values))


def to_elements(of: Numbers, values: Tensor) -> tuple[Tensor, Tensor | None]:
    """The elements nearest to values, and the scales in the page that are made for them.

    Args:
        of: What they are to be.
        values: float32, flat: a whole number of groups.

    Returns:
        Elements and scales as `to_values` takes them.
    """
    if of.codec == _ZERO_POINT:
        return _zero_pointed(values.view(-1, of.group_elements))
    scales = _made_scales(of, values) if of.scale_dtype else None
    if of.outside is not None:
        values = values / numbers.scalar(of.outside, values)
    if scales is not None:
        factors = _decode(scales, of.scale_dtype)
        values = (values.view(-1, of.group_elements) / factors[:, None]).flatten()
    return _encode(values, of.dtype), scales


def _made_scales(of: Numbers, values: Tensor) -> Tensor:
    peaks = _counted(values.view(-1, of.group_elements)).abs().amax(dim=1)
    if of.outside is not None:
        peaks = peaks / numbers.scalar(of.outside, values)
    quotients = peaks / numbers.scalar(_LARGEST[of.dtype], values)
    quotients = quotients.masked_fill(quotients == 0, 1.0)
    if of.scale_dtype == "ue8m0":
        return _powers_above(quotients)
    made = _encode(quotients, of.scale_dtype)
    return made.clamp_(min=1) if of.scale_dtype == "e4m3" else made


def _zero_pointed(values: Tensor) -> tuple[Tensor, Tensor]:
    counted = _counted(values)
    least, most = counted.amin(dim=1), counted.amax(dim=1)
    steps = (most - least) / numbers.scalar(_LARGEST_CODE, values)
    patterns = steps.view(torch.int32) & ~_ZERO_POINT_BITS
    steps = patterns.view(torch.float32)
    steps = steps.masked_fill(steps == 0, 1.0)
    zeros = (-least / steps).round_().clamp_(0, _LARGEST_CODE)
    known = values.masked_fill(values.isnan(), 0.0)
    codes = (known / steps[:, None]).add_(zeros[:, None])
    return _encode(codes.flatten(), "u4"), (steps.view(torch.int32) | zeros.int()).view(torch.uint8)


def _counted(values: Tensor) -> Tensor:
    """As they count for scales: a NaN is 0, an infinity the outermost binary32."""
    return values.nan_to_num(0.0, _LARGEST_F32, -_LARGEST_F32)


def _powers_above(quotients: Tensor) -> Tensor:
    """The bytes of the least powers of two that are not below numbers above zero."""
    bits = quotients.view(torch.int32)
    exponents, mantissas = bits >> 23, bits & 0x7FFFFF
    # Below 2^-126 the exponent is 0, and 2^-127 has the mantissa 2^22.
    exact = torch.where(exponents == 0, 1 << 22, 0)
    return (exponents + (mantissas > exact)).clamp_(0, 254).to(torch.uint8)


def _decode(raw: Tensor, dtype: str) -> Tensor:
    """uint8, flat, to float32, flat, new memory."""
    if dtype == "e2m1":
        codes = torch.stack((raw & 15, raw >> 4), dim=1).flatten().long()
        table = torch.tensor((*_E2M1, *(-each for each in _E2M1)), device=raw.device)
        return table[codes]
    if dtype == "ue8m0":
        exponents = raw.int()
        bits = exponents << 23
        bits.masked_fill_(exponents == 0, 1 << 22).masked_fill_(exponents == 255, 0x7FC00000)
        return bits.view(torch.float32)
    values = numbers.decode(raw, cast("ElementType", dtype))
    return values.clone() if dtype == "f32" else values


def _encode(values: Tensor, dtype: str) -> Tensor:
    """float32, flat, to uint8, flat."""
    if dtype != "e2m1":
        return numbers.encode(values, cast("ElementType", dtype))
    size = values.abs()
    # Halfway between two codes it is the even one.
    codes = (size > 0.25).byte() + (size >= 0.75) + (size > 1.25) + (size >= 1.75)
    codes += (size > 2.5).byte() + (size >= 3.5) + (size > 5.0)
    codes = torch.where(values.signbit(), codes | 8, codes).masked_fill_(values.isnan(), 0)
    return codes[0::2] | codes[1::2] << 4
