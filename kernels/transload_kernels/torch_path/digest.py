"""The digest over blocks that are gathered, a few at a time, and mixed as vectors."""

import math
from typing import Final

import torch
from torch import Tensor

from transload_kernels.reference.digest import LENGTH, MIX, STEP, signed
from transload_kernels.torch_path.gather import gather

CHUNK_BYTES: Final = 1 << 22
"""Of blocks gathered at once, one block at the least."""

_LOW_HALF: Final = 0xFFFFFFFF


def digest_blocks(
    src: Tensor, offsets: Tensor, row_bytes: int, loops: tuple[tuple[int, int], ...]
) -> Tensor:
    """See `operations.digest_blocks`; 64-bit integers of torch wrap as the specification's do."""
    length = row_bytes * math.prod(count for count, _ in loops)
    padded = -(-length // 8) * 8
    index = torch.arange(1, padded // 8 + 1, device=src.device) * signed(STEP)
    total = torch.empty(len(offsets), dtype=torch.int64, device=src.device)
    at_once = max(1, CHUNK_BYTES // padded)
    for first in range(0, len(offsets), at_once):
        some = offsets[first : first + at_once]
        blocks = gather(src, some, row_bytes, loops, pitch=padded)
        words = blocks.view(torch.int64).view(len(some), -1)
        total[first : first + at_once] = _mix(words.add_(index)).sum(dim=1)
    # The product wraps as the specification's does.
    return _mix(total.add_(signed(LENGTH * length % 2**64)))


def _mix(x: Tensor) -> Tensor:
    """`reference.digest.mix` of each, in place; a shift of a signed integer has to be masked."""
    for _ in range(2):
        x.bitwise_xor_(x.bitwise_right_shift(32).bitwise_and_(_LOW_HALF)).mul_(signed(MIX))
    return x.bitwise_xor_(x.bitwise_right_shift(32).bitwise_and_(_LOW_HALF))
