"""Copies and zeros of rows: how they become launches of `rows_kernel`."""

from collections.abc import Sequence
from math import prod
from typing import Final

import torch
from torch import Tensor

from transload_kernels.gpu.launch import (
    LINE_BYTES,
    MAX_INDEX,
    MAX_LOOPS,
    ceil_div,
    common_width,
    divisor,
    fold,
    loop_arguments,
    loops_variant,
    offsets_width,
    spread,
    tile_of,
)
from transload_kernels.gpu.launcher import Launcher, sent
from transload_kernels.gpu.rows import rows_kernel
from transload_kernels.implementation import Loop

PIECE_BYTES: Final = 1 << 20
"""Longer runs are cut: a run list of unlike lengths then leaves at most this much idle per run."""

CLASS_BYTES: Final = (256, 4096, 32768)
"""Runs of unlike lengths are launched apart, so that a tile is cut for runs of its like."""


def copy_runs(
    launcher: Launcher, dst: Sequence[Tensor], src: Sequence[Tensor], runs: Tensor
) -> None:
    """See `Implementation.copy_runs`; one launch for each width and class of lengths."""
    runs = runs[runs[:, 4] > 0]
    if not len(runs):
        return
    dst_at = _distances(dst, runs.device)[runs[:, 0]] + runs[:, 1]
    src_at = _distances(src, runs.device)[runs[:, 2]] + runs[:, 3]
    dst_at, src_at, lengths = _cut(dst_at, src_at, runs[:, 4].contiguous())
    base = common_width(dst[0].data_ptr(), src[0].data_ptr())
    low_bits = dst_at | src_at | base
    widths = low_bits & -low_bits
    bounds = torch.tensor(CLASS_BYTES, dtype=torch.int64, device=runs.device)
    kinds = widths * (len(CLASS_BYTES) + 1) + torch.bucketize(lengths, bounds)
    for kind in kinds.unique().tolist():
        of_kind = kinds == kind
        _launch_runs(
            launcher,
            (dst[0], src[0]),
            (dst_at[of_kind], src_at[of_kind]),
            lengths[of_kind],
            kind // (len(CLASS_BYTES) + 1),
        )


def relayout_rows(
    launcher: Launcher,
    dst: Tensor,
    src: Tensor,
    dst_offsets: Tensor,
    src_offsets: Tensor,
    row_bytes: int,
    loops: tuple[Loop, ...],
) -> None:
    """See `Implementation.relayout_rows`."""
    _launch_rows(launcher, (dst, src), (dst_offsets, src_offsets), row_bytes, loops, False)


def zero_tail(
    launcher: Launcher,
    dst: Tensor,
    offsets: Tensor,
    row_bytes: int,
    loops: tuple[tuple[int, int], ...],
) -> None:
    """See `Implementation.zero_tail`."""
    both = tuple((count, stride, stride) for count, stride in loops)
    _launch_rows(launcher, (dst, dst), (offsets, offsets), row_bytes, both, True)


def _distances(buffers: Sequence[Tensor], device: torch.device) -> Tensor:
    """Bytes from the first buffer to each: all are addressed from the first one's pointer."""
    first = buffers[0].data_ptr()
    apart = [buffer.data_ptr() - first for buffer in buffers]
    return torch.tensor(apart, dtype=torch.int64, device=device)


