"""Conversions of the formats with scales, against numpy expressions over pages made here.

Pages are arrays of bytes that are cut as the formats' own descriptions say, and every small float
is worked out from its bits; nothing of the oracle's reading takes part in what is expected.
"""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support import abi_formats as formats
from support.abi_moves import regroup
from support.abi_pages import PLAIN, Field, Shape, described, page_bytes, regions
from transload_abi.errors import Refused
from transload_abi.oracle import blank, execute
from transload_abi.plan import Blocks, Pair
from transload_abi.proof import prove
from transload_abi.types import Codec, Descriptor

Raw = NDArray[np.uint8]
Array = NDArray[Any]
Wide = NDArray[np.float64]
Single = NDArray[np.float32]

HEADS = Shape(heads=2, tokens=4, size=64, blocks=3)
ROWS = Shape(heads=1, tokens=16, size=512, blocks=3)
STATES = 4
SRC_BLOCK, DST_BLOCK = 2, 1
ODD = (float(np.float32(0.3)), float(np.float32(1.7)))
"""Scales of K and of V that are no powers of two."""


def small_float(codes: Array, exponent_bits: int, mantissa_bits: int) -> Wide:
    """The value of each pattern; the bias is that of IEEE 754."""
    codes = codes.astype(np.int64)
    exponent = codes >> mantissa_bits & (1 << exponent_bits) - 1
    mantissa = (codes & (1 << mantissa_bits) - 1) / 2.0**mantissa_bits
    bias = (1 << exponent_bits - 1) - 1
    size = np.where(
        exponent == 0, mantissa * 2.0 ** (1 - bias), (1 + mantissa) * 2.0 ** (exponent - bias)
    )
    return np.where(codes >> exponent_bits + mantissa_bits & 1, -size, size)


def e4m3(codes: Array) -> Wide:
    return small_float(codes, 4, 3)


def e2m1(codes: Array) -> Wide:
    return small_float(codes, 2, 1)


def ue8m0(codes: Array) -> Wide:
    return 2.0 ** (codes.astype(np.float64) - 127)


def nibbles(raw: Raw) -> Raw:
    """The low four bits of each byte, then the high ones."""
    return np.stack([raw & 15, raw >> 4], axis=-1).reshape(*raw.shape[:-1], -1)


def codes_of(chance: np.random.Generator, *shape: int) -> Raw:
    """Any patterns of e4m3 but its NaN."""
    codes = chance.integers(0, 256, shape, np.uint8)
    codes[codes & 0x7F == 0x7F] = 0x38
    return codes


def exact_bf16(values: Wide) -> NDArray[np.uint16]:
    """The patterns of values that are a bf16 each."""
    single = values.astype(np.float32)
    assert np.array_equal(single.astype(np.float64), values)
    bits = single.view(np.uint32)
    assert not np.any(bits & 0xFFFF)
    return (bits >> 16).astype(np.uint16)


def split(page: Raw, *sizes: int) -> list[Raw]:
    """Consecutive regions, of so many bytes each."""
    ends = np.cumsum(sizes)
    assert ends[-1] <= page.size
    return [page[end - size : end] for end, size in zip(ends, sizes, strict=True)]


def converted(src: Descriptor, page: Raw, dst: Descriptor, *, allow_lossy: bool = False) -> Raw:
    """The destination's page after a plan for one block was proved and carried out."""
    blocks = Blocks({0: [SRC_BLOCK]}, {0: [DST_BLOCK]}, src.groups[0].tokens_per_block)
    plan = Pair.compile(src, dst, allow_lossy=allow_lossy).plan(blocks)
    prove(plan, src, dst, blocks)
    before, after = blank(src), blank(dst)
    size = src.pools[0].block_bytes
    assert page.size <= size
    before["kv"][SRC_BLOCK * size :][: page.size] = page
    execute(plan, before, after)
    found = after["kv"].reshape(-1, dst.pools[0].block_bytes)
    assert np.all(np.delete(found, DST_BLOCK, axis=0) == 0xA5)
    block: Raw = found[DST_BLOCK]
    return block


# --- without a loss


def test_584_to_bf16() -> None:
    chance = np.random.default_rng(1)
    codes = codes_of(chance, STATES, 448)
    rope = chance.integers(0, 1 << 16, (STATES, 64), np.uint16)
    scales = chance.integers(9, 245, (STATES, 8), np.uint8)
    rows = np.concatenate([codes, rope.view(np.uint8)], axis=1)
    page = np.concatenate([rows.reshape(-1), scales.reshape(-1)])
    found = converted(formats.v4_c4(ROWS), page, formats.v4_c4_bf16(ROWS))
    row = found.view(np.uint16)[: STATES * 512].reshape(STATES, 512)
    values = e4m3(codes) * np.repeat(ue8m0(scales[:, :7]), 64, axis=1)
    assert np.array_equal(row[:, :448], exact_bf16(values))
    assert np.array_equal(row[:, 448:], rope)


