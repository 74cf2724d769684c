"""What callers of the operations may give: every check there is, made before a byte is written.

Each check raises `BadArgument` and begins its message with the argument's name. Implementations
rely on what passed here and check nothing again.
"""

import math
import operator
from collections.abc import Sequence
from typing import Final, SupportsIndex

import torch
from torch import Tensor

from transload_kernels import extents
from transload_kernels.errors import BadArgument
from transload_kernels.formats import ELEMENT_BITS, SCALE_BYTES, Format, ScalePlace
from transload_kernels.implementation import Loop

_INT64: Final = range(-(2**63), 2**63)
_MAX_BYTES: Final = 2**62
"""That one call may move: counters of all implementations hold twice as much."""

_BEFORE_LEAST: Final = 2.0**-150
_BEYOND_MOST: Final = 2.0**128 - 2.0**103
"""Halfway from binary32's least number to 0, and beyond its largest: both round to even, so out."""

_SCALES_OF_8_BITS: Final = ("none", "tensor", "f32", "ue8m0")


def check_buffer(name: str, buffer: Tensor, like: Tensor | None = None) -> None:
    """A pool: uint8, flat, without gaps, and on the device of `like`."""
    if not isinstance(buffer, Tensor):
        raise BadArgument(f"{name}: expected a tensor, got {type(buffer).__name__}")
    if buffer.dtype != torch.uint8:
        raise BadArgument(f"{name}: expected uint8, got {buffer.dtype}")
    if buffer.dim() != 1 or not buffer.is_contiguous():
        shape, strides = list(buffer.shape), list(buffer.stride())
        raise BadArgument(f"{name}: expected flat memory, got shape {shape}, strides {strides}")
    _check_memory(name, buffer)
    if like is not None and buffer.device != like.device:
        raise BadArgument(f"{name}: expected device {like.device}, got {buffer.device}")


def check_buffers(name: str, buffers: Sequence[Tensor], like: Tensor | None = None) -> Tensor:
    """Pools of one device, at least one; returns the first."""
    if isinstance(buffers, Tensor) or not buffers:
        raise BadArgument(f"{name}: expected one or more tensors in a sequence")
    first = buffers[0]
    for index, buffer in enumerate(buffers):
        check_buffer(f"{name}[{index}]", buffer, like if like is not None or not index else first)
    return first


def check_offsets(name: str, offsets: Tensor, buffer: Tensor, length: int | None = None) -> None:
    """Byte offsets: int64 `[n]` on the CPU or on the buffer's device."""
    if not isinstance(offsets, Tensor):
        raise BadArgument(f"{name}: expected a tensor, got {type(offsets).__name__}")
    if offsets.dtype != torch.int64:
        raise BadArgument(f"{name}: expected int64, got {offsets.dtype}")
    if offsets.dim() != 1 or not offsets.is_contiguous():
        raise BadArgument(f"{name}: expected a flat list, got shape {list(offsets.shape)}")
    _check_memory(name, offsets)
    _check_offsets_device(name, offsets, buffer)
    if length is not None and len(offsets) != length:
        raise BadArgument(
            f"{name}: expected {length}, as many as on the other side, got {len(offsets)}"
        )


def check_runs(runs: Tensor, buffer: Tensor) -> None:
    """A run list: int64 `[n, 5]` on the CPU or on the buffers' device."""
    if not isinstance(runs, Tensor) or runs.dtype != torch.int64:
        raise BadArgument("runs: expected an int64 tensor")
    if runs.dim() != 2 or runs.shape[1] != 5 or not runs.is_contiguous():
        raise BadArgument(f"runs: expected shape [n, 5] without gaps, got {list(runs.shape)}")
    _check_memory("runs", runs)
    _check_offsets_device("runs", runs, buffer)


def whole(name: str, value: SupportsIndex, least: int = _INT64.start) -> int:
    """A whole number of 64 bits with sign, at least `least`."""
    try:
        number = operator.index(value)
    except TypeError:
        raise BadArgument(f"{name}: expected a whole number, got {value!r}") from None
    if number not in _INT64 or number < least:
        raise BadArgument(f"{name}: expected {least}..2**63-1, got {number}")
    return number


