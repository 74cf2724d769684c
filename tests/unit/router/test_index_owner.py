"""What one owner remembers: pools, ghosts, what waits, and what its groups need of a hit."""

import pytest

from transload_router.core.index.holders import Holders
from transload_router.core.index.owner import MAX_GHOSTS, Awaited, Ghosts, Group, Owner
from transload_router.core.kv_events.events import CPU, GPU, Stored


def owner() -> tuple[Owner, Holders]:
    holders = Holders()
    return Owner(("e", 0), "m", 0, holders.take_slot()), holders


def test_ghosts_go_by_age() -> None:
    ghosts = Ghosts()
    for number in range(2 * MAX_GHOSTS + 1):
        ghosts.add(number, 1000 + number)
    assert ghosts.find(0) is None
    assert ghosts.find(MAX_GHOSTS) == 1000 + MAX_GHOSTS
    assert ghosts.find(2 * MAX_GHOSTS) == 1000 + 2 * MAX_GHOSTS
    assert len(ghosts) == MAX_GHOSTS + 1
    # The latest key of a name counts.
    ghosts.add(MAX_GHOSTS, 7)
    assert ghosts.find(MAX_GHOSTS) == 7


def test_names_wait_once_for_each_copy() -> None:
    awaited = Awaited()
    assert not awaited
    event = Stored([1, 2], None, [], 16, group_idx=1)
    awaited.add(1, event)
    awaited.add(1, event)
    assert awaited.cancel(1, (GPU, 0)) is False
    assert awaited.cancel(1, (GPU, 1)) is True
    assert awaited.take(1, 32) == []
    assert awaited.take(1, 16) == [event]
    assert awaited.take(1, 16) == []
    assert not awaited


def test_children_wait_for_their_parent() -> None:
    awaited = Awaited()
    small, large = Stored([3], 1, [0] * 16, 16), Stored([4, 5], 1, [0] * 64, 32)
    assert (awaited.add_child(small), awaited.add_child(large)) == (0, 0)
    assert awaited.num_children == 3
    assert awaited.take(1, 16) == [small]
    assert awaited.cancel(5, (GPU, 0)) is True
    assert awaited.cancel(4, (GPU, 0)) is False
    assert not awaited


def test_the_oldest_parents_give_up_their_children() -> None:
    awaited = Awaited()
    for parent in range(64):
        assert awaited.add_child(Stored([100 + parent, 200 + parent], parent, [0] * 2, 1)) == 0
    assert awaited.add_child(Stored([9999], 64, [0], 1)) == 2
    assert awaited.take(0, 1) == []
    assert len(awaited.take(1, 1)) == 1


@pytest.mark.parametrize(
    ("block_size", "window", "kind", "needed"),
    [
        (16, None, None, None),
        (16, None, "full_attention", None),
        (16, 128, "full_attention", None),
        (16, 1, "sliding_window", 1),
        (16, 17, "sliding_window", 1),
        (16, 18, "sliding_window", 2),
        (16, 4096, "sliding_window_mla", 256),
        (16, 33, None, 2),
        (528, None, "mamba", 1),
        (16, None, "chunked_local_attention", None),
    ],
)
def test_what_a_hit_needs(
    block_size: int, window: int | None, kind: str | None, needed: int | None
) -> None:
    one, _ = owner()
    assert one.show_group(0, block_size, window, kind)
    assert one.groups == {0: Group(0, block_size, needed)}
    assert not one.show_group(0, block_size, window, kind)


def test_the_largest_blocks_are_the_groups_own() -> None:
    one, holders = owner()
    assert one.show_group(0, 16, None, None)
    assert one.show_group(0, 64, None, None)
    assert not one.show_group(0, 16, None, None)
    one.forget_blocks(holders.take_slot())
    assert one.show_group(0, 16, None, None)


def test_a_name_is_good_in_all_pools_of_its_size() -> None:
    one, holders = owner()
    pool = one.pool(holders, (GPU, 0), 16)
    assert pool is not None
    assert one.pool(holders, (GPU, 0), 16) is pool
    pool.names[5] = 50
    one.pool(holders, (CPU, 0), 16)
    assert one.find(5, 16) == 50
    assert one.find(5, 32) is None
    assert (one.size_of(5, 0), one.size_of(6, 0)) == (16, None)


def test_the_layout_is_of_groups_and_lower_pools() -> None:
    one, holders = owner()
    one.lay_out()
    assert one.layout is None
    one.show_group(1, 32, None, None)
    one.show_group(0, 16, None, None)
    for place, size in (((CPU, 0), 256), ((CPU, 0), 16), (("NVM", 0), 16), ((GPU, 0), 16)):
        one.pool(holders, place, size)
    one.lay_out()
    groups = (Group(0, 16, None), Group(1, 32, None))
    assert one.layout == (groups, (((CPU, 0), 256), (("NVM", 0), 16)))