def _cut(dst_at: Tensor, src_at: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same bytes in runs of at most `PIECE_BYTES`."""
    pieces = (lengths + (PIECE_BYTES - 1)) // PIECE_BYTES
    run = torch.repeat_interleave(pieces)
    first = torch.cumsum(pieces, 0) - pieces
    ahead = (torch.arange(len(run), device=run.device) - first[run]) * PIECE_BYTES
    left = (lengths[run] - ahead).clamp(max=PIECE_BYTES)
    return dst_at[run] + ahead, src_at[run] + ahead, left


def _launch_runs(
    launcher: Launcher,
    buffers: tuple[Tensor, Tensor],
    offsets: tuple[Tensor, Tensor],
    lengths: Tensor,
    width: int,
) -> None:
    longest = int(lengths.max())
    has_tail = bool((lengths % width).any())
    tile = tile_of(
        len(lengths), max(longest // width, 1), launcher.tuning.tile_units, LINE_BYTES // width
    )
    col_tiles = ceil_div(max(longest // width, 1), tile.cols)
    most = (MAX_INDEX - 1) // col_tiles
    for first in range(0, len(lengths), most):
        share = slice(first, first + most)
        tables = [sent(table[share], buffers[0].device) for table in (*offsets, lengths)]
        num_tiles = ceil_div(len(tables[2]), tile.rows) * col_tiles
        launcher.launch(
            rows_kernel,
            min(num_tiles, launcher.num_programs(buffers[0].device)),
            buffers[0].device,
            (
                *(*buffers, *tables, len(tables[2]), 0, num_tiles, *divisor(col_tiles)),
                *loop_arguments((), 2),
            ),
            {
                **{"WIDTH": width, "ROWS": tile.rows, "COLS": tile.cols, "LOOPS": 0},
                **{"HAS_LENGTHS": True, "HAS_TAIL": has_tail, "IS_ZERO": False},
            },
        )


def _launch_rows(
    launcher: Launcher,
    buffers: tuple[Tensor, Tensor],
    offsets: tuple[Tensor, Tensor],
    row_bytes: int,
    loops: tuple[Loop, ...],
    is_zero: bool,
) -> None:
    if not len(offsets[0]) or not row_bytes or not prod(loop[0] for loop in loops):
        return
    row_bytes, both = _merged(row_bytes, loops)
    width = _row_width(buffers, offsets, row_bytes, both)
    num_units = max(row_bytes // width, 1)
    sides, both = spread(
        offsets, both, MAX_LOOPS, ceil_div(num_units, launcher.tuning.tile_units) * 8
    )
    block_rows = prod(loop[0] for loop in both)
    tile = tile_of(
        len(sides[0]) * block_rows, num_units, launcher.tuning.tile_units, LINE_BYTES // width
    )
    col_tiles = ceil_div(num_units, tile.cols)
    most = (MAX_INDEX - 1) // (block_rows * col_tiles)
    for first in range(0, len(sides[0]), most):
        tables = [sent(side[first : first + most], buffers[0].device) for side in sides]
        num_rows = len(tables[0]) * block_rows
        num_tiles = ceil_div(num_rows, tile.rows) * col_tiles
        launcher.launch(
            rows_kernel,
            min(num_tiles, launcher.num_programs(buffers[0].device)),
            buffers[0].device,
            (
                *(*buffers, *tables, tables[0], num_rows, row_bytes, num_tiles),
                *divisor(col_tiles),
                *loop_arguments([(count, src, dst) for count, dst, src in both], 2),
            ),
            {
                **{
                    "WIDTH": width,
                    "ROWS": tile.rows,
                    "COLS": tile.cols,
                    "LOOPS": loops_variant(len(both)),
                },
                **{"HAS_LENGTHS": False, "HAS_TAIL": row_bytes % width != 0, "IS_ZERO": is_zero},
            },
        )


def _merged(row_bytes: int, loops: tuple[Loop, ...]) -> tuple[int, tuple[tuple[int, ...], ...]]:
    """Longer rows under fewer loops, of (count, destination stride, source stride)."""
    both = fold([(count, dst_stride, src_stride) for count, src_stride, dst_stride in loops])
    if both and both[-1][1:] == (row_bytes, row_bytes):
        return row_bytes * both[-1][0], both[:-1]
    return row_bytes, both


def _row_width(
    buffers: tuple[Tensor, Tensor],
    offsets: tuple[Tensor, Tensor],
    row_bytes: int,
    loops: tuple[tuple[int, ...], ...],
) -> int:
    """Of the widths that all addresses allow, the one that needs the fewest accesses for a row."""
    strides = [stride for _, *both in loops for stride in both]
    widest = common_width(
        *(buffer.data_ptr() for buffer in buffers), *map(offsets_width, offsets), *strides
    )
    choices = [widest >> i for i in range(widest.bit_length())]
    return min(choices, key=lambda width: row_bytes // width + row_bytes % width)
