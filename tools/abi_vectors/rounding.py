"""Values to elements: what a destination holds after a conversion, by section 8 of the ABI."""

from __future__ import annotations

import numpy as np

from abi_vectors.numbers import worth
from abi_vectors.pages import Array


def nearest(values: Array, dtype: str) -> Array:
    """The nearest elements to finite binary32 values, ties to even.

    What is beyond the range of a type of 8 or 4 bits becomes its outermost element, and of `f16`
    infinity.
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
    return _nearest_small_float(values, dtype)


def largest(dtype: str) -> float:
    """The largest value of a type of 8 or 4 bits."""
    return float(worth(_finite(dtype)[-1:], dtype)[0])


def stored_under_scales(
    values: Array, dtype: str, scale_dtype: str, count: int
) -> tuple[Array, Array]:
    """Elements `[..., elements]` and their scales `[..., count]`."""
    parts = values.reshape(*values.shape[:-1], count, -1)
    quotients = np.abs(parts).max(axis=-1) / np.float32(largest(dtype))
    if scale_dtype == "f32":
        scales = np.where(quotients == 0, np.float32(1), quotients).view("<u4")
    elif scale_dtype == "ue8m0":
        # A quotient is `fraction * 2 ** power` with a fraction of at least a half.
        fractions, powers = np.frexp(quotients)
        powers = np.where(fractions == 0.5, powers - 1, powers)
        powers = np.where(quotients == 0, 0, powers)
        scales = (np.clip(powers, -127, 127) + 127).astype(np.uint8)
    else:
        scales = np.maximum(nearest(quotients, scale_dtype), 1)
        scales = np.where(quotients == 0, nearest(np.ones(1, np.float32), scale_dtype), scales)
    elements = nearest(parts / worth(scales, scale_dtype)[..., None], dtype)
    return elements.reshape(values.shape), scales


def stored_int4(values: Array) -> tuple[Array, Array]:
    """Elements of `int4_zero_point` and the scales with a zero point in their lowest bits."""
    low, high = values.min(axis=-1), values.max(axis=-1)
    bits = ((high - low) / np.float32(15)).view("<u4") & np.uint32(0xFFFFFFF0)
    bits = np.where(bits == 0, nearest(np.ones(1, np.float32), "f32"), bits)
    sizes = worth(bits, "f32")
    zeros = np.clip(np.rint(-low / sizes), 0, 15)
    found = np.rint(values / sizes[..., None] + zeros[..., None])
    assert found.dtype == np.float32, "all of it is binary32"
    return np.clip(found, 0, 15).astype(np.uint8), bits | zeros.astype("<u4")


def _finite(dtype: str) -> Array:
    """The patterns of all finite values from zero upwards."""
    positive = np.arange(8 if dtype == "e2m1" else 128, dtype=np.uint8)
    return positive[np.isfinite(worth(positive, dtype))]


def _nearest_small_float(values: Array, dtype: str) -> Array:
    steps = worth(_finite(dtype), dtype).astype(np.float64)
    apart = np.abs(np.abs(values.astype(np.float64))[..., None] - steps)
    least = apart.min(axis=-1, keepdims=True)
    # At most two are equally near, and of neighbours one is even.
    is_odd = np.arange(len(steps)) % 2
    code = np.argmin(np.where(apart == least, is_odd, 2), axis=-1).astype(np.uint8)
    is_minus = np.signbit(values) & ((code > 0) | (not dtype.endswith("fnuz")))
    bits: Array = np.where(is_minus, code | np.uint8(8 if dtype == "e2m1" else 0x80), code)
    return bits


def _nearest_bf16(values: Array) -> Array:
    low = (values.view(np.uint32) >> 16).astype("<u4")
    below, above = worth(low, "bf16"), worth(low + 1, "bf16")
    to_below = np.abs(values.astype(np.float64) - below)
    to_above = np.abs(above - values.astype(np.float64))
    is_up = (to_above < to_below) | ((to_above == to_below) & (low % 2 == 1))
    return np.where(is_up, low + 1, low).astype("<u2")
