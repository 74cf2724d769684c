"""Rows of numbers: how they become launches of `convert_kernel`."""

from math import prod
from typing import Final, NamedTuple

from torch import Tensor

from transload_kernels.errors import Unsupported
from transload_kernels.formats import ELEMENT_BITS, Format, ScalePlace
from transload_kernels.gpu.convert import convert_kernel
from transload_kernels.gpu.launch import (
    MAX_INDEX,
    MAX_LOOPS,
    Tile,
    ceil_div,
    common_width,
    divisor,
    fold,
    loop_arguments,
    loops_variant,
    offsets_width,
    power_of_two,
    spread,
    tile_of,
)
from transload_kernels.gpu.launcher import Launcher, sent
from transload_kernels.implementation import Loop

MAX_GROUP: Final = 16384
"""Elements that one inline scale of the destination may cover: a program holds them at once."""

UNIT_ELEMENTS: Final = 4
"""Elements in flight for each unit of the tuning: each takes a register, and its copies more."""

NARROWEST: Final = 64
"""Elements below which no tile is cut to fit the end of a strip."""


class _Rows(NamedTuple):
    """Rows to convert; offsets and loops as a launch has them.

    Attributes:
        offsets: Source, destination, source's scales, destination's scales; int64 `[n]` each.
        loops: (count, stride of each of those), outermost first.
        num_elements: Of a row.
        strip: Elements that a line of the tile holds.
        widths: Of accesses to the source and the destination.
        has_aligned_scales: Whether all inline scales of 4 bytes lie at multiples of 4.
    """

    offsets: list[Tensor]
    loops: tuple[tuple[int, ...], ...]
    num_elements: int
    strip: int
    widths: tuple[int, int]
    has_aligned_scales: bool


