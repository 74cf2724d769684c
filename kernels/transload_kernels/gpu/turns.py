"""Element tiles whose fast axis differs: how they become launches of `tiles_kernel`."""

from math import prod
from typing import Final

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
    power_of_two,
    spread,
)
from transload_kernels.gpu.launcher import Launcher, sent
from transload_kernels.gpu.moves import relayout_rows
from transload_kernels.gpu.tiles import tiles_kernel
from transload_kernels.implementation import Loop

UNIT_BYTES: Final = 8
"""Bytes in flight for each unit of the tuning: half of a copy's, a tile lies in registers twice."""


def transpose_pages(
    launcher: Launcher,
    dst: Tensor,
    src: Tensor,
    dst_offsets: Tensor,
    src_offsets: Tensor,
    element_bytes: int,
    tile: tuple[Loop, Loop],
    loops: tuple[Loop, ...],
) -> None:
    """See `Implementation.transpose_pages`.

    A tile whose fast axis is the same on both sides is rows, and copied as such.
    """
    if not len(dst_offsets) or not prod(loop[0] for loop in (*tile, *loops)):
        return
    rows, cols = _turned(tile, element_bytes)
    if cols[1:] == (element_bytes, element_bytes):
        relayout_rows(
            *(launcher, dst, src, dst_offsets, src_offsets, element_bytes * cols[0]),
            (*loops, rows),
        )
        return
    src_aligned = _side_width(src, src_offsets, [loop[1] for loop in loops])
    dst_aligned = _side_width(dst, dst_offsets, [loop[2] for loop in loops])
    aligned = common_width(src_aligned, dst_aligned, *rows[1:], *cols[1:], element_bytes)
    if aligned < element_bytes:
        loops = (*loops, (element_bytes // aligned, aligned, aligned))
        element_bytes = aligned
    src_width = dst_width = element_bytes
    if cols[1] == element_bytes:
        src_width = max(common_width(src_aligned, rows[1], cols[0] * element_bytes), src_width)
    if rows[2] == element_bytes:
        dst_width = max(common_width(dst_aligned, cols[2], rows[0] * element_bytes), dst_width)
    _launch(
        *(launcher, dst, src, dst_offsets, src_offsets, (rows, cols), loops),
        (element_bytes, src_width, dst_width),
    )


def _side_width(buffer: Tensor, offsets: Tensor, strides: list[int]) -> int:
    return common_width(buffer.data_ptr(), offsets_width(offsets), *strides)


def _turned(tile: tuple[Loop, Loop], element_bytes: int) -> tuple[Loop, Loop]:
    """Rows and columns: columns are the source's fast axis, rows the destination's, if any is."""
    first, second = tile
    as_is = (second[1] == element_bytes) + (first[2] == element_bytes)
    turned = (first[1] == element_bytes) + (second[2] == element_bytes)
    is_row = second[1:] == (element_bytes, element_bytes)
    return tile if is_row or as_is >= turned else (second, first)


def _launch(
    launcher: Launcher,
    dst: Tensor,
    src: Tensor,
    dst_offsets: Tensor,
    src_offsets: Tensor,
    tile: tuple[Loop, Loop],
    loops: tuple[Loop, ...],
    widths: tuple[int, int, int],
) -> None:
    element_bytes = widths[0]
    (num_rows, src_row, dst_row), (num_cols, src_col, dst_col) = tile
    size = launcher.tuning.tile_units * UNIT_BYTES // element_bytes
    rows = min(power_of_two(num_rows), max(LINE_BYTES // element_bytes, 32))
    cols = min(power_of_two(num_cols), size // rows, 256)
    row_tiles, col_tiles = ceil_div(num_rows, rows), ceil_div(num_cols, cols)
    both = fold([(count, dst_stride, src_stride) for count, src_stride, dst_stride in loops])
    sides, both = spread((dst_offsets, src_offsets), both, MAX_LOOPS, row_tiles * col_tiles)
    block_pages = prod(loop[0] for loop in both)
    batch = min(size // (rows * cols), power_of_two(len(sides[0]) * block_pages))
    most = (MAX_INDEX - 1) // (block_pages * row_tiles * col_tiles)
    for first in range(0, len(sides[0]), most):
        tables = [sent(side[first : first + most], dst.device) for side in sides]
        num_pages = len(tables[0]) * block_pages
        num_tiles = ceil_div(num_pages, batch) * row_tiles * col_tiles
        launcher.launch(
            tiles_kernel,
            min(num_tiles, launcher.num_programs(dst.device)),
            dst.device,
            (
                *(dst, src, *tables, num_pages, num_rows, num_cols),
                *(src_row, src_col, dst_row, dst_col, num_tiles),
                *(*divisor(row_tiles), *divisor(col_tiles)),
                *loop_arguments([(count, s, d) for count, d, s in both], 2),
            ),
            {
                **dict(zip(("ELEMENT_BYTES", "SRC_WIDTH", "DST_WIDTH"), widths, strict=True)),
                **{"BATCH": batch, "ROWS": rows, "COLS": cols, "LOOPS": loops_variant(len(both))},
            },
        )
