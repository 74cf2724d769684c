"""Elements to write, and what they are worth by what torch said of them."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

from abi_vectors.pages import HALF_BYTES, Array, Document, Group, View, kind

_RECORDED: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "tests" / "vectors" / "numbers.json").read_text()
)
_MIX = 0x9E3779B97F4A7C15

_SPECIAL: dict[str, tuple[int, ...]] = {
    # Both zeros, infinities, NaN of several kinds, the least, the largest, one.
    "f32": (
        *(0, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFFFFFFF, 0x7F800001),
        *(1, 0x80000001, 0x007FFFFF, 0x7F7FFFFF, 0xFF7FFFFF, 0x3F800000),
    ),
    "f16": (
        *(0, 0x8000, 0x7C00, 0xFC00, 0x7E00, 0xFFFF, 0x7C01),
        *(1, 0x8001, 0x03FF, 0x7BFF, 0xFBFF, 0x3C00),
    ),
    "bf16": (
        *(0, 0x8000, 0x7F80, 0xFF80, 0x7FC0, 0xFFFF, 0x7F81),
        *(1, 0x8001, 0x007F, 0x7F7F, 0xFF7F, 0x3F80),
    ),
    "e4m3": (0, 0x80, 0x7F, 0xFF, 1, 0x81, 7, 0x7E, 0xFE, 0x38),
    "e5m2": (0, 0x80, 0x7C, 0xFC, 0x7D, 0x7F, 0xFF, 1, 0x81, 3, 0x7B, 0xFB, 0x3C),
    "e4m3fnuz": (0, 0x80, 1, 0x81, 7, 0x7F, 0xFF, 0x40),
    "e5m2fnuz": (0, 0x80, 1, 0x81, 3, 0x7F, 0xFF, 0x40),
    "i8": (0, 1, 0xFF, 0x7F, 0x80, 0x81),
    "e2m1": tuple(range(16)),
    "u4": tuple(range(16)),
    "u8": (0, 1, 0x7F, 0x80, 0xFF),
    "ue8m0": (0, 0xFF, 0xFE, 1, 0x7F),
    # All of them are a binary32.
    "i64": (0, 1, 2**64 - 1, 2**24, 2**63, 2**64 - 2**24, 2**40),
}


def elements(dtype: str, shape: tuple[int, ...], seed: int, *, is_plain: bool = False) -> Array:
    """Bit patterns that repeat nowhere near: the special ones first, then any.

    Args:
        dtype: Of the elements.
        shape: Of the result.
        seed: Another one gives others.
        is_plain: Finite patterns alone, of magnitudes around one where the dtype is wide.
    """
    count = int(np.prod(shape))
    index = np.arange(count, dtype=np.uint64) + np.uint64(seed * 1_000_003)
    mixed = (index + np.uint64(1)) * np.uint64(_MIX)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    found = (mixed >> np.uint64(24)).astype(kind(dtype))
    if dtype in HALF_BYTES:
        found = found & 15
    elif dtype == "i64":
        found = (found & 0xFFFFFF) * np.where(found >> 24 & 1, 2**64 - 1, 1).astype("<u8")
    elif dtype == "ue8m0":
        found = 120 + found % 16
    if is_plain:
        found = _plain(found, dtype)
    else:
        special = np.array(_SPECIAL[dtype], kind(dtype))[:count]
        found[: len(special)] = special
    return found.reshape(shape)


def scale_elements(dtype: str, shape: tuple[int, ...], seed: int) -> Array:
    """Bit patterns of positive scales; of binary32 between 2^-14 and 2^2, of all mantissas."""
    raw = elements(dtype, shape, seed, is_plain=True)
    if dtype != "f32":
        return raw if dtype == "ue8m0" else np.maximum(raw & 0x7F, 1)
    exponent = 113 + (raw >> 24) % 16
    return ((raw & 0x7FFFFF) | (exponent << 23)).astype("<u4")


def worth(bits: Array, dtype: str) -> Array:
    """The values of elements, binary32."""
    if dtype == "i8":
        return bits.view(np.int8).astype(np.float32)
    if dtype == "f32":
        return bits.view("<f4").copy()
    if dtype == "f16":
        return bits.view("<f2").astype(np.float32)
    if dtype == "bf16":
        return (bits.astype("<u4") << 16).view("<f4")
    if dtype == "i64":
        return bits.view("<i8").astype(np.float32)
    if dtype in ("u4", "u8"):
        return bits.astype(np.float32)
    table = [_of_hex(text) for text in _RECORDED["decode"][dtype]]
    return np.array(table, np.float32)[bits]


def scale_of(group: Group, role: str) -> View | None:
    """The role of a group that holds another's scales."""
    names = (f"{role}_scale", f"{role}_group_scale")
    return next((view for view in group.views if view.role in names), None)


