"""A conversion by way of scratch: elements are gathered into dense rows, converted, scattered.

Memory is bounded: some pieces are converted at a time.
"""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Final, NamedTuple

import torch
from torch import Tensor

from transload_abi.dtypes import DTYPES
from transload_abi.errors import Refused
from transload_abi.plan.loops import settle
from transload_abi.plan.types import Batch, Conversion, Loop, Operand, Plan, Side, Template
from transload_abi.plan.types import Sequence as Pieces
from transload_abi.roles import ROLES
from transload_connector.transports.kernel_calls import Pools, copy
from transload_connector.transports.kernel_calls_numbers import to_elements, to_values
from transload_connector.transports.kernel_calls_route import format_of, numbers_of
from transload_kernels import operations
from transload_kernels.formats import ScalePlace

MAX_ELEMENTS: Final = 1 << 18
"""Of pieces that are converted at once, one piece at the least: a MiB of binary32, as in
`transload_kernels.torch_path.convert`."""

_SCRATCH: Final = "scratch"
_ALIGN: Final = 16
"""Bytes at which scales begin in scratch: any of them may be looked at as numbers."""


class Rows(NamedTuple):
    """How one operand lies in scratch, and how it gets there and back.

    Attributes:
        offset: Bytes from the scratch's start.
        piece_bytes: Of one piece.
        run_bytes: That lie together on both sides.
        loops: Count, stride in the page, stride in scratch.
    """

    offset: int
    piece_bytes: int
    run_bytes: int
    loops: tuple[Loop, ...]


def check_scratch(conversion: Conversion) -> None:
    """Refuse elements that no rows of bytes hold.

    Raises:
        Refused: Elements of four bits lie otherwise than in pairs along `D`.
    """
    for operand in (*conversion.src, *conversion.dst):
        _rows(operand, 0)