def test_528_to_bf16() -> None:
    chance = np.random.default_rng(2)
    codes, scales = codes_of(chance, STATES, 512), chance.integers(9, 245, (STATES, 16), np.uint8)
    page = np.concatenate([codes.reshape(-1), scales.reshape(-1)])
    roles = regions([[Field("latent", "bf16", "D", 512)]], [("N", STATES)])
    dst = described("mla", roles, page_bytes(roles), ROWS, PLAIN, tokens_per_state=(4, 1))
    found = converted(formats.v41_mxfp8(ROWS), page, dst)
    values = e4m3(codes) * np.repeat(ue8m0(scales), 32, axis=1)
    assert np.array_equal(found.view(np.uint16).reshape(STATES, 512), exact_bf16(values))


def nvfp4_page(chance: np.random.Generator) -> tuple[Raw, list[Wide]]:
    """`[K][K's scales][V][V's scales]`, and what K and V are without a layer's scale."""
    page, values = [], []
    for _ in "kv":
        elements = chance.integers(0, 256, (2, 4, 32), np.uint8)
        scales = codes_of(chance, 2, 4, 4) & 0x7F
        page += [elements.reshape(-1), scales.reshape(-1)]
        values.append(e2m1(nibbles(elements)) * np.repeat(e4m3(scales), 16, axis=-1))
    return np.concatenate(page), values


def cells(found: Raw, dtype: str) -> list[Array]:
    """K and V of `[K V]` for each head and token."""
    cell = found.view(dtype).reshape(2, 4, 2, 64)
    return [cell[:, :, 0], cell[:, :, 1]]


@pytest.mark.parametrize(
    ("has_scales", "k", "v"), [(False, 1.0, 1.0), (True, 0.25, 2.0**20), (True, 2.0**-7, 1.0)]
)
def test_nvfp4_to_bf16(has_scales: bool, k: float, v: float) -> None:
    page, values = nvfp4_page(np.random.default_rng(3))
    src = formats.nvfp4(k=k, v=v, shape=HEADS)
    if not has_scales:
        src = regroup(src, codec=Codec("block_scaled"))
    found = cells(converted(src, page, formats.plain(shape=HEADS)), "<u2")
    for held, of_side, scale in zip(found, values, (k, v), strict=True):
        assert np.array_equal(held, exact_bf16(of_side * scale))


def test_nvfp4_under_a_scale_that_is_no_power_of_two_is_rounded() -> None:
    page, values = nvfp4_page(np.random.default_rng(4))
    src, dst = formats.nvfp4(k=ODD[0], v=ODD[1], shape=HEADS), formats.plain(shape=HEADS)
    with pytest.raises(Refused, match="losses are not allowed here"):
        Pair.compile(src, dst)
    found = cells(converted(src, page, dst, allow_lossy=True), "<u2")
    for held, of_side, scale in zip(found, values, ODD, strict=True):
        bits = (of_side.astype(np.float32) * np.float32(scale)).view(np.uint32).astype(np.int64)
        assert np.array_equal(held, bits + 0x7FFF + (bits >> 16 & 1) >> 16)
    exact = cells(converted(src, page, formats.plain("f32", HEADS)), "<f4")
    for held, of_side, scale in zip(exact, values, ODD, strict=True):
        assert np.array_equal(held, of_side.astype(np.float32) * np.float32(scale))


def test_int4_to_f32() -> None:
    chance = np.random.default_rng(5)
    elements = chance.integers(0, 256, (2, 4, 2, 32), np.uint8)
    scales = chance.uniform(1e-3, 1, (2, 4, 2, 1)).astype(np.float32)
    page = np.concatenate([elements, scales.view(np.uint8)], axis=-1).reshape(-1)
    found = converted(formats.int4(False, HEADS), page, formats.plain("f32", HEADS))
    patterns = scales.view(np.uint32)
    steps, zeros = (patterns & 0xFFFFFFF0).view(np.float32), (patterns & 15).astype(np.float32)
    due = (nibbles(elements).astype(np.float32) - zeros) * steps
    assert np.array_equal(found.view(np.float32).reshape(2, 4, 2, 64), due)


# --- with a loss


def nearest(values: Single, steps: Wide) -> Raw:
    """The code of the nearest of ascending steps, the even one of two; signs are left out."""
    apart = np.abs(np.abs(values.astype(np.float64))[..., None] - steps)
    apart = np.append(apart, np.full((*values.shape, 1), np.inf), axis=-1)
    code = apart.argmin(axis=-1)[..., None]  # the lower of two
    is_tie = np.take_along_axis(apart, code, -1) == np.take_along_axis(apart, code + 1, -1)
    return np.asarray(code + (is_tie & (code % 2 == 1)), np.uint8)[..., 0]


def by(values: Single, scales: Array) -> Single:
    """Quotients, each a binary32."""
    return np.divide(values, scales.astype(np.float32), dtype=np.float32)


E2M1 = e2m1(np.arange(8))
E4M3 = e4m3(np.arange(0x7F))


