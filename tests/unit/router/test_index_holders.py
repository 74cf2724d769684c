"""Tables and slots: bits go where they belong, and come back when they were swept."""

from support.index_table import whole
from transload_router.core.index.holders import _MAX_MEMO, Holders

GPU = ("GPU", 0)


def test_join_and_leave() -> None:
    holders = Holders()
    one, two = holders.take_slot(), holders.take_slot()
    assert (one.bit, two.bit) == (1, 2)
    table = holders.open(GPU)
    holders.join(table, [5, 6], one)
    holders.join(table, [6, 7], two)
    assert whole(table) == {5: 1, 6: 3, 7: 2}
    holders.leave(table, 6, one.bit)
    holders.leave(table, 7, two.bit)
    assert whole(table) == {5: 1, 6: 2}
    # A bit that is not set, a key that is not there.
    holders.leave(table, 6, one.bit)
    holders.leave(table, 9, one.bit)
    assert whole(table) == {5: 1, 6: 2}


def test_wide_masks_are_shared() -> None:
    holders = Holders()
    slots = [holders.take_slot() for _ in range(80)]
    table = holders.open(GPU)
    for slot in slots:
        holders.join(table, [1, 2, 3], slot)
    masks = whole(table)
    assert masks[1] == (1 << 80) - 1
    assert masks[1] is masks[2] is masks[3]


def test_memos_are_bounded() -> None:
    holders = Holders()
    slots = [holders.take_slot() for _ in range(14)]
    table = holders.open(GPU)
    # Every subset of the slots is a mask of its own.
    for number, slot in enumerate(slots):
        holders.join(table, [key for key in range(1 << 14) if key >> number & 1], slot)
    assert whole(table) == {key: key for key in range(1, 1 << 14)}
    assert len(holders._memo) <= _MAX_MEMO
    assert all(len(slot.joined) <= _MAX_MEMO for slot in slots)


def test_a_retired_bit_is_used_again_only_when_swept() -> None:
    holders = Holders()
    slot = holders.take_slot()
    table = holders.open(GPU)
    names: dict[int | bytes, int] = {b"a": 5, b"b": 6, b"c": 7}
    holders.join(table, list(names.values()), slot)
    holders.num_blocks = 3
    holders.retire(slot, [(GPU, names)])
    assert holders.take_slot().bit == 2
    assert holders.sweep(2) == 0
    assert (len(whole(table)), holders.num_blocks, holders.num_retired) == (1, 1, 1)
    assert holders.take_slot().bit == 4
    assert holders.sweep(10) == 9
    assert holders.tables == {}
    assert holders.take_slot().bit == 1


def test_a_slot_without_pools_is_free_at_once() -> None:
    holders = Holders()
    holders.retire(holders.take_slot(), [])
    assert holders.take_slot().bit == 1


def test_tables_live_as_long_as_pools_use_them() -> None:
    holders = Holders()
    one, two = holders.take_slot(), holders.take_slot()
    assert holders.open(GPU) is holders.open(GPU)
    holders.retire(one, [(GPU, {})])
    holders.sweep(10)
    assert GPU in holders.tables
    holders.retire(two, [(GPU, {})])
    holders.sweep(10)
    assert holders.tables == {}
