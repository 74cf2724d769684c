"""The operations that callers see: arguments are checked, one implementation is chosen and called.

**Buffers and offsets.** A buffer is flat uint8 memory of one device. An offset is a byte of it,
from its first. Offsets are int64 tensors on the CPU or on the buffers' device; block `i` of a call
is what the `i`-th offset of either side leads to. Offsets may have any alignment and order, and
source offsets may repeat.

**Loops.** `loops` nests further rows under each offset: (count, source stride, destination stride)
in bytes, outermost first; strides of any sign, and a source stride may be 0. A count of 0, like an
empty list of offsets, leaves nothing to do.

**Checks.** Types, shapes, devices and formats are always checked; with `checked` also what offsets
hold: that every byte touched is the buffer's; that no byte is written twice and, where source and
destination share memory, that none is both read and written (overlaps are looked for within a
budget, see `extents`). That waits for the device if offsets are there. Without `checked`, wrong
offsets corrupt memory. What is refused has written nothing.

**Order.** On a GPU the calls are queued on the current stream and return at once; buffers and
offsets must stay alive and unchanged until it has come to them. On a CPU they return when done.

All raise `BadArgument` naming the argument, `Unsupported` if the `implementation` asked for cannot
do it here, `BuildFailed` if its compiler failed. A call that runs out of memory has written a part
of it, and raises `MemoryError` or torch's own error.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from transload_kernels import arguments, dispatch, extents
from transload_kernels.errors import BadArgument
from transload_kernels.formats import Format, ScalePlace
from transload_kernels.implementation import Implementation, Loop


def copy_runs(
    dst: Sequence[Tensor],
    src: Sequence[Tensor],
    runs: Tensor,
    *,
    implementation: str | None = None,
    checked: bool = True,
) -> None:
    """Copy runs of bytes between several buffers.

    Args:
        dst: Buffers that are written.
        src: Buffers that are read; all of one device.
        runs: int64 `[n, 5]`: destination buffer, destination offset, source buffer, source offset,
            num_bytes (0 is allowed). Runs may be copied in any order.
        implementation: Name of the one to use; None: `dispatch` chooses.
        checked: Also check what `runs` holds.
    """
    first = arguments.check_buffers("dst", dst)
    arguments.check_buffers("src", src, first)
    arguments.check_runs(runs, first)
    if not len(runs):
        return
    if checked:
        arguments.check_runs_inside(runs, dst, src)
        _check_runs_apart(runs.cpu(), dst, src)
    # Not asked of another device, which would have to be waited for: 0 is the unknown there.
    num_bytes = int(runs[:, 4].sum()) if runs.device.type == "cpu" else 0
    kernels = _choose("copy_runs", first, num_bytes, implementation)
    kernels.copy_runs(dst, src, runs)


def relayout_rows(
    dst: Tensor,
    src: Tensor,
    dst_offsets: Tensor,
    src_offsets: Tensor,
    row_bytes: int,
    loops: Sequence[Loop] = (),
    *,
    implementation: str | None = None,
    checked: bool = True,
) -> None:
    """Copy rows of bytes: one for each offset and each index of the loops.

    Args:
        dst: Buffer that is written.
        src: Buffer that is read.
        dst_offsets: int64 `[n]`.
        src_offsets: int64 `[n]`.
        row_bytes: Bytes of each row, at least 1.
        loops: See the module.
        implementation: Name of the one to use; None: `dispatch` chooses.
        checked: Also check what the offsets hold.
    """
    _check_pair(dst, src, dst_offsets, src_offsets)
    row_bytes = arguments.whole("row_bytes", row_bytes, 1)
    loops = arguments.loops_of("loops", loops)
    num_bytes = arguments.check_volume(len(dst_offsets), [loop[0] for loop in loops], row_bytes)
    if not num_bytes:
        return
    if checked:
        _check_copies(dst, src, dst_offsets, src_offsets, row_bytes, loops)
    kernels = _choose("relayout_rows", dst, num_bytes, implementation)
    kernels.relayout_rows(dst, src, dst_offsets, src_offsets, row_bytes, loops)


def transpose_pages(
    dst: Tensor,
    src: Tensor,
    dst_offsets: Tensor,
    src_offsets: Tensor,
    element_bytes: int,
    tile: tuple[Loop, Loop],
    loops: Sequence[Loop] = (),
    *,
    implementation: str | None = None,
    checked: bool = True,
) -> None:
    """Copy tiles of elements whose fastest axis is not the same on both sides.

    The result is that of `relayout_rows` with rows of one element and the tile as innermost loops.

    Args:
        dst: Buffer that is written.
        src: Buffer that is read.
        dst_offsets: int64 `[n]`.
        src_offsets: int64 `[n]`.
        element_bytes: 1, 2, 4 or 8.
        tile: Rows and columns, each (count, source stride, destination stride) in bytes.
        loops: Further tiles; see the module.
        implementation: Name of the one to use; None: `dispatch` chooses.
        checked: Also check what the offsets hold.
    """
    _check_pair(dst, src, dst_offsets, src_offsets)
    if arguments.whole("element_bytes", element_bytes) not in (1, 2, 4, 8):
        raise BadArgument(f"element_bytes: expected 1, 2, 4 or 8, got {element_bytes}")
    loops = arguments.loops_of("loops", loops)
    if len(tile) != 2:
        raise BadArgument(f"tile: expected rows and columns, got {len(tile)} loops")
    rows, columns = arguments.loops_of("tile", tile)
    every = (*loops, rows, columns)
    num_bytes = arguments.check_volume(len(dst_offsets), [loop[0] for loop in every], element_bytes)
    if not num_bytes:
        return
    if checked:
        _check_copies(dst, src, dst_offsets, src_offsets, element_bytes, every)
    kernels = _choose("transpose_pages", dst, num_bytes, implementation)
    kernels.transpose_pages(
        dst, src, dst_offsets, src_offsets, element_bytes, (rows, columns), loops
    )


def convert_rows(
    dst: Tensor,
    src: Tensor,
    dst_offsets: Tensor,
    src_offsets: Tensor,
    num_elements: int,
    loops: Sequence[Loop],
    src_format: Format,
    dst_format: Format,
    src_scales: ScalePlace | None = None,
    dst_scales: ScalePlace | None = None,
    *,
    implementation: str | None = None,
    checked: bool = True,
) -> None:
    """Convert rows of numbers: read by one format, written by the other, with new scales.

    `reference.numbers` and `reference.scales` specify each rounding; all implementations write the
    same bits.

    Args:
        dst: Buffer that is written: elements, and scales where the format has them inline.
        src: Buffer that is read.
        dst_offsets: int64 `[n]`: first element of each block's first row.
        src_offsets: int64 `[n]`: likewise.
        num_elements: Elements of a row, at least 1, that lie together on either side; a whole
            number of groups of either format, and even for `u4`.
        loops: Further rows; see the module.
        src_format: Of the source. Types of 16 and 32 bits have no scale; types of 8 bits may have
            any but `f32_zero4`, which is `u4`'s.
        dst_format: Of the destination.
        src_scales: Where inline scales are read; None if and only if the format has none inline.
        dst_scales: Where inline scales are written; likewise.
        implementation: Name of the one to use; None: `dispatch` chooses.
        checked: Also check what the offsets hold.
    """
    _check_pair(dst, src, dst_offsets, src_offsets)
    num_elements = arguments.whole("num_elements", num_elements, 1)
    loops = arguments.loops_of("loops", loops)
    arguments.check_format("src_format", src_format, num_elements)
    arguments.check_format("dst_format", dst_format, num_elements)
    arguments.check_place("src_scales", src_scales, src_format, len(loops))
    arguments.check_place("dst_scales", dst_scales, dst_format, len(loops))
    widest = max(arguments.row_bytes_of(of, num_elements) for of in (src_format, dst_format))
    num_bytes = arguments.check_volume(len(dst_offsets), [loop[0] for loop in loops], widest)
    if not num_bytes:
        return
    if checked:
        _check_conversion(
            *(dst, src, dst_offsets, src_offsets, num_elements, loops),
            *(src_format, dst_format, src_scales, dst_scales),
        )
    written_bytes = num_bytes // widest * arguments.row_bytes_of(dst_format, num_elements)
    kernels = _choose("convert_rows", dst, written_bytes, implementation)
    kernels.convert_rows(
        dst,
        src,
        dst_offsets,
        src_offsets,
        num_elements,
        loops,
        src_format,
        dst_format,
        src_scales,
        dst_scales,
    )


def zero_tail(
    dst: Tensor,
    offsets: Tensor,
    row_bytes: int,
    loops: Sequence[extents.Stride] = (),
    *,
    implementation: str | None = None,
    checked: bool = True,
) -> None:
    """Write zeros over rows, as over the unused end of a block.

    Args:
        dst: Buffer that is written.
        offsets: int64 `[n]`. Rows may overlap: zeros twice are zeros.
        row_bytes: Bytes of each row, at least 1.
        loops: (count, stride) in bytes, outermost first.
        implementation: Name of the one to use; None: `dispatch` chooses.
        checked: Also check what the offsets hold.
    """
    arguments.check_buffer("dst", dst)
    arguments.check_offsets("offsets", offsets, dst)
    row_bytes = arguments.whole("row_bytes", row_bytes, 1)
    loops = arguments.one_side_loops_of("loops", loops)
    num_bytes = arguments.check_volume(len(offsets), [count for count, _ in loops], row_bytes)
    if not num_bytes:
        return
    if checked:
        arguments.check_inside("offsets", offsets, loops, row_bytes, dst)
    kernels = _choose("zero_tail", dst, num_bytes, implementation)
    kernels.zero_tail(dst, offsets, row_bytes, loops)


def digest_blocks(
    src: Tensor,
    offsets: Tensor,
    row_bytes: int,
    loops: Sequence[extents.Stride] = (),
    *,
    implementation: str | None = None,
    checked: bool = True,
) -> Tensor:
    """A 64-bit digest of each block's rows, joined in the order of the loops.

    It depends on the bytes and their order alone: a block in two layouts has one digest if its
    loops are given in one order. `reference.digest` specifies it, and says what it cannot find.

    Args:
        src: Buffer that is read.
        offsets: int64 `[n]`.
        row_bytes: Bytes of each row, at least 1.
        loops: (count, stride) in bytes, outermost first.
        implementation: Name of the one to use; None: `dispatch` chooses.
        checked: Also check what the offsets hold.

    Returns:
        int64 `[n]` on the buffer's device, the caller's own.
    """
    arguments.check_buffer("src", src)
    arguments.check_offsets("offsets", offsets, src)
    row_bytes = arguments.whole("row_bytes", row_bytes, 1)
    loops = arguments.one_side_loops_of("loops", loops)
    num_bytes = arguments.check_volume(len(offsets), [count for count, _ in loops], row_bytes)
    if not num_bytes:
        return torch.zeros(len(offsets), dtype=torch.int64, device=src.device)
    if checked:
        arguments.check_inside("offsets", offsets, loops, row_bytes, src)
    kernels = _choose("digest_blocks", src, num_bytes, implementation)
    return kernels.digest_blocks(src, offsets, row_bytes, loops)


def _choose(op: str, buffer: Tensor, num_bytes: int, name: str | None) -> Implementation:
    return dispatch.choose(op, buffer.device, num_bytes, name).implementation


def _check_pair(dst: Tensor, src: Tensor, dst_offsets: Tensor, src_offsets: Tensor) -> None:
    arguments.check_buffer("dst", dst)
    arguments.check_buffer("src", src, dst)
    arguments.check_offsets("dst_offsets", dst_offsets, dst)
    arguments.check_offsets("src_offsets", src_offsets, src, len(dst_offsets))


def _check_copies(
    dst: Tensor,
    src: Tensor,
    dst_offsets: Tensor,
    src_offsets: Tensor,
    row_bytes: int,
    loops: tuple[Loop, ...],
) -> None:
    """What offsets hold, where both sides' rows are of the same bytes."""
    src_loops = [(count, stride) for count, stride, _ in loops]
    dst_loops = [(count, stride) for count, _, stride in loops]
    arguments.check_inside("src_offsets", src_offsets, src_loops, row_bytes, src)
    arguments.check_inside("dst_offsets", dst_offsets, dst_loops, row_bytes, dst)
    written = _rows(dst, dst_offsets, dst_loops, row_bytes)
    arguments.check_written_once("dst_offsets", [written])
    if arguments.is_shared(dst, src):
        arguments.check_apart(written, _rows(src, src_offsets, src_loops, row_bytes))


