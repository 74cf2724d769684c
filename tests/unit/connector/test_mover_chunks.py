"""A plan in chunks: which blocks are read when, and where their pieces go."""

from transload_abi.plan import Batch
from transload_abi.plan.types import Sequence as Pieces
from transload_abi.wire.limits import MAX_RANGES
from transload_connector.transports.mover_chunks import Chunk, chunks


def _batch(*sequences: tuple[int, int, int], parts: int = 1) -> Batch:
    return Batch(0, (), (), parts, 1, tuple(Pieces(*each) for each in sequences))


def _pieces(chunk: Chunk) -> list[list[Pieces]]:
    return [list(batch.sequences) for batch in chunk.batches]


def test_pieces_count_the_blocks_that_are_read() -> None:
    (chunk,) = chunks([_batch((3, 40, 2), (7, 20, 1))], 16)
    assert chunk.blocks == ((3, 2), (7, 1))
    assert chunk.num_blocks == 3
    assert _pieces(chunk) == [[(0, 40, 2), (2, 20, 1)]]


def test_pieces_are_cut_where_chunks_end() -> None:
    first, second, third = chunks([_batch((3, 40, 5))], 2)
    assert [each.blocks for each in (first, second, third)] == [((3, 2),), ((5, 2),), ((7, 1),)]
    assert _pieces(first) == [[(0, 40, 2)]]
    assert _pieces(second) == [[(0, 42, 2)]]
    assert _pieces(third) == [[(0, 44, 1)]]


def test_parts_of_a_block_are_read_with_it() -> None:
    """Pieces 5 to 12 of blocks of four: the last of block 1, all of 2, the first of 3."""
    first, second = chunks([_batch((7, 0, 6), parts=4)], 2)
    assert first.blocks == ((1, 2),)
    assert _pieces(first) == [[(3, 0, 5)]]
    assert second.blocks == ((3, 1),)
    assert _pieces(second) == [[(0, 5, 1)]]


def test_batches_share_what_both_read() -> None:
    whole, windowed = _batch((0, 10, 8)), _batch((2, 30, 1))
    first, second = chunks([whole, windowed], 4)
    assert [first.blocks, second.blocks] == [((0, 4),), ((4, 4),)]
    assert _pieces(first) == [[(0, 10, 4)], [(2, 30, 1)]]
    assert _pieces(second) == [[(0, 14, 4)], []]


def test_a_read_has_no_more_ranges_than_a_message_may_have() -> None:
    apart = _batch(*((2 * at, 3 * at, 1) for at in range(MAX_RANGES + 1)))
    first, second = chunks([apart], 1 << 20)
    assert len(first.blocks) == MAX_RANGES
    assert second.blocks == ((2 * MAX_RANGES, 1),)
    assert _pieces(second) == [[(0, 3 * MAX_RANGES, 1)]]


def test_nothing_to_move_is_nothing_to_read() -> None:
    assert chunks([_batch()], 4) == []
