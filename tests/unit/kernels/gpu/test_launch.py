"""`gpu.launch`: numbers that decide what a launch looks like."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed: its kernels were not run")

from transload_kernels.errors import Unsupported
from transload_kernels.gpu import launch
from transload_kernels.gpu.launch import Tile, Tuning
from transload_kernels.reference.places import steps

COUNTS = (1, 2, 3, 5, 7, 10, 641, 1000, 2**16 + 1, 2**30, 2**31 - 2, 2**31 - 1)


@pytest.mark.parametrize("count", COUNTS)
def test_a_divisor_divides_without_dividing(count: int) -> None:
    number, multiplier, shift = launch.divisor(count)
    assert number == count
    assert 2**31 <= multiplier < 2**32
    rng = random.Random(count)
    quotients = {0, 1, 2, (2**31 - 1) // count, rng.randrange((2**31 - 1) // count + 1)}
    near = {quotient * count + by for quotient in quotients for by in (-1, 0, 1, count - 1)}
    for x in near | {rng.randrange(2**31) for _ in range(200)}:
        if 0 <= x < 2**31:
            assert x * multiplier >> 31 + shift == x // count


def test_the_width_is_that_of_the_least_aligned_number() -> None:
    assert launch.common_width() == 16
    assert launch.common_width(0, 64, 4096) == 16
    assert launch.common_width(64, -8) == 8
    assert launch.common_width(64, 1 << 40, 6) == 2
    assert launch.common_width(64, 1 << 40, 33) == 1


@pytest.mark.parametrize("width", [16, 8, 4, 2, 1])
@pytest.mark.parametrize("at", [0, 40, 99])
def test_one_offset_anywhere_narrows_all(width: int, at: int) -> None:
    offsets = torch.arange(100) * 4096
    offsets[at] += width
    assert launch.offsets_width(offsets) == width


def test_no_offsets_narrow_nothing() -> None:
    assert launch.offsets_width(torch.empty(0, dtype=torch.int64)) == 16
    assert launch.offsets_width(torch.tensor([0, -32])) == 16
    assert launch.offsets_width(torch.tensor([-24])) == 8


def places(loops: tuple[tuple[int, ...], ...]) -> list[tuple[int, ...]]:
    counts, *sides = zip(*loops, strict=True) if loops else ((), (), ())
    return list(steps(counts, *sides))


@pytest.mark.parametrize(
    ("loops", "folded"),
    [
        (((4, 64, 32), (2, 32, 16)), ((8, 32, 16),)),
        (((4, 64, 32), (2, 32, 8)), ((4, 64, 32), (2, 32, 8))),
        (((1, 7, 9), (3, 5, 5), (1, 0, 0)), ((3, 5, 5),)),
        (((2, 60, 60), (3, 20, 20), (4, 5, 5)), ((24, 5, 5),)),
        (((2, 0, 8), (3, 0, 4)), ((2, 0, 8), (3, 0, 4))),
        (((2, 0, 12), (3, 0, 4)), ((6, 0, 4),)),
        ((), ()),
    ],
)
def test_loops_that_compose_are_folded(
    loops: tuple[tuple[int, ...], ...], folded: tuple[tuple[int, ...], ...]
) -> None:
    assert launch.fold(loops) == folded
    assert places(launch.fold(loops)) == places(loops)


def test_outer_loops_become_offsets_until_a_kernel_can_take_the_rest() -> None:
    loops = ((3, 1000, 5000), (2, 100, 70), (2, 10, 7), (2, 1, 3))
    offsets = [torch.tensor([0, 10_000]), torch.tensor([5, 90_000])]
    for most, weight, left in ((4, 1, 4), (2, 1, 2), (0, 1, 0), (4, 2**28, 2), (4, 2**40, 0)):
        sides, rest = launch.spread(offsets, loops, most, weight)
        assert rest == loops[len(loops) - left :]
        for side in (0, 1):
            expected = [
                int(start) + step[side] for start in offsets[side] for step in places(loops)
            ]
            inner = [step[side] for step in places(rest)] if rest else [0]
            assert [int(a) + b for a in sides[side] for b in inner] == expected


@pytest.mark.parametrize(
    ("rows", "cols", "expected"),
    [
        (1, 131072, Tile(1, 2048)),
        (4096, 32, Tile(64, 32)),
        (10, 32, Tile(16, 32)),
        (4096, 72, Tile(128, 16)),
        (4096, 41, Tile(128, 16)),
        (4096, 1, Tile(2048, 1)),
        (1, 1, Tile(1, 1)),
    ],
)
def test_tiles_fit_rows(rows: int, cols: int, expected: Tile) -> None:
    assert launch.tile_of(rows, cols, 2048, 8) == expected


def test_any_tile_is_within_its_size_and_leaves_few_lanes_idle() -> None:
    for rows, cols in itertools.product((1, 5, 1000), range(1, 700)):
        tile = launch.tile_of(rows, cols, 512, 8)
        assert tile.rows * tile.cols <= 512
        assert all(number & (number - 1) == 0 for number in tile)
        assert tile.cols >= min(8, cols)
        assert cols / (launch.ceil_div(cols, tile.cols) * tile.cols) >= min(0.56, cols / 8)


def test_loops_are_sent_innermost_first_with_idle_ones() -> None:
    loops = ((3, 100, 7), (5, 10, 2))
    assert launch.loop_arguments(loops, 2) == [
        *(*launch.divisor(5), 10, 2),
        *(*launch.divisor(3), 100, 7),
        *(*launch.divisor(1), 0, 0),
        *(*launch.divisor(1), 0, 0),
    ]


def test_as_many_loops_as_a_kernel_takes_leave_none_idle() -> None:
    loops = ((3, 9), (5, 8), (7, 6), (2, 4))
    expected = [[*launch.divisor(count), stride] for count, stride in reversed(loops)]
    assert launch.loop_arguments(loops, 1) == [number for each in expected for number in each]
    assert launch.loop_arguments(loops[:3], 1, 3) == launch.loop_arguments(loops[:3], 1)[:12]


def test_kernels_are_compiled_for_few_depths() -> None:
    assert [launch.loops_variant(depth) for depth in range(5)] == [0, 2, 2, 4, 4]


def test_the_operator_caps_programs() -> None:
    assert launch.tuning_of({}) == Tuning(num_programs=12)
    assert launch.tuning_of({"TRANSLOAD_KERNELS_SMS": "8"}) == Tuning(num_programs=8)
    assert launch.tuning_of({"TRANSLOAD_KERNELS_SMS": "0"}).num_programs == 0


@pytest.mark.parametrize("text", ["", "-1", "all", "8.5", "\u0663"])
def test_a_cap_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(Unsupported, match="TRANSLOAD_KERNELS_SMS"):
        launch.tuning_of({"TRANSLOAD_KERNELS_SMS": text})
