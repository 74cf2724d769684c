"""Digests of blocks: how they become launches of `digest_kernel`."""

from math import prod
from typing import Final

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
    width = common_width(
        src.data_ptr(), offsets_width(offsets), row_bytes, *(stride for _, stride in loops)
    )
    num_rows = prod(loop[0] for loop in loops)
    num_bytes = row_bytes * num_rows
    is_split = row_bytes % 8 != 0
    size = max(launcher.tuning.tile_units // 2, 8)
    if is_split:
        tile = Tile(1, min(power_of_two(ceil_div(num_bytes, 8)), size))
        col_tiles, num_tiles = 1, ceil_div(num_bytes, 8 * tile.cols)
    else:
        tile = tile_of(num_rows, row_bytes // 8, size, LINE_BYTES // 8)
        col_tiles = ceil_div(row_bytes // 8, tile.cols)
        num_tiles = ceil_div(num_rows, tile.rows) * col_tiles
    if len(loops) > MAX_LOOPS or max(num_tiles, num_rows, is_split * num_bytes) >= MAX_INDEX:
        raise Unsupported(f"triton: a digest over {len(loops)} loops of {num_bytes} bytes")
    wanted = ceil_div(2 * launcher.num_programs(src.device), len(offsets))
    part_tiles = ceil_div(num_tiles, min(max(wanted, ceil_div(num_tiles, PART_TILES)), num_tiles))
    num_parts = ceil_div(num_tiles, part_tiles)
    most = (MAX_INDEX - 1) // num_parts
    for first in range(0, len(offsets), most):
        share = offsets[first : first + most]
        num_items = len(share) * num_parts
        launcher.launch(
            digest_kernel,
            min(num_items, launcher.num_programs(src.device)),
            src.device,
            (
                *(digests[first : first + most], src, sent(share, src.device), num_items),
                *(*divisor(num_parts), part_tiles, num_rows, row_bytes // 8),
                *(
                    *divisor(row_bytes if is_split else 1),
                    num_bytes,
                    *divisor(col_tiles),
                    *loop_arguments(loops, 1),
                ),
            ),
            {
                **{"WIDTH": width, "ROWS": tile.rows, "COLS": tile.cols},
                **{"LOOPS": loops_variant(len(loops)), "IS_SPLIT": is_split},
            },
        )
