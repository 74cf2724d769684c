"""Memory for tests of kernels: buffers between guards, and layouts that no engine would choose."""

from __future__ import annotations

import mmap
import random
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

GUARD = 64
"""Bytes of any content around each buffer; a call must leave them as they are."""


class Guarded(NamedTuple):
    """A buffer within more memory.

    Attributes:
        memory: All of it, with the guards.
        start: Bytes to the buffer's first.
        num_bytes: Of the buffer.
    """

    memory: Tensor
    start: int
    num_bytes: int

    @property
    def buffer(self) -> Tensor:
        return self.memory[self.start : self.start + self.num_bytes]

    def copy(self) -> Guarded:
        return self._replace(memory=self.memory.clone())


def noise(rng: random.Random, num_bytes: int) -> Tensor:
    """Any bytes."""
    return torch.frombuffer(bytearray(rng.randbytes(max(num_bytes, 1))), dtype=torch.uint8)[
        :num_bytes
    ]


def guarded(rng: random.Random, num_bytes: int, skew: int = 0) -> Guarded:
    """Any bytes, the buffer's first one `skew` bytes behind an aligned place."""
    return Guarded(noise(rng, num_bytes + 2 * GUARD + skew), GUARD + skew, num_bytes)


def holding(content: Tensor, skew: int = 0) -> Guarded:
    """These bytes between guards."""
    raw = content.view(torch.uint8).flatten()
    one = guarded(random.Random(0), len(raw), skew)
    one.buffer.copy_(raw)
    return one


class Side(NamedTuple):
    """Where one side's rows are.

    Attributes:
        offsets: One for each block.
        strides: One for each loop.
        num_bytes: That a buffer needs to have.
    """

    offsets: list[int]
    strides: list[int]
    num_bytes: int


def side(
    rng: random.Random, num_blocks: int, counts: Sequence[int], row_bytes: int, unit: int
) -> Side:
    """Rows that do not touch, their loops in any order of strides, some backwards, with pads.

    Args:
        rng: Decides.
        num_blocks: Offsets.
        counts: Of the loops.
        row_bytes: Of a row.
        unit: Divides all strides, pads and offsets if it divides the row.
    """
    strides = [0] * len(counts)
    slots = num_blocks + rng.randint(0, 2)
    block, step = 0, row_bytes
    axes = [*range(len(counts)), -1]
    rng.shuffle(axes)
    for axis in axes:
        step += unit * rng.choice((0, 0, 1, 3))
        if axis < 0:
            block, step = step, step * slots
        else:
            strides[axis], step = step, step * counts[axis]
    strides = [stride * rng.choice((1, 1, 1, -1)) for stride in strides]
    first = unit * rng.choice((0, 1, 5))
    backwards = sum((n - 1) * -s for n, s in zip(counts, strides, strict=True) if s < 0 < n)
    ids = rng.sample(range(slots), num_blocks) if rng.random() < 0.7 else list(range(num_blocks))
    offsets = [first + backwards + block * number for number in ids]
    return Side(offsets, strides, first + step + unit * rng.choice((0, 2)))


def sparse(num_bytes: int) -> Tensor:
    """Zeros of which only the pages that are written take memory."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    return torch.frombuffer(mmap.mmap(-1, num_bytes, flags=flags), dtype=torch.uint8)
