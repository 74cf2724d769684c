"""How many runs of which length one block, one piece and one request take."""

from __future__ import annotations

from collections import Counter

import pytest

from support.abi_moves import runs, with_heads
from support.abi_placements import PLACEMENTS, Shape
from transload_abi.plan import Blocks, Pair, Plan, copies, num_bytes, num_runs, run_lengths
from transload_abi.types import Descriptor

KIB = 1 << 10
MIB = 1 << 20
BLOCK = Shape(layers=32, blocks=100, heads=8, tokens=16, size=128)


def planned(
    src: Descriptor, dst: Descriptor, src_ids: list[int], dst_ids: list[int], num_tokens: int
) -> Plan:
    return Pair.compile(src, dst).plan(Blocks({0: src_ids}, {0: dst_ids}, num_tokens))


def lengths(src: str, dst: str, ids: list[int], shape: Shape = BLOCK) -> dict[int, int]:
    sides = PLACEMENTS[src](shape), PLACEMENTS[dst](shape)
    plan = planned(*sides, ids, ids, len(ids) * shape.tokens)
    assert num_runs(plan) == sum(run_lengths(plan).values())
    return dict(run_lengths(plan))


@pytest.mark.parametrize(
    ("src", "dst", "expected"),
    [
        ("BLHNC", "BLHNC", {2 * MIB: 1}),
        ("trtllm", "trtllm", {2 * MIB: 1}),
        ("BHLNC", "BHLNC", {2 * MIB: 1}),
        ("LBHNC", "LBHNC", {64 * KIB: 32}),
        ("LBNHC", "LBNHC", {64 * KIB: 32}),
        ("LBHNC", "BLHNC", {64 * KIB: 32}),
        ("rocm", "rocm", {64 * KIB: 32}),
        ("LBNHC", "LBHNC", {512: 4096}),
        ("LBHNC", "LBNHC", {512: 4096}),
        ("sglang", "sglang", {32 * KIB: 64}),
        ("trtllm", "LBHNC", {256: 8192}),
        ("sglang", "LBNHC", {256: 8192}),
        ("vllm_cpu", "LBHNC", {2: 524_288, 256: 4096}),
        ("LHBNC", "LHBNC", {8 * KIB: 256}),
    ],
)
def test_runs_of_one_block(src: str, dst: str, expected: dict[int, int]) -> None:
    assert lengths(src, dst, [7]) == expected


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ("BHLNC", {512 * KIB: 1}),
        ("LBHNC", {16 * KIB: 32}),
        ("LBNHC", {1 * KIB: 512}),
    ],
)
def test_runs_to_one_of_four_ranks(layout: str, expected: dict[int, int]) -> None:
    for rank in range(4):
        part = PLACEMENTS[layout](BLOCK._replace(heads=2))
        plan = planned(PLACEMENTS[layout](BLOCK), with_heads(part, 2 * rank, 8), [7], [9], 16)
        assert run_lengths(plan) == expected
        assert num_bytes(plan) == 512 * KIB


@pytest.mark.parametrize(
    ("layout", "expected"), [("LBNHC", {64 * KIB: 32}), ("LBHNC", {8 * KIB: 256})]
)
def test_runs_of_a_piece_into_larger_blocks(layout: str, expected: dict[int, int]) -> None:
    wide = PLACEMENTS[layout](BLOCK._replace(tokens=64))
    plan = planned(PLACEMENTS[layout](BLOCK), wide, [7], [9], 16)
    assert run_lengths(plan) == expected
    (batch,) = plan.batches
    assert (batch.src_parts, batch.dst_parts) == (1, 4)


@pytest.mark.parametrize("count", [2, 5])
@pytest.mark.parametrize(
    ("layout", "num_runs_expected", "bytes_of_one"),
    [("LBNHC", 32, 64 * KIB), ("BLHNC", 1, 2 * MIB), ("LHBNC", 256, 8 * KIB)],
)
def test_consecutive_blocks_are_one_run(
    layout: str, num_runs_expected: int, bytes_of_one: int, count: int
) -> None:
    ids = list(range(10, 10 + count))
    assert lengths(layout, layout, ids) == {count * bytes_of_one: num_runs_expected}