def convert_in_scratch(
    conversion: Conversion,
    sequences: Sequence[Pieces],
    src: Pools,
    dst: Pools,
    *,
    by_kernel: bool,
    implementation: str | None,
    checked: bool,
) -> None:
    """Convert pieces.

    Args:
        conversion: Of one layer.
        sequences: Which pieces.
        src: Pools that are read.
        dst: Pools that are written.
        by_kernel: Whether `convert_rows` knows the numbers; torch converts them if not.
        implementation: Of the kernels.
        checked: Whether the kernels check addresses.
    """
    device = src[conversion.src[0].side.pool].device
    most = max(1, MAX_ELEMENTS // prod(conversion.src[0].shape.values()))
    options = (implementation, checked)
    for pieces in _portions(sequences, most):
        count = sum(each.num_pieces for each in pieces)
        src_rows, src_bytes = _layout(conversion.src, count)
        dst_rows, dst_bytes = _layout(conversion.dst, count)
        gathered = torch.empty(src_bytes, dtype=torch.uint8, device=device)
        made = torch.empty(dst_bytes, dtype=torch.uint8, device=device)
        _gather(conversion.src, src_rows, pieces, src, gathered, options)
        if by_kernel:
            _by_kernel(conversion, (src_rows, dst_rows), (gathered, made), count, options)
        else:
            _by_torch(conversion, (src_rows, dst_rows), (gathered, made), count)
        _scatter(conversion.dst, dst_rows, pieces, made, dst, options)


_Options = tuple[str | None, bool]
"""Implementation of the kernels, and whether they check addresses."""


def _portions(sequences: Sequence[Pieces], most: int) -> Iterator[list[Pieces]]:
    """The sequences in turns of at most so many pieces."""
    taken: list[Pieces] = []
    room = most
    for src, dst, left in sequences:
        while left:
            count = min(left, room)
            taken.append(Pieces(src, dst, count))
            src, dst, left, room = src + count, dst + count, left - count, room - count
            if not room:
                yield taken
                taken, room = [], most
    if taken:
        yield taken


def _layout(side: Sequence[Operand], count: int) -> tuple[list[Rows], int]:
    """Where the operands of so many pieces lie in scratch, and the bytes of it."""
    found, end = [], 0
    for operand in side:
        offset = -(-end // _ALIGN) * _ALIGN
        rows = _rows(operand, offset)
        found.append(rows)
        end = offset + count * rows.piece_bytes
    return found, end


def _rows(operand: Operand, offset: int) -> Rows:
    bits = DTYPES[operand.dtype].bits
    unit, terms = max(bits // 8, 1), operand.terms
    if bits < 8:
        terms = _paired(operand, bits)
    strides, step = {}, bits
    for axis in reversed(ROLES[operand.role].axes):
        strides[axis] = step
        step *= operand.shape[axis]
    loops = [(extent, stride, strides[axis] * div) for axis, div, extent, stride in terms]
    if any(each % 8 for loop in loops for each in loop[1:]) or step % 8 or operand.bit:
        raise Refused(f"{operand.role}: elements of {bits} bits that do not fill bytes along D")
    in_bytes = [(count, a // 8, b // 8) for count, a, b in loops]
    return Rows(offset, step // 8, *settle(unit, in_bytes))


def _paired(operand: Operand, bits: int) -> tuple[tuple[str, int, int, int], ...]:
    """The terms of bytes of neighbours along `D`, in place of those of elements."""
    per_byte = 8 // bits
    first = next((term for term in operand.terms if term[:2] == ("D", 1)), ("D", 1, 1, 0))
    if first[2] % per_byte or first[3] != bits:
        raise Refused(f"{operand.role}: elements of {bits} bits that do not fill bytes along D")
    rest = tuple(term for term in operand.terms if term is not first)
    return (("D", per_byte, first[2] // per_byte, 8), *rest)


def _gather(
    side: Sequence[Operand],
    rows: Sequence[Rows],
    pieces: Sequence[Pieces],
    src: Pools,
    scratch: Tensor,
    options: _Options,
) -> None:
    templates = [
        Template(
            operand.side,
            Side(_SCRATCH, each.offset, each.piece_bytes),
            each.run_bytes,
            each.loops,
        )
        for operand, each in zip(side, rows, strict=True)
    ]
    numbered = [Pieces(each.src, at, each.num_pieces) for at, each in _numbered(pieces)]
    _move(templates, numbered, src, {_SCRATCH: scratch}, options)


def _scatter(
    side: Sequence[Operand],
    rows: Sequence[Rows],
    pieces: Sequence[Pieces],
    scratch: Tensor,
    dst: Pools,
    options: _Options,
) -> None:
    templates = [
        Template(
            Side(_SCRATCH, each.offset, each.piece_bytes),
            operand.side,
            each.run_bytes,
            tuple((count, b, a) for count, a, b in each.loops),
        )
        for operand, each in zip(side, rows, strict=True)
    ]
    numbered = [Pieces(at, each.dst, each.num_pieces) for at, each in _numbered(pieces)]
    _move(templates, numbered, {_SCRATCH: scratch}, dst, options)


def _numbered(pieces: Sequence[Pieces]) -> Iterator[tuple[int, Pieces]]:
    at = 0
    for each in pieces:
        yield at, each
        at += each.num_pieces


def _move(
    templates: Sequence[Template],
    pieces: Sequence[Pieces],
    src: Pools,
    dst: Pools,
    options: _Options,
) -> None:
    batch = Batch(0, tuple(templates), (), 1, 1, tuple(pieces))
    copy(Plan((batch,)), src, dst, implementation=options[0], checked=options[1])


def _by_kernel(
    conversion: Conversion,
    rows: tuple[list[Rows], list[Rows]],
    scratch: tuple[Tensor, Tensor],
    count: int,
    options: _Options,
) -> None:
    size = conversion.src[0].shape["D"]
    num_rows = count * prod(conversion.src[0].shape.values()) // size
    src_bytes, dst_bytes = (count * side[0].piece_bytes // num_rows for side in rows)
    places = [
        _place(of, side, num_rows, count)
        for of, side in zip((conversion.src, conversion.dst), rows, strict=True)
    ]
    at = torch.zeros(1, dtype=torch.int64)
    operations.convert_rows(
        scratch[1],
        scratch[0],
        at,
        at,
        size,
        ((num_rows, src_bytes, dst_bytes),),
        format_of(numbers_of(conversion, "src")),
        format_of(numbers_of(conversion, "dst")),
        *places,
        implementation=options[0],
        checked=options[1],
    )


def _place(
    of: Sequence[Operand], side: Sequence[Rows], num_rows: int, count: int
) -> ScalePlace | None:
    if len(side) == 1:
        return None
    row_bytes = count * side[1].piece_bytes // num_rows
    return ScalePlace(side[1].offset, (row_bytes,), DTYPES[of[1].dtype].bits // 8)


def _by_torch(
    conversion: Conversion,
    rows: tuple[list[Rows], list[Rows]],
    scratch: tuple[Tensor, Tensor],
    count: int,
) -> None:
    of, into = numbers_of(conversion, "src"), numbers_of(conversion, "dst")
    elements, *scales = _parts(rows[0], scratch[0], count)
    made = to_elements(into, to_values(of, elements, scales[0] if scales else None))
    for part, raw in zip(_parts(rows[1], scratch[1], count), made, strict=False):
        part.copy_(raw)


def _parts(rows: Sequence[Rows], scratch: Tensor, count: int) -> list[Tensor]:
    return [scratch[each.offset : each.offset + count * each.piece_bytes] for each in rows]
