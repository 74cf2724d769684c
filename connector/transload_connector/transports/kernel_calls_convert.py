"""A plan carried out: its copies, and each conversion by its route.

Roles by axes become rows, loops and groups.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch

from transload_abi.plan.lower import Offsets
from transload_abi.plan.types import Batch, Conversion, Operand, Plan, Side
from transload_connector.transports.kernel_calls import Pools, copy
from transload_connector.transports.kernel_calls_route import (
    Route,
    format_of,
    group_elements,
    numbers_of,
    route,
)
from transload_connector.transports.kernel_calls_scratch import convert_in_scratch
from transload_kernels import operations
from transload_kernels.formats import Format, ScalePlace
from transload_kernels.implementation import Loop


class ConvertCall(NamedTuple):
    """Arguments of `convert_rows`, buffers as names of pools."""

    src_pool: str
    dst_pool: str
    dst_offsets: torch.Tensor
    src_offsets: torch.Tensor
    num_elements: int
    loops: tuple[Loop, ...]
    src_format: Format
    dst_format: Format
    src_scales: ScalePlace | None
    dst_scales: ScalePlace | None


def carry_out(
    plan: Plan,
    src: Pools,
    dst: Pools,
    *,
    implementation: str | None = None,
    checked: bool = True,
) -> Counter[Route]:
    """Make all copies and conversions of a plan; arguments as of `kernel_calls.copy`.

    Returns:
        How many conversions went which way.
    """
    copy(plan, src, dst, implementation=implementation, checked=checked)
    taken: Counter[Route] = Counter()
    for batch in plan.batches:
        for conversion in batch.conversions if batch.sequences else ():
            way = route(conversion)
            taken[way] += 1
            if way.way != "kernel":
                convert_in_scratch(
                    conversion,
                    batch,
                    src,
                    dst,
                    by_kernel=way.way == "kernel in scratch",
                    implementation=implementation,
                    checked=checked,
                )
                continue
            for call in convert_calls(conversion, batch):
                operations.convert_rows(
                    dst[call.dst_pool],
                    src[call.src_pool],
                    *call[2:],
                    implementation=implementation,
                    checked=checked,
                )
    return taken


def convert_calls(conversion: Conversion, batch: Batch) -> Iterator[ConvertCall]:
    """One call, or one for each distance of elements and scales in the pieces.

    Args:
        conversion: One whose route is `kernel`.
        batch: Of which it is.
    """
    src, dst = conversion.src[0], conversion.dst[0]
    operands = (*conversion.src, *conversion.dst)
    digits = [
        digit
        for axis, extent in src.shape.items()
        if axis != "D"
        for digit in _digits(axis, extent, operands)
    ]
    loops = tuple((each.extent, _stride(src, each), _stride(dst, each)) for each in digits)
    for src_starts, dst_starts, deltas in _starts(conversion, batch):
        places = [
            _place(side, delta, digits)
            for side, delta in zip((conversion.src, conversion.dst), deltas, strict=True)
        ]
        yield ConvertCall(
            src.side.pool,
            dst.side.pool,
            torch.from_numpy(dst_starts),
            torch.from_numpy(src_starts),
            src.shape["D"],
            loops,
            format_of(numbers_of(conversion, "src")),
            format_of(numbers_of(conversion, "dst")),
            *places,
        )


class _Digit(NamedTuple):
    """Part of an axis over which all operands have one stride each."""

    axis: str
    div: int
    extent: int


def _digits(axis: str, extent: int, operands: tuple[Operand, ...]) -> list[_Digit]:
    """An axis cut wherever an operand cuts it, slowest digit first."""
    cuts = {1, extent}
    for operand in operands:
        for name, div, count, _ in operand.terms:
            if name == axis:
                cuts |= {div, div * count}
    ordered = sorted(cut for cut in cuts if cut <= extent)
    return [_Digit(axis, low, high // low) for low, high in pairwise(ordered)][::-1]


def _stride(operand: Operand, digit: _Digit) -> int:
    """Bytes from one index of a digit to the next; 0 along an axis that the operand lacks."""
    for axis, div, count, stride_bits in operand.terms:
        if axis == digit.axis and div <= digit.div < div * count:
            return stride_bits * (digit.div // div) // 8
    return 0


def _starts(
    conversion: Conversion, batch: Batch
) -> Iterator[tuple[Offsets, Offsets, tuple[int, int]]]:
    """First bytes of pieces, those together whose scales are equally far away."""
    pieces = [
        np.concatenate([np.arange(one, one + count) for one, count in runs])
        for runs in (
            [(each.src, each.num_pieces) for each in batch.sequences],
            [(each.dst, each.num_pieces) for each in batch.sequences],
        )
        if runs
    ]
    if not pieces:
        return
    src, src_deltas = _side_starts(conversion.src, pieces[0])
    dst, dst_deltas = _side_starts(conversion.dst, pieces[1])
    deltas = np.stack((src_deltas, dst_deltas))
    for pair in np.unique(deltas, axis=1).T:
        chosen = np.flatnonzero((deltas == pair[:, None]).all(axis=0))
        yield src[chosen], dst[chosen], (int(pair[0]), int(pair[1]))


def _side_starts(side: tuple[Operand, ...], pieces: Offsets) -> tuple[Offsets, Offsets]:
    """The first byte of each piece's elements, and the distances to those of their scales."""
    first, *scales = (first_bytes(each.side, pieces) + each.bit // 8 for each in side)
    return first, scales[0] - first if scales else np.zeros_like(first)


def first_bytes(side: Side, pieces: Offsets) -> Offsets:
    """Where pieces begin, by their numbers."""
    parts = np.array(side.part_offsets, np.int64)
    found: Offsets = (
        side.offset + pieces // len(parts) * side.block_stride + parts[pieces % len(parts)]
    )
    return found


def _place(side: tuple[Operand, ...], delta: int, loops: list[_Digit]) -> ScalePlace | None:
    if len(side) == 1:
        return None
    strides = tuple(_stride(side[1], each) for each in loops)
    num_groups = side[0].shape["D"] // group_elements(side)
    return ScalePlace(delta, strides, _stride(side[1], _Digit("G", 1, num_groups)))