def test_scattered_blocks_are_runs_of_their_own() -> None:
    assert lengths("BLHNC", "BLHNC", [3, 9, 5]) == {2 * MIB: 3}
    assert lengths("BLHNC", "BLHNC", [9, 8, 7]) == {2 * MIB: 3}
    assert lengths("BLHNC", "BLHNC", [3, 4, 9, 5, 6, 7]) == {4 * MIB: 1, 2 * MIB: 1, 6 * MIB: 1}


def test_blocks_that_are_consecutive_on_one_side_only_are_not_one_run() -> None:
    side = PLACEMENTS["BLHNC"](BLOCK)
    assert run_lengths(planned(side, side, [3, 4], [8, 6], 32)) == {2 * MIB: 2}
    assert run_lengths(planned(side, side, [3, 4], [6, 5], 32)) == {2 * MIB: 2}


def test_pads_move_with_the_whole_block() -> None:
    shape = Shape(layers=2, blocks=8)
    odd = PLACEMENTS["odd"](shape)
    (page,) = {place.page_bytes for group in odd.groups for place in group.places}
    plan = planned(odd, odd, [1, 2], [5, 6], 16)
    # Pages of one block lie next to each other; 40 bytes after them are no page's.
    assert run_lengths(plan) == {2 * page: 2}


def test_pieces_fill_a_block_in_one_run_where_tokens_are_outermost() -> None:
    small, large = (PLACEMENTS["BLNHC"](BLOCK._replace(layers=1, tokens=n)) for n in (16, 64))
    assert run_lengths(planned(small, large, [4, 5, 6, 7], [9], 64)) == {256 * KIB: 1}
    assert run_lengths(planned(large, small, [9], [4, 5, 6, 7], 64)) == {256 * KIB: 1}
    assert run_lengths(planned(large, small, [9], [4, 5, 7, 6], 64)) == {128 * KIB: 1, 64 * KIB: 2}


def test_pieces_across_large_blocks_are_cut_where_other_layers_are_between() -> None:
    small, large = (PLACEMENTS["BLNHC"](BLOCK._replace(layers=2, tokens=n)) for n in (16, 64))
    plan = planned(large, large, [4, 5], [7, 8], 128)
    assert run_lengths(plan) == {2 * 2 * 256 * KIB: 1}
    plan = planned(small, large, list(range(1, 9)), [7, 8], 128)
    (batch,) = plan.batches
    assert [tuple(each) for each in batch.sequences] == [(1, 28, 4), (5, 32, 4)]
    assert run_lengths(plan) == {64 * KIB: 16}


def test_copies_are_what_is_counted() -> None:
    for src, dst in (("LBNHC", "LBHNC"), ("odd", "vllm_cpu"), ("trtllm", "sglang")):
        for tokens in (4, 8):
            shape = Shape(blocks=9)
            sides = PLACEMENTS[src](shape), PLACEMENTS[dst](shape._replace(tokens=tokens))
            ids = {4: [1, 2, 3, 7, 6], 8: [4, 5, 2]}
            plan = planned(*sides, ids[8], ids[tokens], 20)
            found: Counter[int] = Counter()
            for copy in copies(plan):
                found[copy.run_bytes] += len(list(runs(copy)))
            assert found == run_lengths(plan)


def test_loops_go_by_the_destinations_stride() -> None:
    for src, dst in (("LBNHC", "LBHNC"), ("vllm_cpu", "trtllm"), ("odd", "rocm")):
        plan = planned(PLACEMENTS[src](BLOCK), PLACEMENTS[dst](BLOCK), [3], [4], 16)
        for copy in copies(plan):
            strides = [stride for _, _, stride in copy.loops]
            assert strides == sorted(strides, reverse=True)
            assert len(copy.loops) > 1
