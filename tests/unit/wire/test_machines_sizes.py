"""What a holder finds in what is asked of its handoffs."""

import pytest

from support.wire_sessions import SESSIONS, descriptor_of
from transload_abi.wire import messages as m
from transload_abi.wire.errors import BadRead
from transload_abi.wire.sizes import size_of

FOUND = descriptor_of(SESSIONS["control-stream"], "holder")
assert FOUND is not None
HOLDER = FOUND[1]
BLOCK_BYTES = 32
TABLES = (m.Table(0, 10, ((2, 3), (7, 1))),)


def measured(*blocks: m.Range, tables: tuple[m.Table, ...] = TABLES) -> int:
    wanted = m.Read(1, "h", HOLDER.groups[0].id, blocks)
    return size_of(HOLDER, wanted, tables)


def test_the_size_of_a_read() -> None:
    assert measured((0, 2), (5, 2), (8, 2)) == 6 * BLOCK_BYTES


@pytest.mark.parametrize(
    ("blocks", "null"),
    [
        (((1, 2),), 2),
        (((0, 10),), 2),
        (((4, 1),), 4),
        (((0, 2), (5, 3)), 7),
        (((7, 1),), 7),
    ],
)
def test_what_holds_nothing_is_not_read(blocks: tuple[m.Range, ...], null: int) -> None:
    with pytest.raises(BadRead, match=f"read.blocks: position {null} holds nothing"):
        measured(*blocks)


def test_positions_beyond_the_list() -> None:
    with pytest.raises(BadRead, match=r"read.blocks: the list has 10 blocks"):
        measured((0, 2), (8, 3))


def test_a_table_that_the_handoff_does_not_have() -> None:
    with pytest.raises(BadRead, match=r"read.group: the handoff has no table 0"):
        measured((0, 2), tables=(m.Table(1, 10),))


def test_a_group_that_the_holder_does_not_have() -> None:
    with pytest.raises(BadRead, match=r"read.group: "):
        size_of(HOLDER, m.Read(1, "h", "other", ((0, 1),)), TABLES)