def factor_of(group: Group, role: str, position: int) -> np.float32 | None:
    """The scale of a role and layer among the codec's parameters."""
    params: Document = group.document.get("codec", {}).get("params", {})
    scales = params.get(f"scales.{role}")
    return None if scales is None else binary32(scales[position])


def products(group: Group, role: str, position: int, own: Array, scales: Array | None) -> Array:
    """The values of a role's elements in one layer, `[..., elements]`.

    Args:
        group: Where.
        role: Whose.
        position: Of the layer.
        own: The elements.
        scales: The elements of the role that holds their scales.
    """
    values, scale_view = worth(own, group.view(role).dtype), scale_of(group, role)
    factor = factor_of(group, role, position)
    with np.errstate(all="ignore"):
        if scale_view and scales is not None:
            scales = scales if "G" in scale_view.axes else scales[..., None]
            if group.document["codec"]["id"] == "int4_zero_point":
                values = values - (scales & 15).astype(np.float32)
                scales = scales & 0xFFFFFFF0
            run = values.shape[-1] // scales.shape[-1]
            values = values * np.repeat(worth(scales, scale_view.dtype), run, axis=-1)
        if factor is not None:
            values = values * factor
    assert values.dtype == np.float32, "products are binary32"
    return values


def group_values(group: Group, written: dict[str, Array], role: str) -> Array:
    """The values of a role's elements, `[layers, blocks, *axes]`, every NaN as 7fc00000."""
    scale_view = scale_of(group, role)
    scales = written[scale_view.role] if scale_view else None
    values = np.stack(
        [
            products(group, role, layer, own, None if scales is None else scales[layer])
            for layer, own in enumerate(written[role])
        ]
    )
    bits: Array = np.where(np.isnan(values), np.uint32(0x7FC00000), values.view(np.uint32))
    return bits.view(np.float32)


def binary32(text: str) -> np.float32:
    """The value of a descriptor's `f32:` text."""
    return np.float32(_of_hex(text[4:]))


def _of_hex(text: str) -> float:
    (value,) = struct.unpack(">f", bytes.fromhex("7fc00000" if text == "nan" else text))
    return float(value)


def _plain(bits: Array, dtype: str) -> Array:
    """Without what is no number, keeping signs and mantissas."""
    if dtype == "f32":
        # Every fourth lies halfway between two bf16.
        bits = np.where(bits >> 16 & 3 == 0, bits & 0xFFFF0000 | 0x8000, bits)
        return (bits & 0x807FFFFF) | (120 + (bits >> 23) % 16 << 23)
    if dtype == "bf16":
        return (bits & 0x807F) | (120 + (bits >> 7) % 16 << 7)
    if dtype == "f16":
        return (bits & 0x83FF) | (8 + (bits >> 10) % 16 << 10)
    if dtype in ("ue8m0", "u8", "i64", *HALF_BYTES):
        return bits
    no_numbers = {"e4m3": (0x7F, 0xFF), "i8": (0x80,)}.get(dtype, (0x80,))
    if dtype == "e5m2":
        return np.where(bits & 0x7C == 0x7C, bits & 0xBF, bits)
    return np.where(np.isin(bits, no_numbers), np.uint8(0x31), bits)
