"""How the torch path simplifies rows, which way it copies them, and what memory that takes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from support.kernel_buffers import noise
from support.kernel_numbers import GROUP, awkward_values, formats
from transload_kernels.formats import ElementType, Format, ScalePlace
from transload_kernels.reference import numbers as specified
from transload_kernels.torch_path import TorchKernels, moves, numbers
from transload_kernels.torch_path.rows import (
    Progression,
    Rows,
    num_progressions,
    progressions,
    simplify,
    steps_of,
)

KERNELS = TorchKernels()


def at(*offsets: int) -> torch.Tensor:
    return torch.tensor(offsets, dtype=torch.int64)


def simplified(*arguments: Any) -> tuple[list[int], list[int], int, tuple[Any, ...]]:
    rows = simplify(*arguments)
    return rows.dst_offsets.tolist(), rows.src_offsets.tolist(), rows.row_bytes, rows.loops


def test_loops_that_continue_a_row_lengthen_it() -> None:
    loops = ((3, 64, 32), (2, 16, 16), (2, 8, 8))
    assert simplified(at(0), at(0), 8, loops) == ([0], [0], 32, ((3, 64, 32),))


def test_loops_are_turned_round_until_the_destination_runs_forwards() -> None:
    assert simplified(at(100), at(40), 4, ((3, -8, -16),)) == ([68], [24], 4, ((3, 8, 16),))


def test_a_source_that_runs_backwards_is_written_out() -> None:
    came = simplified(at(0), at(40), 4, ((3, -8, 16), (2, 4, 4)))
    assert came == ([0, 16, 32], [40, 32, 24], 8, ())


def test_offsets_are_sorted_by_destination() -> None:
    assert simplified(at(8, 0), at(1, 2), 4, ((1, 5, 5),)) == ([0, 8], [2, 1], 4, ())


@pytest.mark.parametrize(
    ("dst", "src", "due"),
    [
        ((5,), (7,), [(5, 7, (1, 0, 0))]),
        ((0, 8), (3, 9), [(0, 3, (2, 6, 8))]),
        ((0, 8, 16, 24), (0, 4, 8, 12), [(0, 0, (4, 4, 8))]),
        ((0, 8, 16, 24, 32), (0, 4, 8, 50, 60), [(0, 0, (3, 4, 8)), (24, 50, (2, 10, 8))]),
        ((0, 8, 16), (0, 4, 50), [(0, 0, (2, 4, 8)), (16, 50, (1, 0, 0))]),
        ((0, 8), (9, 3), [(0, 9, (1, 0, 0)), (8, 3, (1, 0, 0))]),
        ((0, 8, 16), (5, 5, 5), [(0, 5, (3, 0, 8))]),
        # The same place twice, as unchecked callers may give it: one after the other.
        ((0, 0), (1, 2), [(0, 1, (1, 0, 0)), (0, 2, (1, 0, 0))]),
    ],
)
def test_offsets_are_cut_into_progressions(
    dst: tuple[int, ...], src: tuple[int, ...], due: list[Progression]
) -> None:
    rows = Rows(at(*dst), at(*src), 4, ())
    assert list(progressions(rows)) == due


def test_progressions_have_every_offset_once() -> None:
    rng = random.Random(1)
    for _ in range(300):
        count = rng.randint(1, 12)
        dst = sorted(rng.sample(range(20), count))
        rows = Rows(at(*dst), at(*(rng.randrange(4) for _ in dst)), 1, ())
        cut = list(progressions(rows))
        assert len(cut) <= max(num_progressions(rows), 2 * len(cut) - 1)
        listed = [
            (one.dst_offset + i * one.loop[2], one.src_offset + i * one.loop[1])
            for one in cut
            for i in range(one.loop[0])
        ]
        due = zip(rows.dst_offsets.tolist(), rows.src_offsets.tolist(), strict=True)
        assert sorted(listed) == sorted(due)


def test_units_divide_every_address() -> None:
    assert Rows(at(16, 48, 656), at(0, 0, 0), 96, ((2, 64, 32),)).unit_bytes() == 16
    assert Rows(at(16, 48, 657), at(0, 0, 0), 96, ((2, 64, 32),)).unit_bytes() == 1
    assert Rows(at(*range(0, 12 * 99, 12)), at(*[0] * 99), 24, ()).unit_bytes() == 12


def test_steps_are_those_of_the_loops() -> None:
    assert steps_of([(2, 100), (3, 7)]).tolist() == [0, 7, 14, 100, 107, 114]


class Allocations(TorchDispatchMode):  # type: ignore[misc]
    """Counts operations, the bytes of the largest tensor that one made, and divisors."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.largest = 0
        self.divisors: list[Any] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls[func.__name__.split(".")[0]] += 1
        if func.__name__.startswith("div"):
            self.divisors.append(args[1])
        given = {each.data_ptr() for each in args if isinstance(each, torch.Tensor)}
        if isinstance(result, torch.Tensor) and not func.is_view and result.data_ptr() not in given:
            self.largest = max(self.largest, result.numel() * result.element_size())
        return result


