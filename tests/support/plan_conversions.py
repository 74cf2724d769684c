"""A plan's conversions as calls of `convert_rows`: roles by axes become rows, loops and groups."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple, cast

import torch

from transload_abi.dtypes import DTYPES
from transload_abi.floats import read_float
from transload_abi.plan.runs import first_byte
from transload_abi.plan.types import Batch, Conversion, Operand, Plan
from transload_kernels.errors import Unsupported
from transload_kernels.formats import ElementType, Format, ScalePlace
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


def conversion_calls(plan: Plan) -> Iterator[ConvertCall]:
    """One call a conversion, or one for each distance of elements and scales in its pieces."""
    for batch in plan.batches:
        for conversion in batch.conversions:
            yield from _calls(conversion, batch)


class _Digit(NamedTuple):
    """Part of an axis over which all operands have one stride each."""

    axis: str
    div: int
    extent: int


def _calls(conversion: Conversion, batch: Batch) -> Iterator[ConvertCall]:
    src, dst = conversion.src[0], conversion.dst[0]
    operands = (*conversion.src, *conversion.dst)
    group_elements = [_group_elements(each) for each in (conversion.src, conversion.dst)]
    digits = [
        digit
        for axis, extent in src.shape.items()
        for digit in _digits(axis, extent, operands, group_elements)
    ]
    row, rest = _row(digits, src, dst)
    loops = tuple((each.extent, _stride(src, each), _stride(dst, each)) for each in rest)
    for src_starts, dst_starts, deltas in _starts(conversion, batch):
        places = [
            _place(side, delta, rest, group)
            for side, delta, group in zip(
                (conversion.src, conversion.dst), deltas, group_elements, strict=True
            )
        ]
        yield ConvertCall(
            src.side.pool,
            dst.side.pool,
            torch.tensor(dst_starts),
            torch.tensor(src_starts),
            row,
            loops,
            _format(conversion.src, group_elements[0]),
            _format(conversion.dst, group_elements[1]),
            *places,
        )


def _group_elements(side: tuple[Operand, ...]) -> int:
    """Elements of a row that share an inline scale; 0: no scale is inline."""
    if len(side) == 1:
        return 0
    return side[0].shape["D"] // side[1].shape.get("G", 1)


def _digits(
    axis: str, extent: int, operands: tuple[Operand, ...], group_elements: list[int]
) -> list[_Digit]:
    """An axis cut wherever an operand cuts it, slowest digit first; rows of groups stay whole."""
    cuts = {1, extent}
    for operand in operands:
        for name, div, count, _ in operand.terms:
            if name == axis:
                cuts |= {div, div * count}
    if axis == "D" and any(group_elements):
        cuts = {1, extent}
    ordered = sorted(cut for cut in cuts if cut <= extent)
    assert all(high % low == 0 for low, high in itertools.pairwise(ordered))
    pairs = itertools.pairwise(ordered)
    return [_Digit(axis, low, high // low) for low, high in pairs][::-1]


def _row(digits: list[_Digit], src: Operand, dst: Operand) -> tuple[int, list[_Digit]]:
    """Elements that lie together on both sides, and what is left for loops."""
    for digit in digits:
        if digit.axis == "D" and digit.div == 1 and _is_flat(src, digit) and _is_flat(dst, digit):
            return digit.extent, [each for each in digits if each != digit]
    return 1, digits


def _is_flat(operand: Operand, digit: _Digit) -> bool:
    return _stride(operand, digit) * 8 == DTYPES[operand.dtype].bits


def _stride(operand: Operand, digit: _Digit) -> int:
    """Bytes from one index of a digit to the next; 0 along an axis that the operand lacks."""
    for axis, div, count, stride_bits in operand.terms:
        if axis == digit.axis and div <= digit.div < div * count:
            return stride_bits * (digit.div // div) // 8
    return 0


def _starts(
    conversion: Conversion, batch: Batch
) -> Iterator[tuple[list[int], list[int], tuple[int, int]]]:
    """First bytes of pieces, those together whose scales are equally far away."""
    found: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
    for sequence in batch.sequences:
        for i in range(sequence.num_pieces):
            src_start, src_delta = _start(conversion.src, sequence.src + i)
            dst_start, dst_delta = _start(conversion.dst, sequence.dst + i)
            starts = found.setdefault((src_delta, dst_delta), ([], []))
            starts[0].append(src_start)
            starts[1].append(dst_start)
    for deltas, (src_starts, dst_starts) in found.items():
        yield src_starts, dst_starts, deltas


def _start(side: tuple[Operand, ...], piece: int) -> tuple[int, int]:
    """The first byte of a piece's elements, and the distance to that of its scales."""
    first, *scales = (first_byte(each.side, piece) + each.bit // 8 for each in side)
    if len({each.side.pool for each in side}) > 1:
        raise Unsupported("convert_rows takes scales from the buffer of their elements only")
    return first, scales[0] - first if scales else 0


def _place(
    side: tuple[Operand, ...], delta: int, loops: list[_Digit], group_elements: int
) -> ScalePlace | None:
    if len(side) == 1:
        return None
    strides = tuple(_stride(side[1], each) for each in loops)
    num_groups = side[0].shape["D"] // group_elements
    return ScalePlace(delta, strides, _stride(side[1], _Digit("G", 1, num_groups)))


def _format(side: tuple[Operand, ...], group_elements: int) -> Format:
    element = cast("ElementType", side[0].dtype)
    if side[0].values is not None:
        return Format(element, "tensor", 0, read_float(side[0].values))
    return Format(element, "f32" if group_elements else "none", group_elements)
