"""Which bytes a call touches: reach by arithmetic, and overlaps among rows by sorting.

**Theory.** Rows of one call are the same nested loops from each offset, so what one offset reaches
is a sum over loops, and never has to be listed. Overlaps are looked for in hulls: each offset has
one hull, from its first byte to its last. Hulls that are apart prove rows apart. Hulls that are
not are opened, the longest stride first, until they are, or until rows are bare and the answer is
exact, or until there are more of them than the budget allows and nothing is known.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor

MAX_HULLS: Final = 1 << 16
"""Hulls that one check may come to: `torch.sort` orders them in 2 ms on one core of an AMD EPYC
guest. More of them would find more mistakes, and cost more than the copy of a block."""

Stride = tuple[int, int]
"""Count and stride in bytes."""


def reach(loops: Iterable[Stride], run_bytes: int) -> tuple[int, int]:
    """The first byte that loops touch and the byte after the last, from an offset of 0.

    Args:
        loops: Counts of at least 1; strides of any sign.
        run_bytes: Bytes of each row.
    """
    low, high = 0, run_bytes
    for count, stride in loops:
        last = (count - 1) * stride
        low, high = low + min(last, 0), high + max(last, 0)
    return low, high


class Rows(NamedTuple):
    """The same loops from each of several first bytes.

    Attributes:
        starts: int64 `[n]` on the CPU: addresses of first bytes.
        sizes: int64 `[n]`: bytes of each bare row.
        loops: Longest stride first; strides above 0, none that only lengthens the row.
    """

    starts: Tensor
    sizes: Tensor
    loops: tuple[Stride, ...] = ()

    @property
    def hulls(self) -> tuple[Tensor, Tensor]:
        """First bytes, and the bytes after the last ones."""
        _, high = reach(self.loops, 0)
        return self.starts, self.starts + self.sizes + high

    @property
    def num_opened(self) -> int:
        """Hulls after the longest loop is opened."""
        return len(self.starts) * self.loops[0][0]

    def open(self) -> "Rows":
        """The same rows with the longest loop written out."""
        (count, stride), *rest = self.loops
        steps = torch.arange(count, device="cpu") * stride
        starts = (self.starts[:, None] + steps).flatten()
        return Rows(starts, self.sizes.repeat_interleave(count), tuple(rest))


def rows(starts: Tensor, loops: Sequence[Stride], run_bytes: int) -> Rows:
    """Rows from addresses and loops in any order; counts of at least 1."""
    low, _ = reach(loops, 0)
    remaining = sorted((abs(stride), count) for count, stride in loops if count > 1)
    while remaining and remaining[0][0] == run_bytes:
        run_bytes *= remaining.pop(0)[1]
    sizes = torch.full((len(starts),), run_bytes, dtype=torch.int64, device="cpu")
    return Rows(
        starts + low, sizes, tuple((count, stride) for stride, count in reversed(remaining))
    )


def overlap_within(parts: Sequence[Rows]) -> bool | None:
    """Whether two rows share a byte; None where that would take more than `MAX_HULLS`."""
    if any(stride == 0 for part in parts for _, stride in part.loops):
        return True
    parts = list(parts)
    while True:
        if not _hulls_meet(parts):
            if all(_is_apart_within(part) for part in parts):
                return False
        elif not any(part.loops for part in parts):
            return True
        if not _open_longest(parts):
            return None


def overlap_between(left: Rows, right: Rows) -> bool | None:
    """Whether a row of one shares a byte with a row of the other; None as `overlap_within`."""
    # Reading a row again changes nothing.
    parts = [
        Rows(part.starts, part.sizes, tuple(loop for loop in part.loops if loop[1]))
        for part in (left, right)
    ]
    while _sides_meet(*parts):
        if not any(part.loops for part in parts):
            return True
        if not _open_longest(parts):
            return None
    return False


def _open_longest(parts: list[Rows]) -> bool:
    """Open the longest loop of all; False where there is none or the budget forbids it."""
    strides = [part.loops[0][1] if part.loops else -1 for part in parts]
    longest = strides.index(max(strides))
    others = sum(len(part.starts) for i, part in enumerate(parts) if i != longest)
    if not parts[longest].loops or others + parts[longest].num_opened > MAX_HULLS:
        return False
    parts[longest] = parts[longest].open()
    return True


def _hulls_meet(parts: Sequence[Rows]) -> bool:
    """Whether any two hulls share a byte."""
    hulls = [part.hulls for part in parts]
    starts, order = torch.cat([start for start, _ in hulls]).sort()
    ends = torch.cat([end for _, end in hulls])[order]
    return bool((ends[:-1] > starts[1:]).any())


def _is_apart_within(part: Rows) -> bool:
    """Whether each loop steps over all that the shorter ones span; enough, not needed."""
    span = int(part.sizes.max()) if len(part.sizes) else 0
    for count, stride in reversed(part.loops):
        if stride < span:
            return False
        span += (count - 1) * stride
    return True


def _sides_meet(left: Rows, right: Rows) -> bool:
    """Whether a hull of one side shares a byte with one of the other."""
    starts, order = right.hulls[0].sort()
    # Hulls of one side may lie within each other: what counts is the furthest end so far.
    ends = right.hulls[1][order].cummax(0).values
    first, last = left.hulls
    before = torch.searchsorted(starts, last) - 1
    return bool(((before >= 0) & (ends[before.clamp(min=0)] > first)).any())
