"""Calls of the kernels' operations with awkward arguments, for any implementation to make."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from support.kernel_buffers import Guarded, guarded, side
from transload_kernels import operations

SEED: Final = 20


class Case(NamedTuple):
    """One call.

    Attributes:
        name: Says what is awkward.
        operation: Name of a function of `operations`.
        dst: Buffers that are written.
        src: Buffers that are read.
        arguments: What follows the buffers.
        is_light: Few rows and bytes: can be run by an interpreter of kernels, too.
        is_list: Buffers are given as lists.
    """

    name: str
    operation: str
    dst: tuple[Guarded, ...]
    src: tuple[Guarded, ...]
    arguments: tuple[Any, ...]
    is_light: bool = True
    is_list: bool = False


class Outcome(NamedTuple):
    """All memory after a call, guards included, and what it returned."""

    dst: list[Tensor]
    src: list[Tensor]
    result: Tensor | None


def run(case: Case, implementation: str) -> Outcome:
    """Make the call on memory of its own."""
    dst = [each.copy() for each in case.dst]
    src = [each.copy() for each in case.src]
    call = getattr(operations, case.operation)
    buffers: list[Any] = [each.buffer for each in (*dst, *src)]
    if case.is_list:
        buffers = [[each.buffer for each in dst], [each.buffer for each in src]]
    result = call(*buffers, *case.arguments, implementation=implementation)
    return Outcome([each.memory for each in dst], [each.memory for each in src], result)


def assert_same(case: Case, outcome: Outcome, expected: Outcome) -> None:
    """Every byte of memory and of the result is what the specification left there."""
    for role, came, due in (("dst", outcome.dst, expected.dst), ("src", outcome.src, expected.src)):
        for index, (one, other) in enumerate(zip(came, due, strict=True)):
            where = (one != other).nonzero().flatten()
            found = [(int(at), int(one[at]), int(other[at])) for at in where[:6]]
            assert not found, f"{case.name}: {role}[{index}] (byte, is, should be) {found}"
    if expected.result is None:
        assert outcome.result is None, case.name
    else:
        assert outcome.result is not None, case.name
        assert outcome.result.tolist() == expected.result.tolist(), case.name


def move_cases() -> Iterator[Case]:
    """`relayout_rows`: named shapes of caches, then random ones."""
    rng = random.Random(SEED)
    for name, num_blocks, counts, row_bytes, unit in (
        ("one row of one byte", 1, (), 1, 1),
        ("one block", 1, (2, 3), 64, 16),
        ("odd heads", 3, (5, 3), 96, 32),
        ("656-byte cells", 2, (7,), 656, 16),
        ("584-byte cells", 2, (7,), 584, 8),
        ("bytes at odd places", 3, (3, 3), 7, 1),
        ("rows of 3 words and a tail", 4, (5,), 27, 1),
        ("4-byte rows", 5, (3, 2), 4, 4),
        ("2-byte rows", 5, (3, 2), 2, 2),
        ("five loops", 2, (2, 1, 2, 3, 2), 16, 16),
        ("long rows at odd places", 2, (2,), 70_001, 1),
        ("long rows", 2, (2,), 1 << 17, 4096),
    ):
        yield _moves(rng, name, num_blocks, counts, row_bytes, unit)
    for number in range(60):
        unit = rng.choice((1, 2, 4, 8, 16))
        any_counts = tuple(rng.randint(1, 4) for _ in range(rng.randint(0, 4)))
        row_bytes = unit * rng.choice((1, 2, 3, 5, 32, 41, 100))
        num_blocks = rng.randint(1, 6)
        yield _moves(
            rng, f"random {number}", num_blocks, any_counts, row_bytes, unit, is_light=number < 15
        )
    yield _moves(rng, "many short rows", 700, (2,), 64, 16, is_light=False)
    yield _moves(rng, "many bytes", 300, (3,), 1, 1, is_light=False)
    yield from _moves_of_few_sources(rng)


def tile_cases() -> Iterator[Case]:
    """`transpose_pages`: tiles of all element sizes, square, thin and ragged."""
    rng = random.Random(SEED + 1)
    sizes = ((1, 1), (3, 5), (16, 16), (17, 33), (32, 8), (1, 40), (40, 1), (8, 64))
    for element_bytes in (1, 2, 4, 8):
        for rows, columns in sizes:
            counts = tuple(rng.randint(1, 3) for _ in range(rng.randint(0, 2)))
            name = f"{rows} x {columns} of {element_bytes} bytes, loops {counts}"
            yield _tiles(rng, name, element_bytes, rows, columns, counts, pad=0)
        yield _tiles(rng, f"{element_bytes} bytes with pads", element_bytes, 9, 20, (2,), pad=1)
    for number in range(12):
        yield _any_tiles(rng, f"random strides {number}")


def run_cases() -> Iterator[Case]:
    """`copy_runs`: several buffers, any lengths."""
    rng = random.Random(SEED + 2)
    for number, most in enumerate((1, 8, 40, 300, 5000)):
        for unit in (1, 16):
            yield _runs(rng, f"up to {most} units of {unit} bytes, {number}", 24, most, unit)
    yield _runs(rng, "alike", 40, 0, 48)
    yield _runs(rng, "one", 1, 100, 1)


def zero_cases() -> Iterator[Case]:
    """`zero_tail`: rows of any length and place."""
    rng = random.Random(SEED + 3)
    for number, row_bytes in enumerate((1, 2, 7, 8, 31, 64, 500, 70_001)):
        counts = tuple(rng.randint(1, 3) for _ in range(number % 3))
        of = side(rng, rng.randint(1, 5), counts, row_bytes, 1)
        loops = tuple(zip(counts, of.strides, strict=True))
        where = torch.tensor(of.offsets)
        dst = (guarded(rng, of.num_bytes, number % 2 * 3),)
        yield Case(
            f"rows of {row_bytes}", "zero_tail", dst, (), (where, row_bytes, loops), row_bytes < 999
        )


def digest_cases() -> Iterator[Case]:
    """`digest_blocks`: words that begin in one row and end in the next, tails, many blocks."""
    rng = random.Random(SEED + 4)
    shapes = (
        (1, (), 1),
        (3, (), 8),
        (2, (3,), 7),
        (4, (2, 3), 13),
        (2, (5,), 16),
        (5, (3, 2), 64),
        (2, (2,), 4099),
        (1, (1,), 1 << 16),
        (300, (), 24),
        (2, (4, 2), 3),
    )
    for num_blocks, counts, row_bytes in shapes:
        of = side(rng, num_blocks, counts, row_bytes, rng.choice((1, 8)))
        loops = tuple(zip(counts, of.strides, strict=True))
        name = f"{num_blocks} blocks of {counts} rows of {row_bytes}"
        src = (guarded(rng, of.num_bytes, rng.choice((0, 3))),)
        arguments = (torch.tensor(of.offsets), row_bytes, loops)
        light = num_blocks < 100
        yield Case(name, "digest_blocks", (), src, arguments, light)


def empty_cases() -> Iterator[Case]:
    """Nothing to do: no offsets, or a count of 0 over offsets of anything."""
    rng = random.Random(SEED + 5)
    one, other = (guarded(rng, 64),), (guarded(rng, 64),)
    none, some = torch.empty(0, dtype=torch.int64), torch.tensor([0, 1 << 40])
    for name, offsets, loops in (
        ("no offsets", none, ((2, 8, 8),)),
        ("a count of 0", some, ((3, 8, 8), (0, 1, 1))),
    ):
        pair = (offsets, offsets)
        tile = ((2, 1, 2), (2, 2, 1))
        flat = tuple(loop[:2] for loop in loops)
        yield Case(name, "relayout_rows", one, other, (*pair, 8, loops))
        yield Case(name, "transpose_pages", one, other, (*pair, 1, tile, loops))
        yield Case(name, "zero_tail", one, (), (offsets, 8, flat))
        yield Case(name, "digest_blocks", (), other, (offsets, 8, flat))
    runs = torch.empty((0, 5), dtype=torch.int64)
    yield Case("no runs", "copy_runs", one, other, (runs,), is_list=True)
    runs = torch.tensor([[0, 64, 0, 0, 0], [0, 3, 0, 3, 0]])
    yield Case("runs of nothing", "copy_runs", one, other, (runs,), is_list=True)


MOVES: Final[tuple[Callable[[], Iterator[Case]], ...]] = (
    move_cases,
    tile_cases,
    run_cases,
    zero_cases,
    digest_cases,
    empty_cases,
)
"""All but conversions."""


def _moves(
    rng: random.Random,
    name: str,
    num_blocks: int,
    counts: tuple[int, ...],
    row_bytes: int,
    unit: int,
    *,
    is_light: bool = True,
) -> Case:
    of, to = (side(rng, num_blocks, counts, row_bytes, unit) for _ in range(2))
    loops = tuple(zip(counts, of.strides, to.strides, strict=True))
    src_offsets = torch.tensor(of.offsets)
    if rng.random() < 0.3:
        src_offsets = src_offsets[torch.randint(num_blocks, (num_blocks,), generator=_torch(rng))]
    return Case(
        name,
        "relayout_rows",
        (guarded(rng, to.num_bytes, rng.choice((0, 0, 1, 8))),),
        (guarded(rng, of.num_bytes, rng.choice((0, 0, 1, 8))),),
        (torch.tensor(to.offsets), src_offsets, row_bytes, loops),
        is_light,
    )


def _moves_of_few_sources(rng: random.Random) -> Iterator[Case]:
    to = side(rng, 4, (3,), 48, 16)
    dst, src = (guarded(rng, to.num_bytes),), (guarded(rng, 200),)
    loops = ((3, 0, to.strides[0]),)
    offsets = torch.tensor(to.offsets)
    one_source = torch.full((4,), 100)
    yield Case("a source stride of 0", "relayout_rows", dst, src, (offsets, one_source, 48, loops))
    runs = torch.tensor([[0, at, 0, 5, 40] for at in range(0, 160, 40)])
    few = (guarded(rng, 200),)
    yield Case("one source for all runs", "copy_runs", few, src, (runs,), is_list=True)


def _tiles(
    rng: random.Random,
    name: str,
    element_bytes: int,
    rows: int,
    columns: int,
    counts: tuple[int, ...],
    pad: int,
) -> Case:
    """Columns are fast in the source, rows in the destination."""
    e = element_bytes
    src_pitch, dst_pitch = columns * e + pad, rows * e + pad
    tile = ((rows, src_pitch, e), (columns, e, dst_pitch))
    of = side(rng, 3, counts, rows * src_pitch, e)
    to = side(rng, 3, counts, columns * dst_pitch, e)
    loops = tuple(zip(counts, of.strides, to.strides, strict=True))
    return Case(
        name,
        "transpose_pages",
        (guarded(rng, to.num_bytes, rng.choice((0, 8, 1))),),
        (guarded(rng, of.num_bytes, rng.choice((0, 8, 1))),),
        (torch.tensor(to.offsets), torch.tensor(of.offsets), e, tile, loops),
    )


def _any_tiles(rng: random.Random, name: str) -> Case:
    """Tiles that lie anyhow on both sides."""
    e = rng.choice((1, 2, 4, 8))
    counts = tuple(rng.randint(1, 6) for _ in range(rng.randint(2, 4)))
    of, to = (side(rng, 2, counts, e, e) for _ in range(2))
    every = tuple(zip(counts, of.strides, to.strides, strict=True))
    arguments = (torch.tensor(to.offsets), torch.tensor(of.offsets), e, every[-2:], every[:-2])
    dst, src = (guarded(rng, to.num_bytes),), (guarded(rng, of.num_bytes),)
    return Case(name, "transpose_pages", dst, src, arguments)


def _runs(rng: random.Random, name: str, num_runs: int, most: int, unit: int) -> Case:
    """Runs that lie one behind the other in the destinations; of 1 unit each if `most` is 0."""
    src = tuple(guarded(rng, (most + 7) * unit * 2, rng.choice((0, 1))) for _ in range(3))
    ends, runs = [0, 0], []
    for _ in range(num_runs):
        to, of = rng.randrange(2), rng.randrange(3)
        num_bytes = unit * rng.randint(0, most) if most else unit
        at = unit * rng.randint(0, (src[of].num_bytes - num_bytes) // unit)
        runs.append([to, ends[to], of, at, num_bytes])
        ends[to] += num_bytes + unit * rng.choice((0, 0, 1))
    dst = tuple(guarded(rng, end + 1, rng.choice((0, 1))) for end in ends)
    rng.shuffle(runs)
    return Case(name, "copy_runs", dst, src, (torch.tensor(runs),), most < 999, is_list=True)


def _torch(rng: random.Random) -> torch.Generator:
    return torch.Generator().manual_seed(rng.getrandbits(31))
