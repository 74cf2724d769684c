"""Bytes from place to place: `copy_runs`, `relayout_rows`, `transpose_pages`, `zero_tail`."""

from collections.abc import Sequence

from torch import Tensor

from transload_kernels.implementation import Loop
from transload_kernels.reference.places import steps


def copy_runs(dst: Sequence[Tensor], src: Sequence[Tensor], runs: Tensor) -> None:
    """Copy runs of bytes between several buffers; see `operations.copy_runs`."""
    for to, dst_at, of, src_at, num_bytes in runs.tolist():
        dst[to][dst_at : dst_at + num_bytes] = src[of][src_at : src_at + num_bytes]


def relayout_rows(
    dst: Tensor,
    src: Tensor,
    dst_offsets: Tensor,
    src_offsets: Tensor,
    row_bytes: int,
    loops: tuple[Loop, ...],
) -> None:
    """Copy rows; see `operations.relayout_rows`."""
    counts, src_strides, dst_strides = sides(loops)
    for dst_offset, src_offset in zip(dst_offsets.tolist(), src_offsets.tolist(), strict=True):
        for src_step, dst_step in steps(counts, src_strides, dst_strides):
            src_at, dst_at = src_offset + src_step, dst_offset + dst_step
            dst[dst_at : dst_at + row_bytes] = src[src_at : src_at + row_bytes]


def transpose_pages(
    dst: Tensor,
    src: Tensor,
    dst_offsets: Tensor,
    src_offsets: Tensor,
    element_bytes: int,
    tile: tuple[Loop, Loop],
    loops: tuple[Loop, ...],
) -> None:
    """Copy elements; see `operations.transpose_pages`.

    The tile is two more loops: what sets the operation apart is how fast it can be done.
    """
    relayout_rows(dst, src, dst_offsets, src_offsets, element_bytes, (*loops, *tile))


def zero_tail(
    dst: Tensor, offsets: Tensor, row_bytes: int, loops: tuple[tuple[int, int], ...]
) -> None:
    """Write zeros; see `operations.zero_tail`."""
    counts, strides = [count for count, _ in loops], [stride for _, stride in loops]
    for offset in offsets.tolist():
        for (step,) in steps(counts, strides):
            dst[offset + step : offset + step + row_bytes] = 0


def sides(loops: tuple[Loop, ...]) -> tuple[list[int], list[int], list[int]]:
    """Counts, source strides and destination strides of loops."""
    return (
        [count for count, _, _ in loops],
        [src_stride for _, src_stride, _ in loops],
        [dst_stride for _, _, dst_stride in loops],
    )
