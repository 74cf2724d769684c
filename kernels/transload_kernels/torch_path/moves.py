"""Bytes from place to place by strided copies, or by index where offsets have no pattern."""

import math
from collections.abc import Iterator, Sequence
from typing import Final

import torch
from torch import Tensor

from transload_kernels.implementation import Loop
from transload_kernels.torch_path.rows import (
    Rows,
    num_progressions,
    progressions,
    simplify,
    steps_of,
)

MIN_STRIDED_BYTES: Final = 1 << 14
"""For one strided copy; below it rows are gathered by index.

A strided copy costs 10 us before its first byte. On one thread of an AMD EPYC guest, torch 2.13,
`_copy_strided` and `_copy_indexed` of the same 4 to 8 MiB in scattered blocks reached, in GB/s and
best of four: blocks of 1 KiB 0.1 and 2.1; of 4 KiB 0.4 and 2.3; of 16 KiB 0.9 and 2.5. Where blocks
are rows of 8 bytes with gaps, and an index leads to less: 1 KiB 0.1 and 0.3; 4 KiB 0.4 and 0.3;
16 KiB 2.1 and 0.4.
"""

CHUNK_BYTES: Final = 1 << 20
"""Of rows gathered by index: a temporary that stays in the cache of a core."""

_WORDS: Final = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}


def copy_runs(dst: Sequence[Tensor], src: Sequence[Tensor], runs: Tensor) -> None:
    """See `operations.copy_runs`: runs of one length between two buffers are rows."""
    runs = runs.cpu()
    kinds, kind_of_run = runs[:, [0, 2, 4]].unique(dim=0, return_inverse=True)
    order = kind_of_run.argsort()
    sizes = kind_of_run.bincount(minlength=len(kinds)).tolist()
    for (to, of, num_bytes), rows in zip(kinds.tolist(), runs[order].split(sizes), strict=True):
        if num_bytes:
            relayout_rows(dst[to], src[of], rows[:, 1], rows[:, 3], num_bytes, ())


def relayout_rows(
    dst: Tensor,
    src: Tensor,
    dst_offsets: Tensor,
    src_offsets: Tensor,
    row_bytes: int,
    loops: tuple[Loop, ...],
) -> None:
    """See `operations.relayout_rows`."""
    rows = simplify(dst_offsets, src_offsets, row_bytes, loops)
    if _is_strided(rows):
        _copy_strided(dst, src, rows)
    else:
        _copy_indexed(dst, src, rows)


def transpose_pages(
    dst: Tensor,
    src: Tensor,
    dst_offsets: Tensor,
    src_offsets: Tensor,
    element_bytes: int,
    tile: tuple[Loop, Loop],
    loops: tuple[Loop, ...],
) -> None:
    """See `operations.transpose_pages`: torch orders the loops of a strided copy itself."""
    relayout_rows(dst, src, dst_offsets, src_offsets, element_bytes, (*loops, *tile))


def zero_tail(
    dst: Tensor, offsets: Tensor, row_bytes: int, loops: tuple[tuple[int, int], ...]
) -> None:
    """See `operations.zero_tail`."""
    rows = simplify(offsets, offsets, row_bytes, [(count, s, s) for count, s in loops])
    size = _word_bytes(rows, dst)
    if _is_strided(rows):
        words = _words(dst, size)
        for progression in progressions(rows):
            _view(words, size, progression.dst_offset, rows, progression.loop, side=2).zero_()
    else:
        unit = rows.unit_bytes()
        table = _table(dst, unit, size)
        for index, _ in _indices(rows, unit):
            table.index_fill_(0, index.to(dst.device), 0)


def _is_strided(rows: Rows) -> bool:
    num_bytes = len(rows.dst_offsets) * rows.bytes_per_offset
    return num_bytes >= MIN_STRIDED_BYTES * num_progressions(rows)


def _copy_strided(dst: Tensor, src: Tensor, rows: Rows) -> None:
    size = _word_bytes(rows, dst, src)
    to, of = _words(dst, size), _words(src, size)
    for dst_offset, src_offset, loop in progressions(rows):
        written = _view(to, size, dst_offset, rows, loop, side=2)
        written.copy_(_view(of, size, src_offset, rows, loop, side=1))


def _copy_indexed(dst: Tensor, src: Tensor, rows: Rows) -> None:
    unit, size = rows.unit_bytes(), _word_bytes(rows, dst, src)
    to, of = _table(dst, unit, size), _table(src, unit, size)
    for dst_index, src_index in _indices(rows, unit):
        chunk = of.index_select(0, src_index.to(src.device))
        to.index_copy_(0, dst_index.to(dst.device), chunk)


def _indices(rows: Rows, unit: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Units of destination and source that belong together, some offsets at a time."""
    inner: Loop = (rows.row_bytes // unit, unit, unit)
    loops = (*rows.loops, inner)
    dst_steps = steps_of((count, stride) for count, _, stride in loops)
    src_steps = steps_of((count, stride) for count, stride, _ in loops)
    at_once = max(1, CHUNK_BYTES // rows.bytes_per_offset)
    pairs = zip(rows.dst_offsets.split(at_once), rows.src_offsets.split(at_once), strict=True)
    for dst_offsets, src_offsets in pairs:
        yield (
            (dst_offsets[:, None] + dst_steps).flatten() // unit,
            (src_offsets[:, None] + src_steps).flatten() // unit,
        )


def _word_bytes(rows: Rows, *buffers: Tensor) -> int:
    """The widest word that divides all of the rows and the buffers' starts."""
    starts = [start for one in buffers for start in (one.storage_offset(), one.data_ptr())]
    common = math.gcd(rows.unit_bytes(), *starts)
    return next(size for size in _WORDS if common % size == 0)


def _words(buffer: Tensor, size: int) -> Tensor:
    """A buffer in words; what is left over at its end belongs to no row."""
    return buffer[: len(buffer) // size * size].view(_WORDS[size])


def _table(buffer: Tensor, unit: int, size: int) -> Tensor:
    """A buffer as `[num_units, words]`, likewise."""
    num_units = len(buffer) // unit
    return buffer[: num_units * unit].view(_WORDS[size]).view(num_units, unit // size)


def _view(words: Tensor, size: int, offset: int, rows: Rows, outer: Loop, side: int) -> Tensor:
    """All rows of a progression on one side (1: source, 2: destination) of its loops."""
    loops = (outer, *rows.loops)
    shape = (*(loop[0] for loop in loops), rows.row_bytes // size)
    strides = (*(loop[side] // size for loop in loops), 1)
    return words.as_strided(shape, strides, words.storage_offset() + offset // size)
