"""A plan carried out: its copies, and each conversion by its route.

Roles by axes become rows, loops and groups.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
import torch

from transload_abi.plan.lower import Offsets
from transload_abi.plan.types import Conversion, Operand, Plan, Side
from transload_abi.plan.types import Sequence as Pieces
from transload_connector.transports.kernel_calls import Pools, copy
from transload_connector.transports.kernel_calls_route import (
    Route,
    are_nested,
    cuts_of,
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


class Family(NamedTuple):
    """Conversions that differ in where they begin alone, as those of a group's layers do.

    Attributes:
        first: One of them.
        route: The way that they all go.
        src_apart: Bytes from the first one's source to each one's, `[num_conversions]`.
        dst_apart: Likewise of the destination.
    """

    first: Conversion
    route: Route
    src_apart: Offsets
    dst_apart: Offsets


def families(conversions: Sequence[Conversion]) -> tuple[Family, ...]:
    """Conversions by what they have in common."""
    found: dict[object, list[Conversion]] = {}
    for conversion in conversions:
        found.setdefault(_company(conversion), []).append(conversion)
    return tuple(
        Family(same[0], route(same[0]), *(_apart(same, side) for side in ("src", "dst")))
        for same in found.values()
    )


def _company(conversion: Conversion) -> object:
    """What all members of a family have in common."""
    sides = []
    for side in (conversion.src, conversion.dst):
        start = side[0].side.offset
        sides += [
            (
                each.dtype,
                each.side._replace(offset=each.side.offset - start),
                each.bit,
                tuple(each.shape.items()),
                each.terms,
                each.values,
            )
            for each in side
        ]
    return conversion.role, conversion.src_codec, conversion.dst_codec, tuple(sides)


def _apart(same: Sequence[Conversion], name: Literal["src", "dst"]) -> Offsets:
    starts = [(each.src if name == "src" else each.dst)[0].side.offset for each in same]
    return np.array(starts, np.int64) - starts[0]


def carry_out(
    plan: Plan,
    src: Pools,
    dst: Pools,
    *,
    by_batch: Sequence[Sequence[Family]] | None = None,
    implementation: str | None = None,
    checked: bool = True,
) -> Counter[Route]:
    """Make all copies and conversions of a plan.

    Args:
        plan: As of `kernel_calls.copy`.
        src: Likewise.
        dst: Likewise.
        by_batch: Of each batch the families of its conversions; None: they are found here.
        implementation: Likewise.
        checked: Likewise.

    Returns:
        How many conversions went which way.
    """
    copy(plan, src, dst, implementation=implementation, checked=checked)
    if by_batch is None:
        by_batch = [families(batch.conversions) for batch in plan.batches]
    taken: Counter[Route] = Counter()
    for batch, each in zip(plan.batches, by_batch, strict=True):
        for family in each if batch.sequences else ():
            taken[family.route] += len(family.src_apart)
            _convert(family, batch.sequences, src, dst, implementation, checked)
    return taken


def _convert(
    family: Family,
    sequences: Sequence[Pieces],
    src: Pools,
    dst: Pools,
    implementation: str | None,
    checked: bool,
) -> None:
    """Make a family's conversions by its route."""
    if family.route.way == "kernel":
        for call in convert_calls(family, sequences):
            operations.convert_rows(
                dst[call.dst_pool],
                src[call.src_pool],
                *call[2:],
                implementation=implementation,
                checked=checked,
            )
        return
    for conversion in _members(family):
        convert_in_scratch(
            conversion,
            sequences,
            src,
            dst,
            by_kernel=family.route.way == "kernel in scratch",
            implementation=implementation,
            checked=checked,
        )


def _members(family: Family) -> Iterator[Conversion]:
    for apart in zip(family.src_apart.tolist(), family.dst_apart.tolist(), strict=True):
        src, dst = (
            tuple(
                each._replace(side=each.side._replace(offset=each.side.offset + step))
                for each in side
            )
            for side, step in zip((family.first.src, family.first.dst), apart, strict=True)
        )
        yield family.first._replace(src=src, dst=dst)


def convert_calls(family: Family, sequences: Sequence[Pieces]) -> Iterator[ConvertCall]:
    """One call, or one for each distance of elements and scales in the pieces.

    Args:
        family: One whose route is `kernel`.
        sequences: Pieces to convert.

    Raises:
        ValueError: The route is another, and no loops walk an axis on both sides.
    """
    conversion = family.first
    src, dst = conversion.src[0], conversion.dst[0]
    digits = [digit for axis in src.shape if axis != "D" for digit in _digits(axis, conversion)]
    loops = tuple((each.extent, _stride(src, each), _stride(dst, each)) for each in digits)
    for src_starts, dst_starts, deltas in _starts(conversion, sequences):
        src_place, dst_place = (
            _place(side, delta, digits)
            for side, delta in zip((conversion.src, conversion.dst), deltas, strict=True)
        )
        yield ConvertCall(
            src.side.pool,
            dst.side.pool,
            torch.from_numpy((family.dst_apart[:, None] + dst_starts).reshape(-1)),
            torch.from_numpy((family.src_apart[:, None] + src_starts).reshape(-1)),
            src.shape["D"],
            loops,
            format_of(numbers_of(conversion, "src")),
            format_of(numbers_of(conversion, "dst")),
            src_place,
            dst_place,
        )


class _Digit(NamedTuple):
    """Part of an axis over which all operands have one stride each."""

    axis: str
    div: int
    extent: int


def _digits(axis: str, conversion: Conversion) -> list[_Digit]:
    """An axis cut wherever an operand cuts it, slowest digit first.

    Raises:
        ValueError: No digits are cut so; `route` lets no such conversion come here.
    """
    cuts = cuts_of(axis, conversion)
    if not are_nested(cuts):
        raise ValueError(f"{conversion.role}: {axis} is cut at {cuts}, which do not nest")
    return [_Digit(axis, low, high // low) for low, high in pairwise(cuts)][::-1]


def _stride(operand: Operand, digit: _Digit) -> int:
    """Bytes from one index of a digit to the next; 0 along an axis that the operand lacks."""
    for axis, div, count, stride_bits in operand.terms:
        if axis == digit.axis and div <= digit.div < div * count:
            return stride_bits * (digit.div // div) // 8
    return 0


def _starts(
    conversion: Conversion, sequences: Sequence[Pieces]
) -> Iterator[tuple[Offsets, Offsets, tuple[int, int]]]:
    """First bytes of pieces, those together whose scales are equally far away."""
    src_pieces, dst_pieces = (
        np.concatenate([np.arange(one, one + count) for one, count in runs])
        for runs in (
            [(each.src, each.num_pieces) for each in sequences],
            [(each.dst, each.num_pieces) for each in sequences],
        )
    )
    src, src_deltas = _side_starts(conversion.src, src_pieces)
    dst, dst_deltas = _side_starts(conversion.dst, dst_pieces)
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
