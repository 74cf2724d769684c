"""Values to elements: what a destination holds after a conversion, by section 8 of the ABI."""

import numpy as np

from abi_vectors.numbers import worth
from abi_vectors.pages import Array


def nearest(values: Array, dtype: str) -> Array:
    """The nearest elements to binary32 values, ties to even.

    What is beyond the range of a type of 8 or 4 bits becomes its outermost element, and of `f16`
    and `bf16` infinity. A NaN is 0, as in `i8` and `e2m1`: there is none to be made of others.
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
        numbers = np.where(np.isnan(values), np.float32(0), values)
        return np.clip(np.rint(numbers), -128, 127).astype(np.int8).view(np.uint8)
    return _nearest_small_float(values, dtype)


def largest(dtype: str) -> float:
    """The largest value of a type of 8 or 4 bits."""
    return float(worth(_finite(dtype)[-1:], dtype)[0])


def quotients(values: Array, divisor: Array | np.float32) -> Array:
    """Quotients in binary32; what is beyond its range follows IEEE 754."""
    with np.errstate(all="ignore"):
        found: Array = values / divisor
    assert found.dtype == np.float32, "all of it is binary32"
    return found


def stored_under_scales(
    values: Array, dtype: str, scale_dtype: str, count: int, factor: np.float32 | None = None
) -> tuple[Array, Array]:
    """Elements `[..., elements]` and their scales `[..., count]`.

    Args:
        values: `[..., elements]`.
        dtype: Of the elements.
        scale_dtype: Of the scales in the page.
        count: How many of those.
        factor: The scale among the codec's parameters.
    """
    parts = values.reshape(*values.shape[:-1], count, -1)
    peaks = np.abs(_countable(parts)).max(axis=-1)
    if factor is not None:
        peaks, parts = quotients(peaks, factor), quotients(parts, factor)
    scales = _scales(quotients(peaks, np.float32(largest(dtype))), scale_dtype)
    elements = nearest(quotients(parts, worth(scales, scale_dtype)[..., None]), dtype)
    return elements.reshape(values.shape), scales


def _scales(sizes: Array, dtype: str) -> Array:
    """The scales of peaks that are so many times the elements' largest value."""
    if dtype == "f32":
        return np.where(sizes == 0, np.float32(1), sizes).view("<u4")
    if dtype == "ue8m0":
        # A size is `fraction * 2 ** power` with a fraction of at least a half.
        fractions, powers = np.frexp(np.minimum(sizes, np.float32(2.0**127)))
        powers = np.where(fractions == 0.5, powers - 1, powers)
        powers = np.where(sizes == 0, 0, powers)
        return (np.clip(powers, -127, 127) + 127).astype(np.uint8)
    scales = np.maximum(nearest(sizes, dtype), 1)
    return np.where(sizes == 0, nearest(np.ones(1, np.float32), dtype), scales)


def stored_int4(values: Array) -> tuple[Array, Array]:
    """Elements of `int4_zero_point` and the scales with a zero point in their lowest bits."""
    countable = _countable(values)
    low, high = countable.min(axis=-1), countable.max(axis=-1)
    with np.errstate(over="ignore"):
        span = high - low
    bits = quotients(span, np.float32(15)).view("<u4") & np.uint32(0xFFFFFFF0)
    bits = np.where(bits == 0, nearest(np.ones(1, np.float32), "f32"), bits)
    sizes = worth(bits, "f32")
    zeros = np.clip(np.rint(quotients(-low, sizes)), 0, 15)
    found = np.rint(quotients(countable, sizes[..., None]) + zeros[..., None])
    assert found.dtype == np.float32, "all of it is binary32"
    return np.clip(found, 0, 15).astype(np.uint8), bits | zeros.astype("<u4")


def _countable(values: Array) -> Array:
    """Zero for a NaN, and the outermost binary32 for infinities."""
    return np.nan_to_num(values, nan=0.0)


def _finite(dtype: str) -> Array:
    """The patterns of all finite values from zero upwards."""
    positive = np.arange(8 if dtype == "e2m1" else 128, dtype=np.uint8)
    return positive[np.isfinite(worth(positive, dtype))]


def _nearest_small_float(values: Array, dtype: str) -> Array:
    steps = worth(_finite(dtype), dtype).astype(np.float64)
    values = np.where(np.isnan(values), np.float32(0), values)
    values = np.clip(values, -largest(dtype), largest(dtype))
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
    exact = values.astype(np.float64)
    # Infinity is where the next binade would begin.
    with np.errstate(invalid="ignore"):
        below, above = (worth(bits, "bf16").astype(np.float64) for bits in (low, low + 1))
    end = 2.0**128
    exact, below, above = (
        np.nan_to_num(each, posinf=end, neginf=-end) for each in (exact, below, above)
    )
    to_below, to_above = np.abs(exact - below), np.abs(above - exact)
    is_up = (to_above < to_below) | ((to_above == to_below) & (low % 2 == 1))
    return np.where(is_up, low + 1, low).astype("<u2")
