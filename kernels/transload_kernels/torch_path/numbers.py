"""Elements and scales as vectors, by torch's own casts where they agree with the specification.

Torch's casts round as `reference.numbers` asks, but differ at the ends: what is too large for an
8-bit float becomes an infinity, a NaN or the largest value, by type and version, and a NaN keeps
its sign or not. So values are clamped before the cast, and NaNs are written after it.
"""

from typing import Final

import torch
from torch import Tensor

from transload_kernels.formats import ElementType, Format
from transload_kernels.reference.numbers import LARGEST, NAN_PATTERNS

_DTYPES: Final[dict[ElementType, torch.dtype]] = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "e4m3fnuz": torch.float8_e4m3fnuz,
    "e5m2fnuz": torch.float8_e5m2fnuz,
    "i8": torch.int8,
}
_PATTERNS: Final = {4: torch.int32, 2: torch.int16, 1: torch.uint8}
_LARGEST_F32: Final = float(torch.finfo(torch.float32).max)


def decode(raw: Tensor, element: ElementType) -> Tensor:
    """uint8 `[num_bytes]` to float32 `[num_elements]`."""
    if element == "u4":
        return torch.stack((raw & 15, raw >> 4), dim=1).flatten().float()
    return raw.view(_DTYPES[element]).to(torch.float32)


def encode(values: Tensor, element: ElementType) -> Tensor:
    """float32 `[num_elements]` to the uint8 `[num_bytes]` of the nearest elements."""
    if element == "i8":
        return values.nan_to_num(0.0).round_().clamp_(-128, 127).to(torch.int8).view(torch.uint8)
    if element == "u4":
        codes = values.nan_to_num(0.0).round_().clamp_(0, 15).to(torch.uint8)
        return codes[0::2] | codes[1::2] << 4
    nan = values.isnan()
    if element in LARGEST:
        values = values.clamp(-LARGEST[element], LARGEST[element])
    dtype = _DTYPES[element]
    pattern = _PATTERNS[dtype.itemsize]
    # A copy even of f32, whose cast would be the caller's own memory.
    bits = values.to(dtype, copy=True).view(pattern)
    return bits.masked_fill_(nan, NAN_PATTERNS[element]).view(torch.uint8)


def read_scales(raw: Tensor, of: Format) -> tuple[Tensor, Tensor | None]:
    """Stored inline scales as float32 `[num_groups]` factors and, for `f32_zero4`, zero points."""
    if of.scale == "ue8m0":
        exponents = raw.int()
        bits = exponents << 23
        bits.masked_fill_(exponents == 0, 1 << 22).masked_fill_(exponents == 255, 0x7FC00000)
        return bits.view(torch.float32), None
    bits = raw.view(torch.int32)
    if of.scale == "f32":
        return bits.view(torch.float32), None
    return (bits & ~15).view(torch.float32), (bits & 15).float()


def make_scales(values: Tensor, of: Format) -> Tensor:
    """The bytes of the scales for float32 `[num_groups, elements]`, by `reference.scales`."""
    known = values.nan_to_num(0.0, _LARGEST_F32, -_LARGEST_F32)
    if of.scale == "f32_zero4":
        low, high = known.amin(dim=1).clamp_(max=0.0), known.amax(dim=1).clamp_(min=0.0)
        fifteen = scalar(15.0, values)
        factors = (high / fifteen).sub_(low / fifteen).view(torch.int32).bitwise_and_(~15)
        factors = factors.view(torch.float32)
        factors = factors.masked_fill_(factors == 0, 1.0)
        zeros = (-low / factors).round_().clamp_(0, 15).int()
        return (factors.view(torch.int32) | zeros).view(torch.uint8)
    peaks = known.abs_().amax(dim=1)
    if of.scale == "f32":
        factors = peaks / scalar(LARGEST[of.element], values)
        return factors.masked_fill_(factors == 0, 1.0).view(torch.uint8)
    bits, largest = peaks.view(torch.int32), _bits_of(LARGEST[of.element])
    # Exponents and mantissas compare apart: a subnormal peak needs no more than the least scale.
    exponents = (bits >> 23) - (largest >> 23) + 127
    exponents += (bits & 0x7FFFFF) > (largest & 0x7FFFFF)
    return exponents.clamp_(min=0).masked_fill_(bits == 0, 127).to(torch.uint8)


def to_values(elements: Tensor, factors: Tensor, zeros: Tensor | None) -> Tensor:
    """Elements float32 `[num_groups, n]` times their scales, in place."""
    if zeros is not None:
        elements -= zeros[:, None]
    return elements.mul_(factors[:, None])


def to_quotients(values: Tensor, factors: Tensor, zeros: Tensor | None) -> Tensor:
    """Values float32 `[num_groups, n]` by their scales: what is encoded; in place."""
    quotients = values.div_(factors[:, None])
    if zeros is None:
        return quotients
    return quotients.nan_to_num_(0.0, _LARGEST_F32, -_LARGEST_F32).round_().add_(zeros[:, None])


def scalar(value: float, like: Tensor) -> Tensor:
    """A number on the device of `like`: CUDA multiplies by the inverse of one of the host's."""
    return torch.full((), value, dtype=torch.float32, device=like.device)


def _bits_of(value: float) -> int:
    return int(torch.tensor(value, dtype=torch.float32, device="cpu").view(torch.int32))
