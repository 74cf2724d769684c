"""Which pieces move for which block lists, and which lists are refused."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from support.abi_moves import regroup, with_tokens
from support.abi_placements import PLACEMENTS, Shape
from transload_abi.errors import PlanError
from transload_abi.plan import Blocks, Pair
from transload_abi.types import Descriptor, Role


def cache(tokens: int = 4, blocks: int = 32, layout: str = "LBHNC", **fields: Any) -> Descriptor:
    d = PLACEMENTS[layout](Shape(layers=1, blocks=blocks, heads=1, tokens=tokens, size=8))
    return regroup(d, **fields)


def pieces(src: Descriptor, dst: Descriptor, blocks: Blocks) -> list[tuple[int, int, int]]:
    (batch,) = Pair.compile(src, dst).plan(blocks).batches
    return [(each.src, each.dst, each.num_pieces) for each in batch.sequences]


def lists(src: list[int], dst: list[int], num_tokens: int, first: int = 0) -> Blocks:
    return Blocks({0: src}, {0: dst}, num_tokens, first)


def refusal(src: Descriptor, dst: Descriptor, blocks: Blocks) -> str:
    with pytest.raises(PlanError) as error:
        Pair.compile(src, dst).plan(blocks)
    assert str(error.value).startswith(error.value.path)
    return str(error.value)


# --- re-blocking


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        (lists([4, 5, 6, 7], [9], 16), [(4, 36, 4)]),
        (lists([4, 5, 8, 7], [9], 16), [(4, 36, 2), (8, 38, 1), (7, 39, 1)]),
        (lists([4, 5, 6], [9], 9), [(4, 36, 3)]),
        (lists([4, 5, 6], [9], 12), [(4, 36, 3)]),
        (lists([1, 2, 3, 4, 5], [9, 2], 17), [(1, 36, 4), (5, 8, 1)]),
        (lists([1, 2, 3, 4, 5], [9, 2], 17, 16), [(5, 8, 1)]),
        (lists([5], [2], 17, 16), [(5, 8, 1)]),
        (lists([1, 2, 3, 4, 5], [2], 17, 16), [(5, 8, 1)]),
    ],
)
def test_small_blocks_into_large_ones(blocks: Blocks, expected: list[tuple[int, int, int]]) -> None:
    assert pieces(cache(4), cache(16, null_block=None), blocks) == expected


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        (lists([9], [4, 5, 6, 7], 16), [(36, 4, 4)]),
        (lists([9, 2], [1, 2, 3, 4, 5], 17), [(36, 1, 4), (8, 5, 1)]),
        (lists([9, 2], [1, 2, 3, 4, 5], 17, 8), [(38, 3, 2), (8, 5, 1)]),
        (lists([9, 2], [3, 4, 5], 17, 8), [(38, 3, 2), (8, 5, 1)]),
        (lists([9, 2], [3, 4, 5], 17, 12), [(39, 4, 1), (8, 5, 1)]),
        (lists([9, 2], [], 17, 20), []),
    ],
)
def test_large_blocks_into_small_ones(blocks: Blocks, expected: list[tuple[int, int, int]]) -> None:
    if blocks.first_token > blocks.num_tokens:
        blocks = blocks._replace(first_token=16, num_tokens=16, src={0: [9]})
    assert pieces(cache(16), cache(4), blocks) == expected


def test_blocks_meet_in_their_common_divisor() -> None:
    plan = Pair.compile(cache(12), cache(8)).plan(lists([5, 2], [1, 7, 4], 24))
    (batch,) = plan.batches
    assert (batch.src_parts, batch.dst_parts) == (3, 2)
    assert [tuple(each) for each in batch.sequences] == [
        (15, 2, 2),
        (17, 14, 1),
        (6, 15, 1),
        (7, 8, 2),
    ]


def test_nothing_is_asked_of_a_request_that_is_there() -> None:
    assert pieces(cache(), cache(), lists([1, 2], [3, 4], 8, 8)) == []
    assert pieces(cache(), cache(), lists([], [], 0)) == []


def test_ids_may_be_any_integers() -> None:
    import numpy as np

    ids = np.array([4, 5], np.int32)
    blocks = Blocks({0: ids}, {0: (7, 8)}, 8)  # type: ignore[dict-item]
    assert pieces(cache(), cache(), blocks) == [(4, 7, 2)]


def test_blocks_of_different_sizes_are_cut_where_pads_break_the_even_steps() -> None:
    small, large = cache(4), cache(8, layout="odd")
    found = pieces(small, large, lists([1, 2, 3, 4], [5, 6], 16))
    assert found == [(1, 10, 2), (3, 12, 2)]
    (template, *_) = Pair.compile(small, large).templates
    assert len(template.dst.part_offsets) == 2


# --- what is refused


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        (lists([1], [2], 5), "blocks.dst[0]: too short: local token 0 has no block"),
        (lists([1], [2, 3], 5), "blocks.src[0]: too short: local token 0 has no block"),
        (lists([1, 2], [3], 8), "blocks.dst[0]: too short: local token 0 has no block"),
        (lists([1, 2, 3], [4, 5], 8), "blocks.src[0]: 3 blocks for 8 tokens, which take 2"),
        (lists([1, 2], [3, 4, 5], 8), "blocks.dst[0]: 3 blocks for 8 tokens, which take 2"),
        (lists([1, 2], [3, 3], 8), "blocks.dst[0]: a block is given twice"),
        (lists([1, 32], [3, 4], 8), "blocks.src[0][1]: block 32: the pool has 32"),
        (lists([1, 2], [-1, 4], 8), "blocks.dst[0][0]: block -1: the pool has 32"),
        (lists([1, 0], [3, 4], 8), "blocks.src[0]: local token 4 is in the null block, and t"),
        (lists([2], [3, 4], 8, 2), "blocks.first_token: first_token 2 does not begin a block"),
        (lists([2], [3, 4], 8, 12), "tokens 12 to 8: 0 <= first_token <= num_tokens must hold"),
        (lists([2], [3, 4], 8, -4), "tokens -4 to 8: 0 <= first_token"),
        (lists([2], [3, 4], -1, -4), "tokens -4 to -1: 0 <= first_token"),
        (Blocks({}, {0: [1]}, 4), "blocks.src[0]: no block list for this table"),
        (Blocks({0: [1]}, {1: [1]}, 4), "blocks.dst[0]: no block list for this table"),
        (
            Blocks({0: [1.5]}, {0: [1]}, 4),  # type: ignore[list-item]
            "blocks.src[0]: block ids must be integers: 'float'",
        ),
    ],
)
def test_what_does_not_fit_is_refused(blocks: Blocks, message: str) -> None:
    assert refusal(cache(), cache(), blocks).startswith(message)


def test_the_source_may_give_a_block_twice() -> None:
    assert pieces(cache(), cache(), lists([3, 3], [4, 5], 8)) == [(3, 4, 1), (3, 5, 1)]


def test_what_is_before_the_first_token_is_not_looked_at() -> None:
    assert pieces(cache(), cache(), lists([0, 3], [5, 5], 8, 4)) == [(3, 5, 1)]


def test_tables_that_share_a_pool_share_its_blocks() -> None:
    d = cache()
    (group,) = d.groups
    other = replace(group, id="other", layers=(1,), table=3)
    both = replace(d, groups=(group, other))
    pair = Pair.compile(both, both)
    plan = pair.plan(Blocks({0: [1], 3: [1]}, {0: [4], 3: [5]}, 4))
    assert [batch.table for batch in plan.batches] == [0, 3]
    with pytest.raises(PlanError, match=r"dst\[3\]: block 4 is in another table's list, too"):
        pair.plan(Blocks({0: [1], 3: [1]}, {0: [4], 3: [4]}, 4))


# --- windows


def window(size: int, tokens: int = 4, kind: str = "sliding_window") -> Descriptor:
    return cache(tokens, kind=kind, window=size)


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        # 16 tokens, a window of 6: the next query sees token 11 and later ones.
        (lists([0, 0, 3, 4], [0, 0, 5, 6], 16), [(3, 5, 2)]),
        (lists([3, 4], [5, 6], 16), [(3, 5, 2)]),
        (lists([3, 4], [0, 0, 5, 6], 16), [(3, 5, 2)]),
        (lists([1, 2, 3, 4], [0, 0, 5, 6], 16), [(3, 5, 2)]),
        (lists([1, 2, 3, 4], [7, 8, 5, 6], 16), [(1, 7, 2), (3, 5, 2)]),
        (lists([0, 0, 3, 4], [7, 8, 5, 6], 16), [(3, 5, 2)]),
        (lists([1, 2, 3, 4], [0, 0, 0, 6], 16), [(4, 6, 1)]),
    ],
)
def test_windows(blocks: Blocks, expected: list[tuple[int, int, int]]) -> None:
    assert pieces(window(6), window(6), blocks) == expected


@pytest.mark.parametrize(
    ("size", "num_tokens", "is_refused"),
    [(4, 16, False), (5, 16, True), (1, 13, False), (2, 13, True)],
)
def test_the_window_of_the_last_token(size: int, num_tokens: int, is_refused: bool) -> None:
    blocks = lists([0, 0, 0, 4], [1, 2, 5, 6], num_tokens)
    if is_refused:
        message = refusal(window(size), window(size), blocks)
        assert message.startswith("blocks.src[0]: local token 8 is in the null block")
    else:
        assert pieces(window(size), window(size), blocks) == [(4, 6, 1)]


def test_a_window_across_block_sizes_takes_the_pieces_that_are_there() -> None:
    # Tokens 12 and later are seen; the source keeps blocks of 4 from token 12 on.
    assert pieces(window(6, 4), window(6, 8), lists([7, 8], [0, 5, 6], 18)) == [(7, 11, 2)]
    message = refusal(window(6, 4), window(6, 8), lists([8], [0, 5, 6], 18))
    assert message.startswith("blocks.src[0]: too short: local token 12 has no block")


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        (lists([0, 0, 0, 4], [1, 2, 7, 6], 13), [(4, 6, 1)]),
        (lists([0, 0, 0, 3, 4], [1, 2, 7, 5, 6], 18), [(3, 5, 2)]),
        (lists([0, 0, 8, 3, 4], [1, 2, 0, 5, 6], 18), [(3, 5, 2)]),
    ],
)
def test_chunks(blocks: Blocks, expected: list[tuple[int, int, int]]) -> None:
    chunks = window(12, kind="chunked_local")
    assert pieces(chunks, chunks, blocks) == expected


def test_a_chunk_that_has_begun_must_be_there() -> None:
    chunks = window(12, kind="chunked_local")
    message = refusal(chunks, chunks, lists([0, 0, 0, 0], [1, 2, 3, 4], 13))
    assert message.startswith("blocks.src[0]: local token 12 is in the null block")


def test_a_chunk_that_ends_with_the_request_must_be_there() -> None:
    chunks = window(12, kind="chunked_local")
    message = refusal(chunks, chunks, lists([0, 2, 3], [1, 2, 7], 12))
    assert message.startswith("blocks.src[0]: local token 0 is in the null block")


def test_a_full_source_serves_a_window() -> None:
    src, dst = cache(window=6), window(6)
    assert pieces(src, dst, lists([1, 2, 3, 4], [0, 0, 5, 6], 16)) == [(3, 5, 2)]


def test_all_tokens_of_a_full_group_move_whatever_its_queries_see() -> None:
    d = cache(window=6)
    assert pieces(d, d, lists([1, 2, 3, 4], [5, 6, 7, 8], 16)) == [(1, 5, 4)]
    message = refusal(d, d, lists([0, 2, 3, 4], [5, 6, 7, 8], 16))
    assert message.startswith("blocks.src[0]: local token 0 is in the null block")


# --- one block


def state(tokens: int = 4, kind: str = "recurrent") -> Descriptor:
    d = cache(tokens)
    if kind == "ring":
        return regroup(d, kind=kind, window=tokens)
    roles = tuple(
        Role(name, "f32", 32, {"N": 1, "D": 4}, (("D", 1, 4, 32),), base)
        for name, base in (("conv", 0), ("ssm", 128))
    )
    return regroup(d, kind=kind, roles=roles, tokens_per_state=(tokens, 1))


def test_of_states_the_last_block_moves() -> None:
    assert pieces(state(), state(), lists([1, 2, 3], [4, 5, 6], 9)) == [(3, 6, 1)]
    assert pieces(state(), state(), lists([0, 0, 3], [6], 9, 3)) == [(3, 6, 1)]
    assert pieces(state(), state(), lists([3], [0], 9)) == []
    assert pieces(state(), state(), lists([3], [6], 9, 9)) == []


@pytest.mark.parametrize(
    ("src", "dst", "message"),
    [
        ([0], [6], "blocks.src[0]: the last block is the null block"),
        ([], [6], "blocks.src[0]: 1 to 3 blocks were expected, 0 came"),
        ([3], [4, 5, 6, 7], "blocks.dst[0]: 1 to 3 blocks were expected, 4 came"),
    ],
)
def test_states_are_refused(src: list[int], dst: list[int], message: str) -> None:
    assert refusal(state(), state(), lists(src, dst, 9)) == message


def test_a_ring_is_one_block() -> None:
    ring = state(kind="ring")
    assert pieces(ring, ring, lists([3], [6], 1000)) == [(3, 6, 1)]
    message = refusal(ring, ring, lists([3], [5, 6], 1000))
    assert message == "blocks.dst[0]: 1 to 1 blocks were expected, 2 came"


def test_encoders_count_their_own_tokens() -> None:
    d = cache(kind="cross")
    blocks = Blocks({0: [1, 2]}, {0: [3, 4]}, 100, 96, num_encoder_tokens=7)
    assert pieces(d, d, blocks) == [(1, 3, 2)]
    assert pieces(d, d, lists([1, 2], [3, 4], 7)) == [(1, 3, 2)]


# --- context parallel ranks


@pytest.mark.parametrize(
    ("rank", "interleave", "blocks", "expected"),
    [
        # Blocks of 4: rank 0 has tokens 0, 2, 4, 6 in its first block.
        (0, 1, lists([5, 6], [9], 8), [(20, 36, 1), (22, 37, 1), (24, 38, 1), (26, 39, 1)]),
        (1, 1, lists([5, 6], [9], 8), [(21, 36, 1), (23, 37, 1), (25, 38, 1), (27, 39, 1)]),
        (1, 1, lists([5], [9], 3), [(21, 36, 1)]),
        (1, 1, lists([5], [9], 1), []),
        (0, 2, lists([5, 6], [9], 8), [(10, 18, 1), (12, 19, 1)]),
        (1, 2, lists([5, 6], [9], 8), [(11, 18, 1), (13, 19, 1)]),
        (0, 4, lists([5, 6, 7], [9, 3], 12), [(5, 9, 1), (7, 3, 1)]),
        (1, 4, lists([5, 6, 7], [9, 3], 12), [(6, 9, 1)]),
        (1, 4, lists([5, 6, 7, 8], [9, 3], 16, 8), [(8, 3, 1)]),
        # Runs of two blocks each: rank 1's first block begins with token 8.
        (0, 8, lists([5, 6], [9, 3], 8), [(5, 9, 1), (6, 3, 1)]),
        (1, 8, lists([5, 6], [], 8), []),
        (1, 8, lists([5, 6, 7, 8], [9, 3], 16), [(7, 9, 1), (8, 3, 1)]),
    ],
)
def test_one_of_two_ranks(
    rank: int, interleave: int, blocks: Blocks, expected: list[tuple[int, int, int]]
) -> None:
    part = with_tokens(cache(4), rank, 2, interleave)
    assert pieces(cache(4), part, blocks) == expected
    back = Blocks(blocks.dst, blocks.src, blocks.num_tokens, blocks.first_token)
    assert pieces(part, cache(4), back) == [(b, a, c) for a, b, c in expected]


def test_equal_slices_move_by_blocks() -> None:
    part = with_tokens(cache(4), 1, 2)
    assert pieces(part, part, lists([5, 6], [7, 8], 16)) == [(5, 7, 2)]
    assert pieces(part, part, lists([5, 6], [7, 8], 9)) == [(5, 7, 1)]
    assert pieces(part, part, lists([5, 6], [7, 8], 16, 8)) == [(6, 8, 1)]


def test_first_tokens_begin_a_block_of_all_ranks() -> None:
    part = with_tokens(cache(4), 1, 2)
    message = refusal(cache(4), part, lists([5, 6], [7], 8, 4))
    assert "first_token 4 does not begin a block: the destination's hold 8 tokens" in message
