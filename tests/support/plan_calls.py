"""A plan as calls of the kernels: what a connector does with it, and no more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch

from support.plan_conversions import conversion_calls
from transload_abi.plan.lower import Strip, strips
from transload_abi.plan.types import Loop, Plan
from transload_kernels import operations

Pools = Mapping[str, torch.Tensor]

_ELEMENT_BYTES = (1, 2, 4, 8)


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


def execute(plan: Plan, src: Pools, dst: Pools, implementation: str | None) -> None:
    """Make all calls; pools are flat uint8 tensors by id."""
    for call in calls(plan):
        to, of = dst[call.dst_pool], src[call.src_pool]
        offsets = (call.dst_offsets, call.src_offsets)
        if call.tile is None:
            operations.relayout_rows(
                to, of, *offsets, call.row_bytes, call.loops, implementation=implementation
            )
        else:
            operations.transpose_pages(
                to,
                of,
                *offsets,
                call.row_bytes,
                call.tile,
                call.loops,
                implementation=implementation,
            )

    for convert in conversion_calls(plan):
        to, of = dst[convert.dst_pool], src[convert.src_pool]
        operations.convert_rows(to, of, *convert[2:], implementation=implementation)


def _tile(strip: Strip) -> tuple[tuple[Loop, Loop] | None, tuple[Loop, ...]]:
    """Elements that lie together along one loop in the source, and along another in the other."""
    size = strip.run_bytes
    read = next((loop for loop in strip.loops if loop[1] == size != loop[2]), None)
    written = next((loop for loop in strip.loops if loop[2] == size != loop[1]), None)
    if size not in _ELEMENT_BYTES or read is None or written is None:
        return None, strip.loops
    rest = tuple(loop for loop in strip.loops if loop not in (read, written))
    return (written, read), rest