def convert_rows(
    launcher: Launcher,
    dst: Tensor,
    src: Tensor,
    dst_offsets: Tensor,
    src_offsets: Tensor,
    num_elements: int,
    loops: tuple[Loop, ...],
    formats: tuple[Format, Format],
    scales: tuple[ScalePlace | None, ScalePlace | None],
) -> None:
    """See `Implementation.convert_rows`; `formats` and `scales` are the source's, then the other's.

    Raises:
        Unsupported: A scale to be made for more than `MAX_GROUP` elements, or an odd number of u4.
    """
    if not len(dst_offsets) or not num_elements or not prod(loop[0] for loop in loops):
        return
    strip = _strip_of(num_elements, formats)
    idle = (0,) * len(loops)
    strides = [scale.strides if scale else idle for scale in scales]
    sides = fold(
        [(*loop, *both) for loop, *both in zip(loops, *strides, strict=True)] if loops else []
    )
    shared = (dst.data_ptr(), src.data_ptr())
    src_width = common_width(shared[1], offsets_width(src_offsets), *(loop[1] for loop in sides))
    dst_width = common_width(shared[0], offsets_width(dst_offsets), *(loop[2] for loop in sides))
    rows = _Rows(
        [src_offsets, dst_offsets, src_offsets, dst_offsets],
        sides,
        num_elements,
        strip,
        (
            common_width(src_width, strip * ELEMENT_BITS[formats[0].element] // 8),
            common_width(dst_width, strip * ELEMENT_BITS[formats[1].element] // 8),
        ),
        _has_aligned_scales((dst, src), (dst_offsets, src_offsets), formats, scales),
    )
    _launch(launcher, dst, src, rows, formats, scales)


def _strip_of(num_elements: int, formats: tuple[Format, Format]) -> int:
    src, dst = formats
    if dst.group_elements:
        if dst.element == "u4" and dst.group_elements % 2:
            # Two strips would share a byte, and each write its own.
            raise Unsupported(
                f"triton: one scale for {dst.group_elements} elements of u4, not even"
            )
        if dst.group_elements > MAX_GROUP:
            raise Unsupported(
                f"triton: one scale for {dst.group_elements} elements, at most {MAX_GROUP}"
            )
        return dst.group_elements
    return src.group_elements or num_elements


def _has_aligned_scales(
    buffers: tuple[Tensor, Tensor],
    offsets: tuple[Tensor, Tensor],
    formats: tuple[Format, Format],
    scales: tuple[ScalePlace | None, ScalePlace | None],
) -> bool:
    places = [
        (buffer, offset, place)
        for buffer, offset, place in zip(reversed(buffers), reversed(offsets), scales, strict=True)
        if place
    ]
    return all(
        common_width(
            *(buffer.data_ptr(), offsets_width(offset), place.delta),
            *(*place.strides, place.group_stride),
        )
        >= 4
        for buffer, offset, place in places
    )


def _launch(
    launcher: Launcher,
    dst: Tensor,
    src: Tensor,
    rows: _Rows,
    formats: tuple[Format, Format],
    scales: tuple[ScalePlace | None, ScalePlace | None],
) -> None:
    num_strips = rows.num_elements // rows.strip
    tile = _tile_of(launcher, rows, num_strips, formats[1])
    col_tiles = ceil_div(rows.strip, tile.cols)
    if num_strips * col_tiles >= MAX_INDEX:
        raise Unsupported(f"triton: rows of {rows.num_elements} elements")
    offsets, loops = spread(rows.offsets, rows.loops, MAX_LOOPS - 1, num_strips * col_tiles)
    block_strips = num_strips * prod(loop[0] for loop in loops)
    constants = _constants(rows, formats, tile, loops_variant(len(loops) + 1))
    scalars = _scalars(rows, formats, scales)
    most = (MAX_INDEX - 1) // (block_strips * col_tiles)
    for first in range(0, len(offsets[0]), most):
        # Scales have the offsets of their side, as long as no loop was worked into them.
        once = {id(side): sent(side[first : first + most], dst.device) for side in offsets}
        num_lines = len(once[id(offsets[0])]) * block_strips
        num_tiles = ceil_div(num_lines, tile.rows) * col_tiles
        launcher.launch(
            convert_kernel,
            min(num_tiles, launcher.num_programs(dst.device)),
            dst.device,
            (
                *(dst, src, *(once[id(side)] for side in offsets), num_lines, rows.strip),
                *(num_tiles, *divisor(col_tiles), *scalars),
                *loop_arguments(loops, 4, MAX_LOOPS - 1),
            ),
            constants,
        )


def _scalars(
    rows: _Rows,
    formats: tuple[Format, Format],
    scales: tuple[ScalePlace | None, ScalePlace | None],
) -> tuple[float, ...]:
    """The kernel's parameters from `src_value` to those of loop 0, the strips of a row."""
    src_format, dst_format = formats
    none = ScalePlace(0, (), 0)
    src_scales, dst_scales = scales[0] or none, scales[1] or none
    return (
        *(src_format.scale_value, dst_format.scale_value),
        *divisor(src_format.group_elements or rows.num_elements)[1:],
        *(src_scales.delta, src_scales.group_stride, dst_scales.delta),
        *divisor(rows.num_elements // rows.strip),
        0 if _is_split(rows, src_format) else rows.strip * ELEMENT_BITS[src_format.element] // 8,
        *(rows.strip * ELEMENT_BITS[dst_format.element] // 8, dst_scales.group_stride),
    )


def _is_split(rows: _Rows, src_format: Format) -> bool:
    """Whether strips begin within the source's bytes."""
    return src_format.element == "u4" and rows.strip % 2 != 0


def _tile_of(launcher: Launcher, rows: _Rows, num_strips: int, dst_format: Format) -> Tile:
    num_lines = num_strips * len(rows.offsets[0]) * prod(loop[0] for loop in rows.loops)
    size = launcher.tuning.tile_units * UNIT_ELEMENTS
    if dst_format.scale != "none":
        size //= 2
    if dst_format.group_elements:
        cols = power_of_two(rows.strip)
        return Tile(max(min(power_of_two(num_lines), size // cols), 1), max(cols, 2))
    tile = tile_of(num_lines, rows.strip, size, NARROWEST)
    return Tile(tile.rows, max(tile.cols, 2))


def _constants(
    rows: _Rows, formats: tuple[Format, Format], tile: Tile, variant: int
) -> dict[str, object]:
    src, dst = formats
    return {
        **{"SRC": src.element, "DST": dst.element},
        **{"SRC_SCALE": src.scale, "DST_SCALE": dst.scale},
        "SRC_BYTES": max(ELEMENT_BITS[src.element] // 8, 1),
        "DST_BYTES": max(ELEMENT_BITS[dst.element] // 8, 1),
        **{"SRC_WIDTH": rows.widths[0], "DST_WIDTH": rows.widths[1]},
        **{"ROWS": tile.rows, "COLS": tile.cols, "LOOPS": variant},
        "HAS_ONE_SCALE": src.group_elements % rows.strip == 0,
        "ALIGNED_SCALES": rows.has_aligned_scales,
        "IS_SPLIT": _is_split(rows, src),
    }
