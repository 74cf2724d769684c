"""Numbers from format to format: `convert_rows`."""

import torch
from torch import Tensor

from transload_kernels.formats import ELEMENT_BITS, SCALE_BYTES, Format, ScalePlace
from transload_kernels.implementation import Loop
from transload_kernels.reference import scales
from transload_kernels.reference.moves import sides
from transload_kernels.reference.places import steps


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
    """Convert rows; see `operations.convert_rows`."""
    counts, src_strides, dst_strides = sides(loops)
    src_scale_strides = src_scales.strides if src_scales else [0] * len(loops)
    dst_scale_strides = dst_scales.strides if dst_scales else [0] * len(loops)
    strides = (src_strides, dst_strides, src_scale_strides, dst_scale_strides)
    for dst_offset, src_offset in zip(dst_offsets.tolist(), src_offsets.tolist(), strict=True):
        for src_step, dst_step, src_scale_step, dst_scale_step in steps(counts, *strides):
            places = _scale_places(
                src_offset + src_scale_step, num_elements, src_format, src_scales
            )
            values = _read_row(src, src_offset + src_step, num_elements, src_format, places)
            places = _scale_places(
                dst_offset + dst_scale_step, num_elements, dst_format, dst_scales
            )
            _write_row(dst, dst_offset + dst_step, values, dst_format, places)


def _scale_places(at: int, num_elements: int, of: Format, place: ScalePlace | None) -> list[int]:
    """The byte of each group's scale; none where no scale is inline."""
    if place is None:
        return []
    num_groups = num_elements // of.group_elements
    return [at + place.delta + group * place.group_stride for group in range(num_groups)]


def _read_row(src: Tensor, at: int, num_elements: int, of: Format, places: list[int]) -> Tensor:
    """The row's values, float32 `[num_elements]`."""
    raw = src[at : at + num_elements * ELEMENT_BITS[of.element] // 8]
    size = SCALE_BYTES[of.scale]
    raw_scales = [src[place : place + size] for place in places]
    none = torch.empty((0, 0), dtype=torch.uint8, device="cpu")
    stored = torch.stack(raw_scales) if raw_scales else none
    return scales.to_values(raw, scales.read(stored, of), of).flatten()


def _write_row(dst: Tensor, at: int, values: Tensor, of: Format, places: list[int]) -> None:
    """Write the row's elements and its scales."""
    groups = values.view(max(len(places), 1), -1)
    made = scales.make(groups, of)
    raw = scales.to_elements(groups, made, of)
    dst[at : at + len(raw)] = raw
    for place, raw_scale in zip(places, made.raw, strict=False):
        dst[place : place + len(raw_scale)] = raw_scale
