"""Elements to write, and what they are worth by what torch said of them."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

from abi_vectors.pages import Array, Document, Group, kind

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
    if is_plain:
        found = _plain(found, dtype)
    else:
        special = np.array(_SPECIAL[dtype], kind(dtype))[:count]
        found[: len(special)] = special
    return found.reshape(shape)


def scale_elements(shape: tuple[int, ...], seed: int) -> Array:
    """Bit patterns of positive binary32 between 2^-14 and 2^2, of all mantissas."""
    raw = elements("f32", shape, seed, is_plain=True)
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
    table = [_of_hex(text) for text in _RECORDED["decode"][dtype]]
    return np.array(table, np.float32)[bits]


def group_values(group: Group, written: dict[str, Array], role: str) -> Array:
    """The values of a role's elements, `[layers, blocks, *axes]`, every NaN as 7fc00000."""
    codec: Document = group.document.get("codec", {"id": "none"})
    values = worth(written[role], group.view(role).dtype)
    with np.errstate(all="ignore"):
        if codec["id"] == "fp8_per_tensor":
            for layer, text in enumerate(codec["params"][f"scales.{role}"]):
                values[layer] *= binary32(text)
        elif codec["id"] == "per_token_head" and role in ("k", "v"):
            values = values * worth(written[f"{role}_scale"], "f32")[..., None]
        elif codec["id"] == "fp8_ds_mla_656" and role == "latent":
            scales = worth(written["latent_scale"], "f32")
            for number in range(4):
                part = slice(128 * number, 128 * number + 128)
                values[..., part] *= scales[..., number, None]
    assert values.dtype == np.float32, "products are binary32"
    bits: Array = np.where(np.isnan(values), np.uint32(0x7FC00000), values.view(np.uint32))
    return bits.view(np.float32)


def nearest(values: Array, dtype: str) -> Array:
    """The nearest elements to finite binary32 values, ties to even.

    What is beyond the range of an 8-bit type becomes its outermost element, and of `f16` infinity.
    """
    if dtype == "f32":
        return np.ascontiguousarray(values).view("<u4")
    if dtype == "f16":
        with np.errstate(over="ignore"):
            half: Array = values.astype("<f2")
        return half.view("<u2")
    if dtype == "bf16":
        return _nearest_bf16(values)
    if dtype == "i8":
        return np.clip(np.rint(values), -128, 127).astype(np.int8).view(np.uint8)
    return _nearest_float8(values, dtype)


def largest(dtype: str) -> float:
    """The largest value of an 8-bit type."""
    return float(worth(_finite(dtype)[-1:], dtype)[0])


def binary32(text: str) -> np.float32:
    """The value of a descriptor's `f32:` text."""
    return np.float32(_of_hex(text[4:]))


def _finite(dtype: str) -> Array:
    """The patterns of all finite values from zero upwards."""
    positive = np.arange(128, dtype=np.uint8)
    return positive[np.isfinite(worth(positive, dtype))]


def _nearest_float8(values: Array, dtype: str) -> Array:
    steps = worth(_finite(dtype), dtype).astype(np.float64)
    apart = np.abs(np.abs(values.astype(np.float64))[..., None] - steps)
    least = apart.min(axis=-1, keepdims=True)
    # At most two are equally near, and of neighbours one is even.
    is_odd = np.arange(len(steps)) % 2
    code = np.argmin(np.where(apart == least, is_odd, 2), axis=-1).astype(np.uint8)
    is_minus = np.signbit(values) & ((code > 0) | (not dtype.endswith("fnuz")))
    bits: Array = np.where(is_minus, code | np.uint8(0x80), code)
    return bits


def _nearest_bf16(values: Array) -> Array:
    low = (values.view(np.uint32) >> 16).astype("<u4")
    below, above = worth(low, "bf16"), worth(low + 1, "bf16")
    to_below = np.abs(values.astype(np.float64) - below)
    to_above = np.abs(above - values.astype(np.float64))
    is_up = (to_above < to_below) | ((to_above == to_below) & (low % 2 == 1))
    return np.where(is_up, low + 1, low).astype("<u2")


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
    no_numbers = {"e4m3": (0x7F, 0xFF), "i8": (0x80,)}.get(dtype, (0x80,))
    if dtype == "e5m2":
        return np.where(bits & 0x7C == 0x7C, bits & 0xBF, bits)
    return np.where(np.isin(bits, no_numbers), np.uint8(0x31), bits)