def per_token_page(chance: np.random.Generator) -> tuple[Raw, list[Single]]:
    """`[K i8][f32][V i8][f32]` for each head and token, and what K and V are."""
    elements = chance.integers(-128, 128, (2, 4, 2, 64), np.int8)
    elements[0, 1, 0, :32] = 0
    scales = (2.0 ** chance.uniform(-9, 3, (2, 4, 2, 1))).astype(np.float32)
    raw = np.concatenate([elements.view(np.uint8), scales.view(np.uint8)], axis=-1)
    values = elements.astype(np.float32) * scales
    return raw.reshape(-1), [values[:, :, 0], values[:, :, 1]]


def quotients(values: Single, share: int, largest: float) -> Single:
    """For each group its peak by the largest element; 1 where there is none."""
    peaks = np.abs(values).reshape(2, 4, -1, share).max(axis=-1)
    found = by(peaks, np.array(largest))
    return np.where(found == 0, np.float32(1), found)


def test_per_token_head_to_powers_of_two() -> None:
    page, values = per_token_page(np.random.default_rng(6))
    src, dst = formats.per_token_head(shape=HEADS), formats.ultraquant(False, HEADS)
    with pytest.raises(Refused, match="losses are not allowed here"):
        Pair.compile(src, dst)
    found = converted(src, page, dst, allow_lossy=True).reshape(2, 4, 2, 34)
    for side, of_side in enumerate(values):
        scales = np.ceil(np.log2(quotients(of_side, 32, 6).astype(np.float64)))
        assert np.array_equal(found[:, :, side, 32:], (scales + 127).astype(np.uint8))
        reduced = by(of_side, np.repeat(2.0**scales, 32, axis=-1))
        due = nearest(reduced, E2M1) | np.where(np.signbit(reduced), 8, 0).astype(np.uint8)
        assert np.array_equal(nibbles(found[:, :, side, :32]), due)


@pytest.mark.parametrize(("k", "v"), [(1.0, 1.0), ODD])
def test_per_token_head_to_nvfp4(k: float, v: float) -> None:
    page, values = per_token_page(np.random.default_rng(7))
    dst = formats.nvfp4(True, k, v, HEADS)
    found = converted(formats.per_token_head(shape=HEADS), page, dst, allow_lossy=True)
    k_data, k_scales, v_data, v_scales = split(found, 256, 32, 256, 32)
    # V's scale of token t and group s is at 4 * s + t in the one tile that a head has.
    by_token = [k_scales.reshape(2, 4, 4), v_scales.reshape(2, 4, 4).swapaxes(1, 2)]
    for of_side, scales, data, layer in zip(
        values, by_token, (k_data, v_data), (k, v), strict=True
    ):
        reduced = by(of_side, np.array(layer))
        of_groups = quotients(reduced, 16, 6)
        codes = np.maximum(nearest(of_groups, E4M3), 1)
        assert np.array_equal(scales, codes)
        reduced = by(reduced, np.repeat(e4m3(codes), 16, axis=-1))
        due = nearest(reduced, E2M1) | np.where(np.signbit(reduced), 8, 0).astype(np.uint8)
        assert np.array_equal(nibbles(data.reshape(2, 4, 32)), due)


def test_per_token_head_to_binary32_scales_of_groups() -> None:
    page, values = per_token_page(np.random.default_rng(8))
    fields = [
        [Field(side, "e4m3", "D", 64), Field(f"{side}_group_scale", "f32", "G", 4)] for side in "kv"
    ]
    roles = regions(fields, [("H", 2), ("N", 4)])
    dst = described("full", roles, page_bytes(roles), HEADS, Codec("block_scaled"))
    found = converted(formats.per_token_head(shape=HEADS), page, dst, allow_lossy=True)
    for of_side, region in zip(values, split(found, 640, 640), strict=True):
        row = region.reshape(2, 4, 80)
        scales = quotients(of_side, 16, 448)
        held = np.ascontiguousarray(row[..., 64:]).view(np.float32)
        assert np.array_equal(held, scales)
        reduced = by(of_side, np.repeat(scales, 16, axis=-1))
        due = nearest(reduced, E4M3) | np.where(np.signbit(reduced), 0x80, 0).astype(np.uint8)
        assert np.array_equal(row[..., :64], due)


def test_per_token_head_to_int4() -> None:
    page, values = per_token_page(np.random.default_rng(9))
    dst = formats.int4(False, HEADS)
    found = converted(formats.per_token_head(shape=HEADS), page, dst, allow_lossy=True)
    cell = found.reshape(2, 4, 2, 36)
    for side, of_side in enumerate(values):
        least, most = of_side.min(axis=-1), of_side.max(axis=-1)
        patterns = ((most - least) / np.float32(15)).view(np.uint32) & 0xFFFFFFF0
        steps = patterns.view(np.float32)
        zeros = np.clip(np.rint(-least / steps), 0, 15)
        held = np.ascontiguousarray(cell[:, :, side, 32:]).view(np.uint32)[..., 0]
        assert np.array_equal(held, patterns | zeros.astype(np.uint32))
        due = np.clip(np.rint(of_side / steps[..., None] + zeros[..., None]), 0, 15)
        assert np.array_equal(nibbles(cell[:, :, side, :32]), due.astype(np.uint8))