def loops_of(name: str, loops: Sequence[Loop]) -> tuple[Loop, ...]:
    """Loops (count, source stride, destination stride) as plain numbers; a count may be 0."""
    return tuple(
        (whole(f"{name}[{i}] count", count, 0), *_strides(f"{name}[{i}]", (src_stride, dst_stride)))
        for i, (count, src_stride, dst_stride) in _each(name, loops, 3)
    )


def one_side_loops_of(name: str, loops: Sequence[extents.Stride]) -> tuple[extents.Stride, ...]:
    """Loops (count, stride) as plain numbers; a count may be 0."""
    return tuple(
        (whole(f"{name}[{i}] count", count, 0), whole(f"{name}[{i}] stride", stride))
        for i, (count, stride) in _each(name, loops, 2)
    )


def check_volume(num_offsets: int, counts: Sequence[int], row_bytes: int) -> int:
    """The bytes that a call moves, which counters must be able to hold."""
    num_bytes = num_offsets * math.prod(counts) * row_bytes
    if num_bytes > _MAX_BYTES:
        raise BadArgument(f"loops: {num_bytes} bytes in one call, at most {_MAX_BYTES}")
    return num_bytes


def check_inside(
    name: str, offsets: Tensor, loops: Sequence[extents.Stride], row_bytes: int, buffer: Tensor
) -> None:
    """Every byte that loops of counts above 0 touch from every offset is one of the buffer."""
    low, high = extents.reach(loops, row_bytes)
    least, most = (int(end) for end in offsets.aminmax())
    if least + low < 0 or most + high > len(buffer):
        raise BadArgument(
            f"{name}: bytes {least + low}..{most + high} are touched, the buffer has {len(buffer)}"
        )


def check_runs_inside(runs: Tensor, dst: Sequence[Tensor], src: Sequence[Tensor]) -> None:
    """Every run names buffers that exist and bytes that are theirs; lengths may be 0."""
    num_bytes = runs[:, 4]
    if int(num_bytes.min()) < 0:
        raise BadArgument(f"runs: num_bytes {int(num_bytes.min())} is below 0")
    for name, buffers, index, offset in (
        ("dst", dst, runs[:, 0], runs[:, 1]),
        ("src", src, runs[:, 2], runs[:, 3]),
    ):
        if int(index.min()) < 0 or int(index.max()) >= len(buffers):
            raise BadArgument(f"runs: {name} buffer beyond 0..{len(buffers) - 1}")
        sizes = torch.tensor([len(buffer) for buffer in buffers], device=runs.device)[index]
        # The difference cannot overflow as the sum of an offset and a length can.
        is_outside = (offset < 0) | (offset > sizes) | (num_bytes > sizes - offset)
        if bool(is_outside.any()):
            row = int(is_outside.nonzero()[0])
            raise BadArgument(f"runs: {name} of row {row} is beyond its buffer")
    if float(num_bytes.double().sum()) > _MAX_BYTES:
        raise BadArgument(f"runs: more than {_MAX_BYTES} bytes in one call")


def check_written_once(name: str, parts: Sequence[extents.Rows]) -> None:
    """No byte is written twice, as far as that can be told cheaply."""
    if extents.overlap_within(parts):
        raise BadArgument(f"{name}: some bytes would be written twice")


def check_apart(written: extents.Rows, read: extents.Rows) -> None:
    """No byte is both read and written; where that cannot be told cheaply, refused."""
    meets = extents.overlap_between(written, read)
    if meets is not False:
        why = "some bytes would be read and written" if meets else "cannot be told from src in time"
        raise BadArgument(f"dst: {why}; give disjoint ranges or another buffer")


def is_shared(left: Tensor, right: Tensor) -> bool:
    """Whether two buffers have memory in common."""
    if left.device != right.device:
        return False
    first: int = left.data_ptr()
    second: int = right.data_ptr()
    return first < second + len(right) and second < first + len(left)


