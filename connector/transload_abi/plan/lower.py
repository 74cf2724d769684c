"""Plans as arrays, for transports and kernels: run lists, NIXL's descriptors, kernel tables.

The only module of the planner that needs numpy; addresses of memory enter here and nowhere else.
"""

from collections.abc import Iterator, Mapping
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from transload_abi.errors import PlanError
from transload_abi.limits import MAX_QUOTED_CHARS, MAX_ROWS
from transload_abi.plan.runs import Stretch, first_byte, shape, stretches
from transload_abi.plan.types import Loop, Plan, Side, Template

Offsets = NDArray[np.int64]
Rows = NDArray[np.uint64]
Bases = Mapping[str, tuple[int, int]]
"""By pool: the address of its first byte, and the device's number."""


class Strip(NamedTuple):
    """Copies of one template that differ in where they begin only.

    Attributes:
        src_pool: Id.
        dst_pool: Id.
        src: Bytes to the first run of each, `[num_copies]`.
        dst: Likewise.
        run_bytes: Of each run.
        loops: Further runs, outermost first.
    """

    src_pool: str
    dst_pool: str
    src: Offsets
    dst: Offsets
    run_bytes: int
    loops: tuple[Loop, ...]


class RunList(NamedTuple):
    """All runs of a plan, one entry each.

    Attributes:
        src_pools: Ids that `src_pool` counts.
        dst_pools: Ids that `dst_pool` counts.
        src_pool: Index into `src_pools`, `[num_runs]`.
        dst_pool: Index into `dst_pools`, `[num_runs]`.
        src: Bytes from the pool's start, `[num_runs]`.
        dst: Bytes from the pool's start, `[num_runs]`.
        num_bytes: Length, `[num_runs]`.
    """

    src_pools: tuple[str, ...]
    dst_pools: tuple[str, ...]
    src_pool: Offsets
    dst_pool: Offsets
    src: Offsets
    dst: Offsets
    num_bytes: Offsets


class KernelTable(NamedTuple):
    """All copies of a plan as two tables, for a kernel that works through the rows.

    Attributes:
        src_pools: Ids that column 0 counts.
        dst_pools: Ids that column 1 counts.
        rows: `[num_copies, 6]`: source pool, destination pool, source byte, destination byte, bytes
            of a run, index into `loops`.
        loops: `[num_shapes, depth, 3]`: count, source stride, destination stride in bytes,
            outermost first; filled up in front with (1, 0, 0).
    """

    src_pools: tuple[str, ...]
    dst_pools: tuple[str, ...]
    rows: Offsets
    loops: Offsets


class _RowCount:
    """Counts the rows of an array before they are made."""

    def __init__(self) -> None:
        self._left = MAX_ROWS

    def take(self, strip: Strip, loops: tuple[Loop, ...]) -> None:
        """Count a row for each turn of some loops of each copy.

        Raises:
            PlanError: There are more than `limits.MAX_ROWS`.
        """
        self._left -= len(strip.src) * prod(loop[0] for loop in loops)
        if self._left < 0:
            raise PlanError(
                f"the plan takes more than {MAX_ROWS} rows: use strided rows or a kernel table, "
                "or plan fewer blocks at once"
            )


def strips(plan: Plan) -> Iterator[Strip]:
    """All copies of a plan, those of one shape together; the same as `runs.copies` gives."""
    for batch in plan.batches:
        for template in batch.templates:
            alike: dict[tuple[int, int, int], list[Stretch]] = {}
            for stretch in stretches(batch, template):
                alike.setdefault(stretch[2:], []).append(stretch)
            for same in alike.values():
                run_bytes, loops = shape(template, same[0])
                yield Strip(
                    template.src.pool,
                    template.dst.pool,
                    _first_bytes(template.src, [stretch.src for stretch in same]),
                    _first_bytes(template.dst, [stretch.dst for stretch in same]),
                    run_bytes,
                    loops,
                )


def run_list(plan: Plan) -> RunList:
    """Every run of a plan by itself.

    Raises:
        PlanError: More than `limits.MAX_ROWS`.
    """
    src_pools, dst_pools = _pools(plan)
    columns: list[list[Offsets]] = [[], [], [], [], []]
    counted = _RowCount()
    for strip in strips(plan):
        counted.take(strip, strip.loops)
        src, dst = _runs(strip)
        constants = (
            src_pools.index(strip.src_pool),
            dst_pools.index(strip.dst_pool),
            strip.run_bytes,
        )
        filled = [np.full(len(src), value, np.int64) for value in constants]
        for column, values in zip(
            columns, (filled[0], filled[1], src, dst, filled[2]), strict=True
        ):
            column.append(values)
    return RunList(src_pools, dst_pools, *(_joined(column) for column in columns))


def nixl_descriptors(plan: Plan, src_bases: Bases, dst_bases: Bases) -> tuple[Rows, Rows]:
    """Every run as NIXL takes it: rows (address, length, device), `[num_runs, 3]`, of either side.

    Row `i` of the source goes to row `i` of the destination.

    Raises:
        PlanError: A pool has no base, or more than `limits.MAX_ROWS`.
    """
    src_rows, dst_rows = [], []
    counted = _RowCount()
    for strip in strips(plan):
        counted.take(strip, strip.loops)
        src, dst = _runs(strip)
        src_rows.append(_rows(src, strip.run_bytes, _base(src_bases, strip.src_pool), ()))
        dst_rows.append(_rows(dst, strip.run_bytes, _base(dst_bases, strip.dst_pool), ()))
    return _stacked(src_rows, 3), _stacked(dst_rows, 3)


