"""Rows in a form that torch can copy: positive strides, long rows, few and regular offsets.

**Theory.** A strided view has no negative strides, and its start is one number. So loops are turned
round until the destination's stride is positive; a loop whose source still runs backwards is
written out into offsets. Loops that continue a row on both sides lengthen it. Offsets are sorted by
destination and cut into progressions: offsets at equal steps on both sides are one more loop. What
is left is one strided copy a progression, or, where progressions are many and short, a gather by
index in units of bytes that divide every address.
"""

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from transload_kernels.implementation import Loop


class Rows(NamedTuple):
    """Copies of rows, simplified.

    Attributes:
        dst_offsets: int64 `[n]` on the CPU, ascending.
        src_offsets: int64 `[n]` on the CPU.
        row_bytes: Bytes of a row.
        loops: Counts of at least 2, strides of at least 0.
    """

    dst_offsets: Tensor
    src_offsets: Tensor
    row_bytes: int
    loops: tuple[Loop, ...]

    @property
    def bytes_per_offset(self) -> int:
        """Bytes that one pair of offsets copies."""
        return self.row_bytes * math.prod(count for count, _, _ in self.loops)

    def unit_bytes(self) -> int:
        """The most bytes that divide all offsets, strides and the row."""
        strides = [stride for loop in self.loops for stride in loop[1:]]
        offsets = [_common(self.dst_offsets), _common(self.src_offsets)]
        return math.gcd(self.row_bytes, *strides, *offsets)


class Progression(NamedTuple):
    """Offsets at equal steps on both sides."""

    dst_offset: int
    src_offset: int
    loop: Loop


def simplify(
    dst_offsets: Tensor, src_offsets: Tensor, row_bytes: int, loops: Iterable[Loop]
) -> Rows:
    """The same copies in the form that `Rows` promises; offsets may be on any device."""
    dst_offsets, src_offsets = dst_offsets.cpu(), src_offsets.cpu()
    forward: list[Loop] = []
    for count, src_stride, dst_stride in loops:
        if count == 1:
            continue
        if dst_stride < 0:
            dst_offsets = dst_offsets + (count - 1) * dst_stride
            src_offsets = src_offsets + (count - 1) * src_stride
            src_stride, dst_stride = -src_stride, -dst_stride
        if src_stride < 0:
            dst_offsets = _written_out(dst_offsets, count, dst_stride)
            src_offsets = _written_out(src_offsets, count, src_stride)
            continue
        forward.append((count, src_stride, dst_stride))
    forward.sort(key=lambda loop: -loop[2])
    while forward and forward[-1][1] == forward[-1][2] == row_bytes:
        row_bytes *= forward.pop()[0]
    dst_offsets, order = dst_offsets.sort()
    return Rows(dst_offsets, src_offsets[order], row_bytes, tuple(forward))


def num_progressions(rows: Rows) -> int:
    """An upper limit of how many `progressions` yields, without a step in Python for each."""
    return len(_bends(rows)) + 1


def progressions(rows: Rows) -> Iterator[Progression]:
    """The offsets, each in one progression of one or more."""
    dst, src = rows.dst_offsets.tolist(), rows.src_offsets.tolist()
    first, last = 0, len(dst) - 1
    for bend in [*_bends(rows), last]:
        count = bend - first + 1
        if count < 2:
            continue
        dst_step, src_step = dst[first + 1] - dst[first], src[first + 1] - src[first]
        if src_step < 0 or dst_step == 0:
            yield from (Progression(dst[i], src[i], (1, 0, 0)) for i in range(first, bend + 1))
        else:
            yield Progression(dst[first], src[first], (count, src_step, dst_step))
        first = bend + 1
    if first == last:
        yield Progression(dst[last], src[last], (1, 0, 0))


def steps_of(loops: Iterable[tuple[int, int]]) -> Tensor:
    """int64 `[rows]`: what each index of (count, stride) loops adds to an offset."""
    steps = torch.zeros(1, dtype=torch.int64, device="cpu")
    for count, stride in loops:
        steps = _written_out(steps, count, stride)
    return steps


def _bends(rows: Rows) -> list[int]:
    """Indices of offsets at which the step to the next differs from the step before."""
    dst, src = rows.dst_offsets.diff(), rows.src_offsets.diff()
    is_bend = (dst[1:] != dst[:-1]) | (src[1:] != src[:-1])
    bends: list[int] = (is_bend.nonzero().flatten() + 1).tolist()
    return bends


def _written_out(offsets: Tensor, count: int, stride: int) -> Tensor:
    """Each offset with the steps of a loop."""
    steps = torch.arange(count, device="cpu") * stride
    return (offsets[:, None] + steps).flatten()


def _common(offsets: Tensor) -> int:
    """The greatest common divisor of offsets; halves, so that it takes few steps."""
    while len(offsets) > 1:
        half = len(offsets) // 2
        rest = offsets[2 * half :]
        offsets = torch.cat((torch.gcd(offsets[:half], offsets[half : 2 * half]), rest))
    return int(offsets[0])