def check_format(name: str, of: Format, num_elements: int) -> None:
    """A format whose parts go together and whose groups fill a row of `num_elements`."""
    if of.element not in ELEMENT_BITS or of.scale not in SCALE_BYTES:
        raise BadArgument(f"{name}: unknown element {of.element!r} or scale {of.scale!r}")
    if of.scale not in _scales_for(of):
        raise BadArgument(f"{name}: {of.element} has scales {_scales_for(of)}, not {of.scale!r}")
    if of.element == "u4" and num_elements % 2:
        raise BadArgument(f"num_elements: u4 fills bytes in pairs, got {num_elements}")
    group = whole(f"{name}.group_elements", of.group_elements, 0)
    if not SCALE_BYTES[of.scale] and group:
        raise BadArgument(f"{name}.group_elements: scale {of.scale!r} has no groups, got {group}")
    if SCALE_BYTES[of.scale] and (group < 1 or num_elements % group):
        raise BadArgument(
            f"{name}.group_elements: {group} does not divide a row of {num_elements} elements"
        )
    if of.scale == "tensor" and not _is_scale(of.scale_value):
        raise BadArgument(f"{name}.scale_value: expected a binary32 above 0, got {of.scale_value}")


def check_place(name: str, place: ScalePlace | None, of: Format, num_loops: int) -> None:
    """A place for scales if and only if the format has some, with a stride for each loop."""
    if (place is not None) != bool(SCALE_BYTES[of.scale]):
        verb = "needs" if place is None else "has no"
        raise BadArgument(f"{name}: scale {of.scale!r} {verb} place in the buffer")
    if place is None:
        return
    if len(place.strides) != num_loops:
        raise BadArgument(f"{name}.strides: expected {num_loops}, one a loop, got {place.strides}")
    for stride in (place.delta, *place.strides, place.group_stride):
        whole(name, stride)


def row_bytes_of(of: Format, num_elements: int) -> int:
    """Bytes of a row's elements."""
    return num_elements * ELEMENT_BITS[of.element] // 8


def scale_bytes_of(of: Format) -> int:
    """Bytes of one inline scale."""
    return SCALE_BYTES[of.scale]


def scale_loops(
    place: ScalePlace, of: Format, num_elements: int, counts: Sequence[int]
) -> tuple[extents.Stride, ...]:
    """The loops that lead to every inline scale: the call's, then one over groups."""
    groups = (num_elements // of.group_elements, place.group_stride)
    return (*zip(counts, place.strides, strict=True), groups)


def _scales_for(of: Format) -> tuple[str, ...]:
    if of.element == "u4":
        return ("f32_zero4",)
    return _SCALES_OF_8_BITS if ELEMENT_BITS[of.element] == 8 else ("none",)


def _is_scale(value: float) -> bool:
    """Whether it rounds to a finite binary32 above 0; by no conversion, which may flush it."""
    return isinstance(value, int | float) and _BEFORE_LEAST < value < _BEYOND_MOST


def _check_memory(name: str, tensor: Tensor) -> None:
    """Storage may have been resized under a tensor, which then leads beyond it."""
    end = (tensor.storage_offset() + tensor.numel()) * tensor.element_size()
    if end > tensor.untyped_storage().nbytes():
        raise BadArgument(f"{name}: its storage ends before it does, was it resized?")


def _check_offsets_device(name: str, offsets: Tensor, buffer: Tensor) -> None:
    if offsets.device.type != "cpu" and offsets.device != buffer.device:
        raise BadArgument(f"{name}: expected device cpu or {buffer.device}, got {offsets.device}")


def _strides(name: str, strides: tuple[int, int]) -> tuple[int, int]:
    src_stride, dst_stride = strides
    return whole(f"{name} source stride", src_stride), whole(f"{name} stride", dst_stride)


def _each(
    name: str, loops: Sequence[tuple[int, ...]], width: int
) -> list[tuple[int, tuple[int, ...]]]:
    """Loops with their numbers, each of `width` values."""
    for index, loop in enumerate(loops):
        if len(loop) != width:
            raise BadArgument(f"{name}[{index}]: expected {width} numbers, got {tuple(loop)}")
    return list(enumerate(loops))