def nixl_strided(plan: Plan, src_bases: Bases, dst_bases: Bases) -> tuple[Rows, Rows]:
    """Runs at even distances as one row: (address, length, stride, count, device), `[n, 5]`.

    Of the loops of a copy the one with most turns becomes the row's stride and count; the rest are
    rows of their own. A run by itself has count 1 and its length as stride.

    Raises:
        PlanError: A pool has no base, or more than `limits.MAX_ROWS`.
    """
    src_rows, dst_rows = [], []
    counted = _RowCount()
    for strip in strips(plan):
        longest = max(strip.loops, default=(1, strip.run_bytes, strip.run_bytes))
        rest = list(strip.loops)
        if rest:
            rest.remove(longest)
        counted.take(strip, tuple(rest))
        src, dst = _runs(strip._replace(loops=tuple(rest)))
        count, src_stride, dst_stride = longest
        src_base, dst_base = _base(src_bases, strip.src_pool), _base(dst_bases, strip.dst_pool)
        src_rows.append(_rows(src, strip.run_bytes, src_base, (src_stride, count)))
        dst_rows.append(_rows(dst, strip.run_bytes, dst_base, (dst_stride, count)))
    return _stacked(src_rows, 5), _stacked(dst_rows, 5)


def kernel_table(plan: Plan) -> KernelTable:
    """Every copy as a row, and the loops that rows have in common.

    Raises:
        PlanError: More than `limits.MAX_ROWS`.
    """
    src_pools, dst_pools = _pools(plan)
    shapes: dict[tuple[Loop, ...], int] = {}
    rows: list[Offsets] = []
    counted = _RowCount()
    for strip in strips(plan):
        counted.take(strip, ())
        number = shapes.setdefault(strip.loops, len(shapes))
        table = np.empty((len(strip.src), 6), np.int64)
        table[:, 0] = src_pools.index(strip.src_pool)
        table[:, 1] = dst_pools.index(strip.dst_pool)
        table[:, 2] = strip.src
        table[:, 3] = strip.dst
        table[:, 4] = strip.run_bytes
        table[:, 5] = number
        rows.append(table)
    depth = max(map(len, shapes), default=0)
    filled = [[(1, 0, 0)] * (depth - len(loops)) + list(loops) for loops in shapes]
    loops = np.array(filled, np.int64).reshape(len(shapes), depth, 3)
    joined = np.concatenate(rows) if rows else np.empty((0, 6), np.int64)
    return KernelTable(src_pools, dst_pools, joined, loops)


def _pools(plan: Plan) -> tuple[tuple[str, ...], tuple[str, ...]]:
    templates: list[Template] = [each for batch in plan.batches for each in batch.templates]
    return (
        tuple(dict.fromkeys(each.src.pool for each in templates)),
        tuple(dict.fromkeys(each.dst.pool for each in templates)),
    )


def _first_bytes(side: Side, pieces: list[int]) -> Offsets:
    num_parts = len(side.part_offsets)
    numbers = np.array(pieces, np.int64)
    if num_parts == 1:
        return numbers * side.block_stride + first_byte(side, 0)
    parts = np.array(side.part_offsets, np.int64)
    return side.offset + numbers // num_parts * side.block_stride + parts[numbers % num_parts]


def _runs(strip: Strip) -> tuple[Offsets, Offsets]:
    """Where each run of a strip begins; the loops innermost, the copies outermost."""
    return (
        _unrolled(strip.src, [(loop[0], loop[1]) for loop in strip.loops]),
        _unrolled(strip.dst, [(loop[0], loop[2]) for loop in strip.loops]),
    )


def _unrolled(first: Offsets, loops: list[tuple[int, int]]) -> Offsets:
    steps = np.zeros(1, np.int64)
    for count, stride in loops:
        steps = (steps[:, None] + np.arange(count, dtype=np.int64) * stride).reshape(-1)
    return (first[:, None] + steps).reshape(-1)


def _base(bases: Bases, pool: str) -> tuple[int, int]:
    if pool not in bases:
        raise PlanError("no base address for this pool", f"pools.{pool}"[:MAX_QUOTED_CHARS])
    return bases[pool]


def _rows(first: Offsets, length: int, base: tuple[int, int], more: tuple[int, ...]) -> Rows:
    address, device = base
    rows = np.empty((len(first), 3 + len(more)), np.uint64)
    rows[:, 0] = first.astype(np.uint64) + np.uint64(address)
    for column, value in enumerate((length, *more, device), 1):
        rows[:, column] = value
    return rows


def _stacked(rows: list[Rows], width: int) -> Rows:
    return np.concatenate(rows) if rows else np.empty((0, width), np.uint64)


def _joined(columns: list[Offsets]) -> Offsets:
    return np.concatenate(columns) if columns else np.empty(0, np.int64)
