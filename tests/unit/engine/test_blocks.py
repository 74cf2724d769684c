"""The pool: what is taken next, what can be hit, which events are written."""

import pytest

from transload_engine.core.blocks import Block, BlockPool
from transload_engine.core.events import AllBlocksCleared, BlockRemoved

A, B = b"a" * 32, b"b" * 32
A_NAME = int.from_bytes(b"a" * 8, "big")


def ids(blocks: list[Block]) -> list[int]:
    return [block.block_id for block in blocks]


def test_the_null_block_is_never_taken() -> None:
    pool = BlockPool(4)
    assert pool.num_free == 3
    assert ids(pool.take(3)) == [1, 2, 3]
    assert pool.usage == 1.0


def test_more_than_is_free_is_refused() -> None:
    pool = BlockPool(3)
    with pytest.raises(ValueError, match="3 blocks asked for, 2 are free"):
        pool.take(3)
    assert pool.num_free == 2


def test_a_pool_of_one_block_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2 blocks"):
        BlockPool(1)


def test_blocks_without_content_are_taken_again_first_and_in_their_order() -> None:
    pool = BlockPool(5)
    first, second = pool.take(2)
    pool.release([second, first])
    assert ids(pool.take(4)) == [2, 1, 3, 4]


def test_blocks_with_content_are_taken_last_and_in_the_order_of_their_release() -> None:
    pool = BlockPool(5)
    first, second = pool.take(2)
    pool.store(first, A)
    pool.store(second, B)
    pool.release([second, first])
    assert ids(pool.take(4)) == [3, 4, 2, 1]


def test_a_hit_takes_a_free_block_out_of_the_queue_until_all_users_are_gone() -> None:
    pool = BlockPool(3)
    (block,) = pool.take(1)
    pool.store(block, A)
    pool.release([block])
    found = pool.find(A)
    assert found is block
    pool.hold([found])
    pool.hold([found])
    assert pool.num_free == 1
    pool.release([found])
    assert pool.num_free == 1
    pool.release([found])
    assert pool.num_free == 2


def test_taking_a_block_for_other_content_is_told_once_for_each_copy() -> None:
    pool = BlockPool(3)
    blocks = pool.take(2)
    for block in blocks:
        pool.store(block, A)
    assert pool.find(A) is blocks[0]
    pool.release(blocks)
    pool.take(1)
    assert pool.find(A) is blocks[1]
    pool.take(1)
    assert pool.find(A) is None
    gone = BlockRemoved(block_hashes=[A_NAME], medium="GPU", group_idx=0)
    assert pool.take_events() == [gone, gone]
    assert pool.take_events() == []


def test_names_can_be_raw_bytes() -> None:
    assert BlockPool(2, has_int_names=False).name(A) == A
    assert BlockPool(2).name(A) == A_NAME


def test_nothing_is_cleared_while_a_block_is_held() -> None:
    pool = BlockPool(3)
    (block,) = pool.take(1)
    pool.store(block, A)
    assert not pool.clear()
    assert pool.find(A) is block
    pool.release([block])
    assert pool.clear()
    assert pool.find(A) is None
    assert pool.take_events() == [AllBlocksCleared()]
    pool.take(2)
    assert pool.take_events() == []


def test_without_events_none_are_kept() -> None:
    pool = BlockPool(2, has_events=False)
    assert pool.clear()
    assert pool.take_events() == []
