"""Digits of one side that the other's do not divide, and scales of a row in digits of their own."""

import random
from collections.abc import Iterator, Sequence
from math import prod

import numpy as np
import pytest

from support.abi_pages import PLAIN, Shape, described, page_bytes
from support.wire_payloads import blank, tables, transfer
from transload_abi import oracle
from transload_abi.canonical import Term
from transload_abi.dtypes import DTYPES
from transload_abi.types import Codec, Descriptor, Role
from transload_connector.transports.kernel_calls_convert import convert_calls
from transload_connector.transports.kernel_calls_route import Route
from transload_connector.transports.mover import Mover, Request

TOKENS = 12
SIZE = 64
"""Elements of a row."""
GROUPS = 4
MODERATE = {"e4m3": (0x30, 0x40), "ue8m0": (120, 134)}
"""Codes of moderate numbers, first and end."""
APART = Route("kernel in scratch", "no loops walk N on both sides")
UNEVEN = Route("kernel in scratch", "the source's scales of a row do not lie at even distances")

Cuts = Sequence[tuple[str, int, int]]
"""Axis, div and extent of each digit, that of the least stride first."""

ROW: Cuts = (("D", 1, SIZE),)
TOKEN: Cuts = (("N", 1, TOKENS),)
BY_FOUR: Cuts = (("N", 4, 3), ("N", 1, 4))
BY_THREE: Cuts = (("N", 3, 4), ("N", 1, 3))
SWIZZLED: Cuts = (("G", 2, 2), ("G", 1, 2), *TOKEN)


def _role(name: str, dtype: str, shape: dict[str, int], cuts: Cuts, base: int) -> Role:
    bits = DTYPES[dtype].bits
    terms: list[Term] = []
    stride = bits
    for axis, div, extent in cuts:
        terms.append((axis, div, extent, stride))
        stride *= extent
    return Role(name, dtype, bits, shape, tuple(terms), base)


def _rows(dtype: str, cuts: Cuts, scales: tuple[str, Cuts] | None = None) -> Descriptor:
    """Latent rows, and their scales in a region behind them."""
    shape = {"N": TOKENS, "D": SIZE}
    roles = [_role("latent", dtype, shape, cuts, 0)]
    if scales is not None:
        base = TOKENS * SIZE * DTYPES[dtype].bits
        shape = {"N": TOKENS, "G": GROUPS}
        roles.append(_role("latent_scale", scales[0], shape, scales[1], base))
    codec = Codec("block_scaled") if scales else PLAIN
    page = page_bytes(roles, 16)
    return described("mla", roles, page, Shape(1, TOKENS, SIZE, 1, 3), codec)


def _memory(d: Descriptor, seed: int) -> oracle.Memory:
    """Moderate numbers in every place."""
    chance = np.random.default_rng(seed)
    memory = oracle.blank(d)
    (group,) = d.groups
    for role in group.roles:
        count = TOKENS * role.shape.get("D", GROUPS) * d.pools[0].num_blocks
        if role.dtype in MODERATE:
            made = chance.integers(*MODERATE[role.dtype], count).astype(np.uint8)
        else:
            made = chance.integers(1, 100, count).astype(np.float32).view(np.uint8)
            if role.dtype == "bf16":
                made = made.reshape(-1, 4)[:, 2:].reshape(-1)
        first = role.base_bits // 8
        page = prod(role.shape.values()) * role.bits // 8
        blocks = memory["kv"].reshape(d.pools[0].num_blocks, -1)
        blocks[:, first : first + page] = made.reshape(-1, page)
    return memory


def _moved(src: Descriptor, dst: Descriptor, seed: int) -> Mover:
    """Values in the destination are those of the source, by the oracle's own addresses."""
    memory, found = _memory(src, seed), blank(dst)
    mover = Mover.compile(src, dst, allows_lossy=True)
    request = Request([tables(src, {0: [1]})], {0: [2]}, TOKENS)
    transfer(mover, request, [(src, memory, {0: [1]})], found)
    due = oracle.blank(dst)
    if not mover.conversions:
        for role in ("latent", "latent_scale")[: len(src.groups[0].roles)]:
            bits = oracle.read_elements(src, memory, "group", role, [1])
            oracle.write_elements(dst, due, "group", role, [2], bits)
    else:
        values = oracle.read_values(src, memory, "group", "latent", [1])
        oracle.write_values(dst, due, "group", "latent", [2], values)
    np.testing.assert_array_equal(found["kv"], due["kv"])
    return mover


