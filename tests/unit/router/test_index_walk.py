"""Walks over keys: who holds how much, from any start, in windows, under claims."""

from support.index_table import parted
from transload_router.core.index.walk import (
    claimed_onward,
    held_onward,
    held_prefix,
    loadable_ends,
)

KEYS = [10, 11, 12, 13, 14]


def test_held_prefix_parts_owners_where_they_end() -> None:
    table = parted({10: 0b111, 11: 0b011, 12: 0b001, 13: 0b111})
    assert held_prefix(table, KEYS, 0b111, 5) == [(0b100, 1), (0b010, 2), (0b001, 4)]


def test_held_prefix_leaves_out_who_holds_nothing() -> None:
    assert held_prefix(parted({10: 0b10}), KEYS, 0b11, 5) == [(0b10, 1)]
    assert held_prefix(parted({11: 0b10}), KEYS, 0b11, 5) == []
    assert held_prefix(parted({}), KEYS, 0b11, 5) == []


def test_held_prefix_ends_with_the_blocks_that_count() -> None:
    table = parted(dict.fromkeys(KEYS, 0b1))
    assert held_prefix(table, KEYS, 0b1, 5) == [(0b1, 5)]
    assert held_prefix(table, KEYS, 0b1, 2) == [(0b1, 2)]
    assert held_prefix(table, KEYS, 0b1, 0) == []


def test_walks_go_through_parts() -> None:
    keys = [key << 56 | key for key in (255, 3, 3, 0, 128)]
    table = parted(dict(zip(keys, (0b11, 0b11, 0b11, 0b01, 0b01), strict=True)))
    assert held_prefix(table, keys, 0b11, 5) == [(0b10, 3), (0b01, 5)]
    assert held_onward([table], keys, [(0b11, 0)], 5) == [(0b10, 3), (0b01, 5)]
    assert sorted(claimed_onward(table, keys, [(0b11, 0)], 5)) == [(0b01, 5), (0b10, 3)]


def test_held_onward_from_different_starts() -> None:
    cpu = parted({10: 0b001, 12: 0b110, 13: 0b010})
    reach = held_onward([cpu], KEYS, [(0b001, 0), (0b010, 2), (0b100, 2)], 5)
    assert sorted(reach) == [(0b001, 1), (0b010, 4), (0b100, 3)]


def test_held_onward_takes_a_block_from_any_table() -> None:
    reach = held_onward([parted({10: 1, 12: 1}), parted({11: 1})], KEYS, [(1, 0)], 5)
    assert reach == [(1, 3)]


def test_held_onward_keeps_starts_that_lead_nowhere() -> None:
    assert held_onward([parted({})], KEYS, [(0b01, 0), (0b10, 3)], 5) == [(0b10, 3)]
    assert held_onward([parted({})], KEYS, [(0b10, 7)], 5) == [(0b10, 7)]
    assert held_onward([parted({})], KEYS, [], 5) == []


def test_held_onward_jumps_to_the_next_start() -> None:
    assert held_onward([parted({14: 0b10})], KEYS, [(0b01, 0), (0b10, 4)], 5) == [(0b10, 5)]


def test_claims_are_found_by_halving() -> None:
    claimed = parted({10: 0b111, 11: 0b111, 12: 0b011, 13: 0b010, 14: 0b010})
    reach = claimed_onward(claimed, KEYS, [(0b111, 0)], 5)
    assert sorted(reach) == [(0b001, 3), (0b010, 5), (0b100, 2)]


def test_claims_count_from_where_blocks_end() -> None:
    claimed = parted({12: 0b01, 13: 0b01})
    assert sorted(claimed_onward(claimed, KEYS, [(0b11, 2)], 5)) == [(0b01, 4), (0b10, 2)]
    assert claimed_onward(claimed, KEYS, [(0b11, 0)], 5) == []
    assert claimed_onward(claimed, KEYS, [(0b01, 5)], 5) == [(0b01, 5)]


def test_full_attention_ends_at_the_first_gap() -> None:
    assert loadable_ends([0b11, 0b01, 0b11], 0b11, None) == [0b11, 0b11, 0b01, 0b01]


def test_a_window_needs_its_last_blocks() -> None:
    # Blocks 0, 2, 3 and 4 are held; a window of two blocks.
    assert loadable_ends([1, 0, 1, 1, 1], 1, 2) == [1, 1, 0, 0, 1, 1]
    assert loadable_ends([1, 1, 0, 1, 1], 1, 3) == [1, 1, 1, 0, 0, 0]
    assert loadable_ends([0, 1, 0], 1, 1) == [1, 0, 1, 0]


def test_windows_of_every_width_beside_the_plain_definition() -> None:
    masks = [0b101, 0b111, 0b011, 0b110, 0b111, 0b111, 0b101, 0b111, 0b010, 0b111]
    for width in range(1, 12):
        expected = []
        for end in range(len(masks) + 1):
            able = 0b111
            for mask in masks[max(0, end - width) : end]:
                able &= mask
            expected.append(able)
        assert loadable_ends(masks, 0b111, width) == expected
