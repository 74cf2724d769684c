"""Rows of blocks to flat memory and back, for what computes on them."""

import math

import torch
from torch import Tensor

from transload_kernels.implementation import Loop
from transload_kernels.torch_path.moves import relayout_rows

Stride = tuple[int, int]
"""Count and stride in bytes."""


def gather(
    src: Tensor,
    offsets: Tensor,
    row_bytes: int,
    loops: tuple[Stride, ...],
    pitch: int | None = None,
) -> Tensor:
    """The rows of blocks, one after the other.

    Args:
        src: Buffer that is read.
        offsets: int64 `[n]`.
        row_bytes: Bytes of each row.
        loops: (count, stride), outermost first.
        pitch: Bytes from block to block in the result, filled up with zeros; None: no gap.

    Returns:
        uint8 `[n * pitch]`, new memory.
    """
    size = row_bytes * math.prod(count for count, _ in loops)
    pitch = size if pitch is None else pitch
    make = torch.empty if pitch == size else torch.zeros
    flat = make(len(offsets) * pitch, dtype=torch.uint8, device=src.device)
    places = torch.arange(len(offsets), device="cpu") * pitch
    relayout_rows(flat, src, places, offsets, row_bytes, _with_flat(loops, row_bytes, flat_side=2))
    return flat


def scatter(
    dst: Tensor, flat: Tensor, offsets: Tensor, row_bytes: int, loops: tuple[Stride, ...]
) -> None:
    """The reverse of `gather`, without gaps."""
    size = row_bytes * math.prod(count for count, _ in loops)
    places = torch.arange(len(offsets), device="cpu") * size
    relayout_rows(dst, flat, offsets, places, row_bytes, _with_flat(loops, row_bytes, flat_side=1))


def _with_flat(loops: tuple[Stride, ...], row_bytes: int, flat_side: int) -> tuple[Loop, ...]:
    """Loops of both sides, of which one has no gaps."""
    flat, made = row_bytes, []
    for count, stride in reversed(loops):
        made.append((count, stride, flat) if flat_side == 2 else (count, flat, stride))
        flat *= count
    return tuple(reversed(made))
