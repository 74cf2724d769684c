"""The digest of a block's bytes: `digest_blocks`, specified so that anybody gets the same number.

**Definition.** All arithmetic is on 64-bit words modulo 2**64 (two's complement wraps to the same
bits); `>>>` shifts zeros in.

1. The rows of a block are joined in the order of the loops, the last loop fastest: `L` bytes.
2. They are cut into words of 8 bytes, least significant byte first; zeros fill up the last word.
   Word `i`, counted from 0, is `w[i]`. A word may begin in one row and end in the next.
3. `mix(x)`: `x ^= x >>> 32`, `x *= MIX`, `x ^= x >>> 32`, `x *= MIX`, `x ^= x >>> 32`.
4. The digest is `mix(LENGTH * L + sum over i of mix(w[i] + STEP * (i + 1)))`, read as int64.

`STEP = 0x9E3779B97F4A7C15`, `MIX = 0xD6E8FEB86659FD93`, `LENGTH = 0xC2B2AE3D27D4EB4F`. `MIX` is
odd, so `mix` is a bijection of 64-bit words. The digest of no bytes is 0; of one byte 00
0xA482243C16DFB016; of the ten bytes `abcdefghij` 0x7AA80A2D6000A0C6.

**What it finds.** Two blocks of one length that differ within a single aligned word never have
the same digest. Blocks that differ in any other way by accident (a row missing, swapped, stale,
torn, a pad that was copied) have it with a chance near 2**-64. Whoever chooses the bytes can make
two blocks agree: it is no defence against anybody, and no name for content.

The sum has no order, so words can be added in parts by any number of threads.
"""

from typing import Final

import torch
from torch import Tensor

from transload_kernels.reference.places import steps

STEP: Final = 0x9E3779B97F4A7C15
MIX: Final = 0xD6E8FEB86659FD93
LENGTH: Final = 0xC2B2AE3D27D4EB4F
_MASK: Final = 2**64 - 1


def digest_blocks(
    src: Tensor, offsets: Tensor, row_bytes: int, loops: tuple[tuple[int, int], ...]
) -> Tensor:
    """A digest for each offset; see `operations.digest_blocks`."""
    counts, strides = [count for count, _ in loops], [stride for _, stride in loops]
    digests = []
    for offset in offsets.tolist():
        block = b"".join(
            bytes(src[offset + step : offset + step + row_bytes].tolist())
            for (step,) in steps(counts, strides)
        )
        digests.append(signed(digest(block)))
    return torch.tensor(digests, dtype=torch.int64, device=src.device)


def digest(block: bytes) -> int:
    """The digest of a block's joined bytes, 0 to 2**64 - 1."""
    total = LENGTH * len(block)
    for index in range(-(-len(block) // 8)):
        word = int.from_bytes(block[8 * index : 8 * index + 8], "little")
        total += mix(word + STEP * (index + 1))
    return mix(total)


def mix(x: int) -> int:
    """A bijection of 64-bit words in which each bit depends on all."""
    x &= _MASK
    x ^= x >> 32
    x = x * MIX & _MASK
    x ^= x >> 32
    x = x * MIX & _MASK
    return x ^ x >> 32


def signed(x: int) -> int:
    """The int64 of the same bits; for implementations whose integers have a sign."""
    return x - 2**64 if x >= 2**63 else x