def scattered(num_blocks: int, block_bytes: int) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    """A source of twice as many blocks, a destination, and blocks in no order."""
    src = noise(random.Random(2), 2 * num_blocks * block_bytes)
    ids = random.Random(3).sample(range(2 * num_blocks), num_blocks)
    return torch.empty(num_blocks * block_bytes, dtype=torch.uint8), src, ids


def test_many_short_rows_are_gathered_by_index_in_chunks() -> None:
    dst, src, ids = scattered(1 << 15, 128)
    places, offsets = torch.arange(1 << 15) * 128, at(*ids) * 128
    with Allocations() as seen:
        KERNELS.relayout_rows(dst, src, places, offsets, 128, ())
    assert seen.calls["copy_"] == 0
    assert seen.calls["index_select"] == len(dst) // moves.CHUNK_BYTES
    assert seen.largest <= moves.CHUNK_BYTES
    assert torch.equal(dst.view(-1, 128), src.view(-1, 128)[ids])


def test_long_rows_are_copied_in_place() -> None:
    dst, src, ids = scattered(8, moves.MIN_STRIDED_BYTES)
    size = moves.MIN_STRIDED_BYTES
    with Allocations() as seen:
        KERNELS.relayout_rows(dst, src, torch.arange(8) * size, at(*ids) * size, size, ())
    assert 0 < seen.calls["copy_"] <= 8
    assert seen.calls["index_select"] == 0
    assert seen.largest < 1024
    assert torch.equal(dst.view(8, size), src.view(-1, size)[ids])


def test_regular_blocks_are_one_copy_however_short() -> None:
    dst, src, _ = scattered(4096, 64)
    with Allocations() as seen:
        KERNELS.relayout_rows(dst, src, torch.arange(4096) * 64, torch.arange(4096) * 128, 64, ())
    assert seen.calls["copy_"] == 1
    assert torch.equal(dst.view(-1, 64), src.view(-1, 128)[:, :64])


@pytest.mark.parametrize("of", ["e4m3", "e5m2", "e4m3fnuz", "e5m2fnuz", "i8", "f16", "bf16", "f32"])
def test_casts_are_the_specifications(of: ElementType) -> None:
    values = awkward_values()
    raw = specified.encode(values, of)
    assert torch.equal(numbers.encode(values.clone(), of), raw)
    came, due = numbers.decode(raw, of), specified.decode(raw, of)
    # NaNs may differ in bits here: none of them is ever written as it is.
    torch.testing.assert_close(came, due, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(came.signbit()[~came.isnan()], due.signbit()[~came.isnan()])


def test_encoding_leaves_the_values_as_they_are() -> None:
    values = torch.tensor([float("nan"), 1.0])
    numbers.encode(values, "f32")
    assert values.isnan().tolist() == [True, False]


@pytest.mark.parametrize("dst", formats())
def test_divisors_are_tensors(dst: Format) -> None:
    """Of a plain number CUDA would take the inverse, and round twice."""
    values = torch.randn(4, GROUP).view(torch.uint8).flatten()
    written = torch.empty(512, dtype=torch.uint8)
    place = ScalePlace(256, (4,), 4) if dst.group_elements else None
    loops = ((4, 4 * GROUP, 4 * GROUP),)
    with Allocations() as seen:
        formats_ = (Format("f32"), dst)
        KERNELS.convert_rows(written, values, at(0), at(0), GROUP, loops, *formats_, None, place)
    assert bool(seen.divisors) is (dst.scale != "none")
    assert all(isinstance(each, torch.Tensor) for each in seen.divisors)
