"""Blocks and pages that are copied whole, and when they may not be."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from support.abi_latents import packed
from support.abi_moves import regroup, with_heads
from support.abi_placements import PLACEMENTS, Shape
from transload_abi.canonical import canonical
from transload_abi.plan import Blocks, Pair, num_bytes, num_runs, regions, run_lengths
from transload_abi.proof import prove
from transload_abi.types import Descriptor, Group

NONE, ROWS = "none", "fp8_ds_mla_656"


def lengths(
    src: Descriptor, dst: Descriptor, ids: list[int], num_tokens: int | None = None
) -> dict[int, int]:
    tokens = src.groups[0].tokens_per_block
    blocks = Blocks({0: ids}, {0: ids}, num_tokens or tokens * len(ids))
    plan = Pair.compile(src, dst).plan(blocks)
    prove(plan, src, dst, blocks)
    return dict(run_lengths(plan))


def test_a_hundred_layers_are_one_region_and_one_run_a_block() -> None:
    d = packed((NONE, 40), (ROWS, 60), blocks=400_000, page_pad=8, block_pad=40)
    (region,) = regions(d)
    assert region == ("kv", 0, d.pools[0].num_bytes)
    chance = random.Random(4)
    ids = chance.sample(range(1, 400_000), 100)
    pair = Pair.compile(d, d)
    assert len(pair.templates) == 1
    plan = pair.plan(Blocks({0: ids}, {0: chance.sample(range(1, 400_000), 100)}, 6400))
    assert num_runs(plan) <= 100
    assert num_bytes(plan) == 100 * d.pools[0].block_bytes


def test_equal_places_are_one_page_and_move_once() -> None:
    once = regroup(PLACEMENTS["LBNHC"](Shape(layers=1)))
    (group,) = once.groups
    k, v = group.roles
    spelled = regroup(once, places=group.places * 2, roles=(k, replace(v, place=1)))
    apart = PLACEMENTS["sglang"](Shape(layers=1))
    for src, dst in ((spelled, spelled), (spelled, once), (spelled, apart), (apart, spelled)):
        moved = lengths(src, dst, [1, 2])
        assert sum(size * count for size, count in moved.items()) == 2 * 2048
        plain = Pair.compile(canonical(src), canonical(dst))
        assert Pair.compile(src, dst).templates == plain.templates


def test_blocks_move_with_their_pads() -> None:
    d = packed((NONE, 2), (ROWS, 1), tokens=2, page_pad=8, block_pad=40)
    block = d.pools[0].block_bytes
    assert lengths(d, d, [1, 2, 9]) == {2 * block: 1, block: 1}


def change(d: Descriptor, at: int, **fields: object) -> Descriptor:
    groups = list(d.groups)
    groups[at] = replace(groups[at], **fields)
    return replace(d, groups=tuple(groups))


def no_block_bytes(d: Descriptor) -> Descriptor:
    return replace(d, pools=(replace(d.pools[0], block_bytes=0),))


def swapped(d: Descriptor) -> Descriptor:
    """The two layers of the first group change places."""
    return change(d, 0, layers=d.groups[0].layers[::-1])


def rebuilt(d: Descriptor) -> Descriptor:
    return change(d, 1, transferable=False)


def apart(d: Descriptor) -> Descriptor:
    """The last group begins eight bytes later, in the pads."""
    (place,) = d.groups[1].places
    return change(d, 1, places=(replace(place, offset=place.offset + 8),))


NO_WHOLE_BLOCKS: list[Callable[[Descriptor], Descriptor]] = [
    no_block_bytes,
    swapped,
    rebuilt,
    apart,
]


@pytest.mark.parametrize("bend", NO_WHOLE_BLOCKS, ids=lambda bend: bend.__name__)
@pytest.mark.parametrize("is_source", [False, True])
def test_blocks_that_differ_anywhere_are_not_copied_whole(
    bend: Callable[[Descriptor], Descriptor], is_source: bool
) -> None:
    d = packed((NONE, 2), (ROWS, 1), tokens=2, block_pad=40)
    sides = (bend(d), d) if is_source else (d, bend(d))
    block = d.pools[0].block_bytes
    assert block not in lengths(*sides, [3])
    assert sum(a * b for a, b in lengths(*sides, [3]).items()) < block


@pytest.mark.parametrize("is_source", [False, True])
def test_blocks_that_lie_in_two_pools_on_one_side_are_not_copied_whole(is_source: bool) -> None:
    d = PLACEMENTS["trtllm"](Shape(layers=1))
    (group,) = d.groups
    (place,) = group.places
    roles = (group.roles[0], replace(group.roles[1], place=1))
    together = regroup(d, places=(replace(place, page_bytes=0),) * 2, roles=roles)
    others = replace(place, pools=("v",), page_bytes=0)
    apart = regroup(together, places=(together.groups[0].places[0], others))
    apart = replace(apart, pools=(d.pools[0], replace(d.pools[0], id="v")))
    sides = (apart, together) if is_source else (together, apart)
    assert lengths(*sides, [3]) == {d.pools[0].block_bytes // 2: 2}


def test_a_table_of_its_own_does_not_hinder_whole_blocks() -> None:
    d = packed((NONE, 2), tokens=2, block_pad=8)
    (group,) = d.groups
    other = replace(group, id="other", table=1, layers=(2, 3))
    both = replace(d, groups=(group, other), model=replace(d.model, num_layers=4))
    plan = Pair.compile(both, both).plan(Blocks({0: [1], 1: [2]}, {0: [3], 1: [4]}, 2))
    prove(plan, both, both)
    assert run_lengths(plan) == {d.pools[0].block_bytes: 2}


def test_fewer_layers_of_a_block_move_without_its_pads() -> None:
    src, dst = packed((NONE, 3), tokens=2, block_pad=40), packed((NONE, 2), tokens=2)
    dst = replace(dst, model=src.model)
    (place,) = dst.groups[0].places
    assert lengths(src, dst, [3]) == {2 * place.page_bytes: 1}
    assert lengths(dst, src, [3]) == {2 * place.page_bytes: 1}


# --- pages


def padded(d: Descriptor, pad: int) -> Descriptor:
    """Layers outermost, one layer; each page has a pad at its end."""
    (group,) = d.groups
    (place,) = group.places
    size = place.page_bytes + pad
    pool = replace(d.pools[0], num_bytes=size * d.pools[0].num_blocks, block_bytes=0)
    place = replace(place, block_stride=size, page_bytes=size)
    return replace(regroup(d, places=(place,)), pools=(pool,))


def test_consecutive_padded_pages_are_one_run() -> None:
    d = padded(PLACEMENTS["LBNHC"](Shape(layers=1)), 16)
    page = d.groups[0].places[0].page_bytes
    assert lengths(d, d, [1, 2, 4]) == {2 * page: 1, page: 1}


@pytest.mark.parametrize("pads", [(16, 24), (0, 16), (16, 0)])
def test_pads_of_other_sizes_stay(pads: tuple[int, int]) -> None:
    src, dst = (padded(PLACEMENTS["LBNHC"](Shape(layers=1)), pad) for pad in pads)
    page = src.groups[0].places[0].page_bytes - pads[0]
    assert lengths(src, dst, [1, 2]) == {page: 2}


def test_pads_stay_where_only_some_heads_move() -> None:
    src = padded(PLACEMENTS["LBHNC"](Shape(layers=1)), 16)
    dst = padded(with_heads(PLACEMENTS["LBHNC"](Shape(layers=1, heads=2)), 2, 4), 16)
    page = src.groups[0].places[0].page_bytes - 16
    assert lengths(src, dst, [1, 2]) == {page // 2: 2}


def test_pads_stay_where_pages_differ_inside() -> None:
    src, dst = (padded(PLACEMENTS[name](Shape(layers=1)), 16) for name in ("LBNHC", "LBHNC"))
    assert set(lengths(src, dst, [1])) == {64}


def test_pages_may_lie_elsewhere_in_another_pool() -> None:
    src = padded(PLACEMENTS["LBNHC"](Shape(layers=1)), 16)
    (place,) = src.groups[0].places
    pool = replace(src.pools[0], id="other", num_bytes=src.pools[0].num_bytes + 48)
    elsewhere = replace(place, pools=("other",), offset=48)
    dst = replace(regroup(src, places=(elsewhere,)), pools=(pool,))
    assert lengths(src, dst, [1, 2]) == {2 * place.page_bytes: 1}


def test_roles_that_are_converted_keep_a_page_from_moving_whole() -> None:
    src, dst = packed((ROWS, 1), tokens=2), packed((NONE, 1), tokens=2)
    pair = Pair.compile(src, dst, allow_lossy=True)
    (template,) = pair.templates
    assert (template.run_bytes, template.loops) == (128, ((2, 656, 1152),))
    group: Group = dst.groups[0]
    assert {each.role for lane in pair.lanes for each in lane.conversions} == {"latent"}
    assert template.dst.offset == group.roles[1].base_bits // 8
