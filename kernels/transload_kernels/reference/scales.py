"""Scales of rows: how they are read, how they are made, and what they do to an element.

**Rules.** A value is the binary32 product of element and scale; a stored element is the binary32
quotient of value and scale, then rounded to its type. Quotients are correctly rounded, too.

- `f32`: the peak of the group divided by `numbers.LARGEST`; 1 where that is 0. The peak is the
  largest magnitude of the group's values, a NaN counting as 0, an infinity as the largest finite
  binary32.
- `ue8m0`: byte `b` is 2 ** (b - 127), 255 is NaN. Written: the least of 0..254 for which the
  group's peak is not above `numbers.LARGEST` times the scale; 127 where the peak is 0.
- `f32_zero4`: with `low` and `high` the least and largest of the group's values and 0 (NaN and
  infinities as above), the scale is `high / 15 - low / 15` with its four lowest bits cleared, 1
  where that is 0. The zero point is `-low / scale` rounded to nearest even, within 0..15, and is
  stored in those four bits. An element is `value / scale` rounded to nearest even, plus the zero
  point, within 0..15; a NaN is stored as the zero point. Its value is
  `(element - zero point) * scale`.
- `tensor`: `Format.scale_value`, rounded to binary32.
"""

from typing import Final, NamedTuple

import torch
from torch import Tensor

from transload_kernels.formats import ElementType, Format
from transload_kernels.reference.numbers import LARGEST, decode, encode

_LARGEST_F32: Final = float(torch.finfo(torch.float32).max)


class Scales(NamedTuple):
    """The scales of a row.

    Attributes:
        factors: float32 `[num_groups]`.
        zeros: float32 `[num_groups]`: zero points; 0 where the format has none.
        raw: uint8 `[num_groups, bytes of a scale]`: as they are stored.
    """

    factors: Tensor
    zeros: Tensor
    raw: Tensor


def read(raw: Tensor, of: Format) -> Scales:
    """What stored scales are; `raw` is `[num_groups, scale_bytes]`, empty if none is inline."""
    if of.scale == "none":
        return Scales(_each(1.0), _each(0.0), raw)
    if of.scale == "tensor":
        return Scales(_each(of.scale_value), _each(0.0), raw)
    if of.scale == "ue8m0":
        return Scales(_powers(raw.flatten()), _each(0.0, len(raw)), raw)
    bits = raw.clone().view(torch.int32).flatten()
    if of.scale == "f32":
        return Scales(bits.view(torch.float32), _each(0.0, len(raw)), raw)
    return Scales((bits & ~15).view(torch.float32), (bits & 15).float(), raw)


def make(values: Tensor, of: Format) -> Scales:
    """The scales that values are to be stored with; `values` is float32 `[groups, elements]`."""
    known = values.nan_to_num(0.0, _LARGEST_F32, -_LARGEST_F32)
    if of.scale == "f32":
        factors = known.abs().amax(dim=1) / LARGEST[of.element]
        return read(_bytes(torch.where(factors == 0, 1.0, factors)), of)
    if of.scale == "ue8m0":
        exponents = [_exponent(peak, of.element) for peak in known.abs().amax(dim=1).tolist()]
        return read(torch.tensor(exponents, dtype=torch.uint8, device="cpu").view(-1, 1), of)
    if of.scale == "f32_zero4":
        low, high = known.amin(dim=1).clamp(max=0.0), known.amax(dim=1).clamp(min=0.0)
        cleared = ((high / 15 - low / 15).view(torch.int32) & ~15).view(torch.float32)
        factors = torch.where(cleared == 0, 1.0, cleared)
        zeros = (-low / factors).round().clamp(0, 15)
        return read(_bytes(factors) | _low_bytes(zeros), of)
    return read(torch.empty((0, 0), dtype=torch.uint8, device="cpu"), of)


def to_values(raw: Tensor, scales: Scales, of: Format) -> Tensor:
    """The values float32 `[groups, elements]` of a row's stored elements."""
    elements = decode(raw, of.element).view(len(scales.factors), -1)
    if of.scale == "none":
        return elements
    return (elements - scales.zeros[:, None]) * scales.factors[:, None]


def to_elements(values: Tensor, scales: Scales, of: Format) -> Tensor:
    """The bytes of a row's elements; `values` as `[groups, elements]`."""
    if of.scale == "none":
        return encode(values.flatten(), of.element)
    quotients = values / scales.factors[:, None]
    if of.scale == "f32_zero4":
        quotients = quotients.nan_to_num(0.0, _LARGEST_F32, -_LARGEST_F32).round()
        quotients = quotients + scales.zeros[:, None]
    return encode(quotients.flatten(), of.element)


def _each(value: float, count: int = 1) -> Tensor:
    """float32 `[count]`, whatever torch's default type and device are."""
    return torch.full((count,), value, dtype=torch.float32, device="cpu")


def _powers(exponents: Tensor) -> Tensor:
    """2 ** (byte - 127), whose least is subnormal; NaN for 255."""
    patterns = exponents.int() << 23
    patterns[exponents == 0] = 1 << 22
    patterns[exponents == 255] = 0x7FC00000
    return patterns.view(torch.float32)


def _exponent(peak: float, element: ElementType) -> int:
    """The byte of the least power of two under which `peak` fits; exact in binary64."""
    if peak == 0.0:
        return 127
    return next(b for b in range(255) if peak <= LARGEST[element] * 2.0 ** (b - 127))


def _bytes(factors: Tensor) -> Tensor:
    return factors.view(torch.uint8).view(-1, 4)


def _low_bytes(zeros: Tensor) -> Tensor:
    """Small integers as the bytes of 32-bit ones."""
    return zeros.int().view(torch.uint8).view(-1, 4)
