"""Conversion of rows: gathered, computed as one vector, scattered; some blocks at a time."""

import math
from typing import Final, NamedTuple

from torch import Tensor

from transload_kernels.formats import ELEMENT_BITS, SCALE_BYTES, Format, ScalePlace
from transload_kernels.implementation import Loop
from transload_kernels.torch_path import numbers
from transload_kernels.torch_path.gather import Stride, gather, scatter

CHUNK_ELEMENTS: Final = 1 << 18
"""Of blocks converted at once, one block at the least: a MiB of binary32."""


class _Side(NamedTuple):
    """What one side of a conversion is, apart from its offsets."""

    buffer: Tensor
    of: Format
    row_bytes: int
    loops: tuple[Stride, ...]
    delta: int
    scale_loops: tuple[Stride, ...]

    @property
    def scale_bytes(self) -> int:
        return SCALE_BYTES[self.of.scale]


def convert_rows(
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
    """See `operations.convert_rows`."""
    read = _side(src, src_format, num_elements, [loop[:2] for loop in loops], src_scales)
    write = _side(dst, dst_format, num_elements, [loop[::2] for loop in loops], dst_scales)
    block_elements = num_elements * math.prod(count for count, _, _ in loops)
    at_once = max(1, CHUNK_ELEMENTS // block_elements)
    for first in range(0, len(dst_offsets), at_once):
        some = slice(first, first + at_once)
        _write(write, dst_offsets[some], _read(read, src_offsets[some]))


def _side(
    buffer: Tensor,
    of: Format,
    num_elements: int,
    loops: list[Stride],
    place: ScalePlace | None,
) -> _Side:
    row_bytes = num_elements * ELEMENT_BITS[of.element] // 8
    if place is None:
        return _Side(buffer, of, row_bytes, tuple(loops), 0, ())
    counts = [count for count, _ in loops]
    groups = (num_elements // of.group_elements, place.group_stride)
    scale_loops = (*zip(counts, place.strides, strict=True), groups)
    return _Side(buffer, of, row_bytes, tuple(loops), place.delta, scale_loops)


def _read(side: _Side, offsets: Tensor) -> Tensor:
    """The values of some blocks, float32, flat, new memory."""
    raw = gather(side.buffer, offsets, side.row_bytes, side.loops)
    elements = numbers.decode(raw, side.of.element)
    if side.of.scale == "none":
        return elements
    if side.of.scale == "tensor":
        return elements.mul_(numbers.scalar(side.of.scale_value, elements))
    stored = gather(side.buffer, offsets + side.delta, side.scale_bytes, side.scale_loops)
    grouped = elements.view(-1, side.of.group_elements)
    return numbers.to_values(grouped, *numbers.read_scales(stored, side.of)).flatten()


def _write(side: _Side, offsets: Tensor, values: Tensor) -> None:
    """Encode values, which are used up, into some blocks."""
    if side.of.scale == "tensor":
        values = values.div_(numbers.scalar(side.of.scale_value, values))
    elif side.scale_bytes:
        grouped = values.view(-1, side.of.group_elements)
        stored = numbers.make_scales(grouped, side.of)
        scatter(side.buffer, stored, offsets + side.delta, side.scale_bytes, side.scale_loops)
        values = numbers.to_quotients(grouped, *numbers.read_scales(stored, side.of)).flatten()
    raw = numbers.encode(values, side.of.element)
    scatter(side.buffer, raw, offsets, side.row_bytes, side.loops)
