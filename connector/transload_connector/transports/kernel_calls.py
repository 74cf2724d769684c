"""A plan's copies as calls of the kernels, made on pools that are flat tensors.

Knows nothing of requests, of the wire, or of where pools come from. Conversions are
`kernel_calls_convert`'s.
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import torch

from transload_abi.plan.lower import Strip, strips
from transload_abi.plan.types import Loop, Plan
from transload_kernels import operations

Pools = Mapping[str, torch.Tensor]
"""By id: flat uint8 memory of one device."""

_ELEMENT_BYTES: Final = (1, 2, 4, 8)
"""What `transpose_pages` takes for an element."""


class Call(NamedTuple):
    """One call: `transpose_pages` with a tile, `relayout_rows` without."""

    src_pool: str
    dst_pool: str
    src_offsets: torch.Tensor
    dst_offsets: torch.Tensor
    row_bytes: int
    tile: tuple[Loop, Loop] | None
    loops: tuple[Loop, ...]


def calls(plan: Plan) -> Iterator[Call]:
    """One call for all copies of a template that have one shape."""
    for strip in strips(plan):
        tile, loops = _tile(strip)
        yield Call(
            strip.src_pool,
            strip.dst_pool,
            torch.from_numpy(strip.src),
            torch.from_numpy(strip.dst),
            strip.run_bytes,
            tile,
            loops,
        )


def copy(
    plan: Plan,
    src: Pools,
    dst: Pools,
    *,
    implementation: str | None = None,
    checked: bool = True,
) -> None:
    """Make a plan's copies.

    Args:
        plan: Of these pools.
        src: Pools that are read.
        dst: Pools that are written; on the same device.
        implementation: Of the kernels; None: `transload_kernels.dispatch` chooses.
        checked: Whether the kernels check addresses, which takes longer than small copies. They
            need not where the plan is one of `transload_abi` and each pool is as long as its
            descriptor says.
    """
    for call in calls(plan):
        pools = dst[call.dst_pool], src[call.src_pool]
        rows = *pools, call.dst_offsets, call.src_offsets, call.row_bytes
        if call.tile is None:
            operations.relayout_rows(
                *rows, call.loops, implementation=implementation, checked=checked
            )
        else:
            operations.transpose_pages(
                *rows, call.tile, call.loops, implementation=implementation, checked=checked
            )


def _tile(strip: Strip) -> tuple[tuple[Loop, Loop] | None, tuple[Loop, ...]]:
    """Elements that lie together along one loop in the source, and along another in the other."""
    size = strip.run_bytes
    read = next((loop for loop in strip.loops if loop[1] == size != loop[2]), None)
    written = next((loop for loop in strip.loops if loop[2] == size != loop[1]), None)
    if size not in _ELEMENT_BYTES or read is None or written is None:
        return None, strip.loops
    rest = tuple(loop for loop in strip.loops if loop not in (read, written))
    return (written, read), rest