def _check_conversion(
    dst: Tensor,
    src: Tensor,
    dst_offsets: Tensor,
    src_offsets: Tensor,
    num_elements: int,
    loops: tuple[Loop, ...],
    src_format: Format,
    dst_format: Format,
    src_scales: ScalePlace | None,
    dst_scales: ScalePlace | None,
) -> None:
    """What offsets hold, where rows are elements and scales."""
    src_loops = [(count, stride) for count, stride, _ in loops]
    dst_loops = [(count, stride) for count, _, stride in loops]
    read = _check_format_rows(
        "src", src, src_offsets, src_loops, num_elements, src_format, src_scales
    )
    written = _check_format_rows(
        "dst", dst, dst_offsets, dst_loops, num_elements, dst_format, dst_scales
    )
    arguments.check_written_once("dst_offsets", written)
    if arguments.is_shared(dst, src):
        for one in written:
            for other in read:
                arguments.check_apart(one, other)


def _check_format_rows(
    name: str,
    buffer: Tensor,
    offsets: Tensor,
    loops: list[extents.Stride],
    num_elements: int,
    of: Format,
    place: ScalePlace | None,
) -> list[extents.Rows]:
    """One side of a conversion lies inside; its rows, and those of its scales."""
    row_bytes = arguments.row_bytes_of(of, num_elements)
    arguments.check_inside(f"{name}_offsets", offsets, loops, row_bytes, buffer)
    rows = [_rows(buffer, offsets, loops, row_bytes)]
    if place is not None:
        inner = arguments.scale_loops(place, of, num_elements, [count for count, _ in loops])
        size, firsts = arguments.scale_bytes_of(of), offsets + place.delta
        arguments.check_inside(f"{name}_scales", firsts, inner, size, buffer)
        rows.append(_rows(buffer, firsts, inner, size))
    return rows


def _rows(
    buffer: Tensor, offsets: Tensor, loops: Sequence[extents.Stride], row_bytes: int
) -> extents.Rows:
    return extents.rows(offsets.cpu() + buffer.data_ptr(), loops, row_bytes)


def _check_runs_apart(runs: Tensor, dst: Sequence[Tensor], src: Sequence[Tensor]) -> None:
    runs = runs[runs[:, 4] > 0]
    written, read = (
        extents.Rows(_addresses(side)[index] + at, runs[:, 4])
        for side, index, at in ((dst, runs[:, 0], runs[:, 1]), (src, runs[:, 2], runs[:, 3]))
    )
    arguments.check_written_once("runs", [written])
    if any(arguments.is_shared(one, other) for one in dst for other in src):
        arguments.check_apart(written, read)


def _addresses(buffers: Sequence[Tensor]) -> Tensor:
    return torch.tensor([one.data_ptr() for one in buffers], dtype=torch.int64, device="cpu")
