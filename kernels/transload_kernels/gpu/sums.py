"""Digests of blocks: how they become launches of `digest_kernel`."""

from math import prod
from typing import Final, NamedTuple

import torch
from torch import Tensor

from transload_kernels.errors import Unsupported
from transload_kernels.gpu.digest import digest_kernel, finish_kernel
from transload_kernels.gpu.launch import (
    LINE_BYTES,
    MAX_INDEX,
    MAX_LOOPS,
    Tile,
    ceil_div,
    common_width,
    divisor,
    fold,
    loop_arguments,
    loops_variant,
    offsets_width,
    power_of_two,
    tile_of,
)
from transload_kernels.gpu.launcher import Launcher, sent

PART_TILES: Final = 16
"""Tiles that a program sums before it adds to the block's number, blocks being many."""

FINISH_SIZE: Final = 1024
"""Blocks whose sums one program finishes."""


def digest_blocks(
    launcher: Launcher,
    src: Tensor,
    offsets: Tensor,
    row_bytes: int,
    loops: tuple[tuple[int, int], ...],
) -> Tensor:
    """See `Implementation.digest_blocks`.

    Raises:
        Unsupported: Loops that do not fold to `MAX_LOOPS`, or a block of 2 ** 31 rows or, with
            rows of no whole words, 2 GiB.
    """
    digests = torch.zeros(len(offsets), dtype=torch.int64, device=src.device)
    num_bytes = row_bytes * prod(loop[0] for loop in loops)
    if not len(offsets):
        return digests
    if num_bytes:
        _add_words(launcher, digests, src, offsets, row_bytes, fold(loops))
    launcher.launch(
        finish_kernel,
        ceil_div(len(digests), FINISH_SIZE),
        src.device,
        (digests, len(digests), num_bytes),
        {"SIZE": FINISH_SIZE},
    )
    return digests


def _add_words(
    launcher: Launcher,
    digests: Tensor,
    src: Tensor,
    offsets: Tensor,
    row_bytes: int,
    loops: tuple[tuple[int, ...], ...],
) -> None:
    if loops and loops[-1][1] == row_bytes:
        row_bytes, loops = row_bytes * loops[-1][0], loops[:-1]
    strides = [stride for _, stride in loops]
    width = common_width(src.data_ptr(), offsets_width(offsets), row_bytes, *strides)
    shape = _shape(launcher, row_bytes, prod(loop[0] for loop in loops))
    if len(loops) > MAX_LOOPS or shape.num_indices >= MAX_INDEX:
        raise Unsupported(f"triton: a digest over {len(loops)} loops of {shape.num_rows} rows")
    wanted = max(
        ceil_div(2 * launcher.num_programs(src.device), len(offsets)),
        ceil_div(shape.num_tiles, PART_TILES),
    )
    part_tiles = ceil_div(shape.num_tiles, min(wanted, shape.num_tiles))
    num_parts = ceil_div(shape.num_tiles, part_tiles)
    most = (MAX_INDEX - 1) // num_parts
    for first in range(0, len(offsets), most):
        share = sent(offsets[first : first + most], src.device)
        num_items = len(share) * num_parts
        launcher.launch(
            digest_kernel,
            min(num_items, launcher.num_programs(src.device)),
            src.device,
            (
                *(digests[first : first + most], src, share, num_items),
                *(*divisor(num_parts), part_tiles, shape.num_rows, row_bytes // 8),
                *(*divisor(row_bytes if shape.is_split else 1), row_bytes * shape.num_rows),
                *(*divisor(shape.col_tiles), *loop_arguments(loops, 1)),
            ),
            {
                **{"WIDTH": width, "ROWS": shape.tile.rows, "COLS": shape.tile.cols},
                **{"LOOPS": loops_variant(len(loops)), "IS_SPLIT": shape.is_split},
            },
        )


class _Shape(NamedTuple):
    """How a block's words are cut.

    Attributes:
        num_rows: Of the block.
        tile: Words of a program's step.
        num_tiles, col_tiles: Of the block, and of a row of it.
        is_split: Words may end in another row than they begin in.
        num_indices: The largest number that the kernel divides.
    """

    num_rows: int
    tile: Tile
    num_tiles: int
    col_tiles: int
    is_split: bool
    num_indices: int


def _shape(launcher: Launcher, row_bytes: int, num_rows: int) -> _Shape:
    size = max(launcher.tuning.tile_units // 2, 8)
    if row_bytes % 8:
        num_bytes = row_bytes * num_rows
        tile = Tile(1, min(power_of_two(ceil_div(num_bytes, 8)), size))
        return _Shape(num_rows, tile, ceil_div(num_bytes, 8 * tile.cols), 1, True, num_bytes)
    tile = tile_of(num_rows, row_bytes // 8, size, LINE_BYTES // 8)
    col_tiles = ceil_div(row_bytes // 8, tile.cols)
    num_tiles = ceil_div(num_rows, tile.rows) * col_tiles
    return _Shape(num_rows, tile, num_tiles, col_tiles, False, max(num_tiles, num_rows))