def test_an_axis_that_sides_cut_apart_goes_by_scratch() -> None:
    src, dst = _rows("bf16", (*ROW, *BY_FOUR)), _rows("f32", (*ROW, *BY_THREE))
    mover = _moved(src, dst, 1)
    assert mover.conversions == {APART: 1}
    assert APART.why in mover.explain()


def test_an_axis_that_scales_cut_apart_goes_by_scratch() -> None:
    scales = (("G", 1, GROUPS), *BY_FOUR)
    src = _rows("e4m3", (*ROW, *BY_THREE), ("f32", scales))
    assert _moved(src, _rows("f32", (*ROW, *TOKEN)), 2).conversions == {APART: 1}


@pytest.mark.parametrize("scale", ["ue8m0", "f32"])
def test_swizzled_scales_go_by_scratch(scale: str) -> None:
    src = _rows("e4m3", (*ROW, *TOKEN), (scale, SWIZZLED))
    mover = _moved(src, _rows("f32", (*ROW, *TOKEN)), 3)
    assert mover.conversions == {UNEVEN: 1}
    assert UNEVEN.why in mover.explain()


def test_scales_are_swizzled_where_they_are_made() -> None:
    dst = _rows("e4m3", (*ROW, *TOKEN), ("f32", SWIZZLED))
    (route,) = _moved(_rows("f32", (*ROW, *TOKEN)), dst, 4).conversions
    assert route == Route("kernel in scratch", UNEVEN.why.replace("source", "destination"))


def test_no_loops_are_made_of_cuts_that_do_not_nest() -> None:
    src, dst = _rows("bf16", (*ROW, *BY_FOUR)), _rows("f32", (*ROW, *BY_THREE))
    (part,) = Mover.compile(src, dst, allows_lossy=True).parts
    ((family,),) = part.by_lane
    with pytest.raises(ValueError, match=r"latent: N is cut at \[1, 3, 4, 12\]"):
        next(convert_calls(family, ()))


def _digits(chance: random.Random, axis: str, extent: int) -> Iterator[tuple[str, int, int]]:
    div = 1
    while div < extent:
        left = extent // div
        step = chance.choice([each for each in range(2, left + 1) if left % each == 0])
        yield axis, div, step
        div *= step


def _cuts(chance: random.Random, *axes: tuple[str, int]) -> Cuts:
    cuts = [cut for axis in axes for cut in _digits(chance, *axis)]
    chance.shuffle(cuts)
    return cuts


def _any_rows(chance: random.Random, dtype: str, scale: str = "") -> Descriptor:
    in_rows = chance.random() < 0.7
    tokens = _cuts(chance, ("N", TOKENS))
    cuts = (*ROW, *tokens) if in_rows else _cuts(chance, ("N", TOKENS), ("D", SIZE))
    scales = (scale, _cuts(chance, ("N", TOKENS), ("G", GROUPS))) if scale else None
    return _rows(dtype, cuts, scales)


PAIRS = [
    (("bf16",), ("bf16",)),
    (("e4m3", "f32"), ("e4m3", "f32")),
    (("bf16",), ("f32",)),
    (("e4m3", "f32"), ("f32",)),
    (("e4m3", "ue8m0"), ("f32",)),
    (("e4m3", "e4m3"), ("f32",)),
    (("f32",), ("e4m3", "f32")),
    (("f32",), ("e4m3", "ue8m0")),
]
"""Copies first, then what kernels know, and what they do not."""


@pytest.mark.parametrize("pair", PAIRS)
def test_digits_of_any_order_and_extent(pair: tuple[tuple[str, ...], tuple[str, ...]]) -> None:
    chance = random.Random(str(pair))
    for seed in range(25):
        src, dst = (_any_rows(chance, *side) for side in pair)
        _moved(src, dst, seed)
