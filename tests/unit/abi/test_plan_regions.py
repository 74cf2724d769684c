"""What a transport registers."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from support.abi_latents import packed
from support.abi_moves import regroup
from support.abi_placements import LAYOUTS, PLACEMENTS, Shape
from transload_abi.plan import regions


@pytest.mark.parametrize("layout", [*LAYOUTS, "vllm_cpu", "rocm", "trtllm"])
@pytest.mark.parametrize("blocks", [3, 400_000])
def test_one_pool_is_one_region(layout: str, blocks: int) -> None:
    d = PLACEMENTS[layout](Shape(blocks=blocks))
    assert regions(d) == [("kv", 0, d.pools[0].num_bytes)]


def test_each_buffer_is_a_region() -> None:
    d = PLACEMENTS["sglang"](Shape(layers=3))
    assert regions(d) == [(pool.id, 0, pool.num_bytes) for pool in d.pools]


def test_a_region_begins_at_the_first_page_and_ends_with_the_last() -> None:
    d = PLACEMENTS["odd"](Shape(layers=2, blocks=5))
    (place,) = d.groups[0].places
    last = 4 * place.block_stride + place.layer_stride + place.page_bytes
    assert regions(d) == [("odd", 16, last)]


def test_pads_of_blocks_are_registered() -> None:
    d = packed(("none", 2), block_pad=40)
    assert regions(d) == [("kv", 0, d.pools[0].num_bytes)]


def test_places_far_apart_are_regions_of_their_own() -> None:
    d = PLACEMENTS["LBNHC"](Shape(layers=1, blocks=4))
    (group,) = d.groups
    (place,) = group.places
    roles = (group.roles[0], replace(group.roles[1], place=1))
    far = replace(place, offset=100_000)
    apart = regroup(d, places=(place, far), roles=roles)
    apart = replace(apart, pools=(replace(d.pools[0], num_bytes=200_000),))
    size = 4 * place.block_stride
    assert regions(apart) == [("kv", 0, size), ("kv", 100_000, size)]


def test_places_that_touch_are_one_region() -> None:
    d = PLACEMENTS["LBNHC"](Shape(layers=1, blocks=4))
    (group,) = d.groups
    (place,) = group.places
    size = 4 * place.block_stride
    roles = (group.roles[0], replace(group.roles[1], place=1))
    apart = regroup(d, places=(place, replace(place, offset=size)), roles=roles)
    apart = replace(apart, pools=(replace(d.pools[0], num_bytes=2 * size),))
    assert regions(apart) == [("kv", 0, 2 * size)]


def test_pages_without_pads_end_with_their_last_element() -> None:
    d = PLACEMENTS["LHBNC"](Shape(layers=1, blocks=4))
    d = replace(d, pools=(replace(d.pools[0], num_bytes=d.pools[0].num_bytes + 999),))
    assert regions(d) == [("kv", 0, d.pools[0].num_bytes - 999)]


def test_groups_that_do_not_travel_are_left_out() -> None:
    assert regions(regroup(PLACEMENTS["LBNHC"](Shape()), transferable=False)) == []


def test_pads_in_front_of_all_elements_are_left_out() -> None:
    d = PLACEMENTS["LHBNC"](Shape(layers=1, blocks=4))
    (group,) = d.groups
    roles = tuple(replace(role, base_bits=role.base_bits + 64) for role in group.roles)
    size = d.pools[0].num_bytes
    later = replace(regroup(d, roles=roles), pools=(replace(d.pools[0], num_bytes=size + 8),))
    assert regions(later) == [("kv", 8, size)]
