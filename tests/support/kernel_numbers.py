"""Conversions with awkward numbers: every format to every other, all patterns, ends and halves."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

from support.kernel_buffers import Guarded, guarded, holding, noise
from support.kernel_cases import Case
from transload_kernels.formats import (
    ELEMENT_BITS,
    SCALE_BYTES,
    ElementType,
    Format,
    ScalePlace,
    ScaleType,
)

_SMALL: Final[tuple[ElementType, ...]] = ("e4m3", "e5m2", "e4m3fnuz", "e5m2fnuz", "i8")
_WIDE: Final[tuple[ElementType, ...]] = ("f32", "f16", "bf16")
_INLINE: Final[tuple[ScaleType, ...]] = ("f32", "ue8m0")

_FLOAT8: Final = (
    *(torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
)

GROUP: Final = 16


def formats(group_elements: int = GROUP) -> tuple[Format, ...]:
    """Every pair of an element and a scale that go together."""
    return (
        *(Format(element) for element in (*_WIDE, *_SMALL)),
        *(Format(element, "tensor", 0, 0.37) for element in _SMALL),
        *(Format(element, scale, group_elements) for scale in _INLINE for element in _SMALL),
        Format("u4", "f32_zero4", group_elements),
    )


def pair_cases() -> Iterator[Case]:
    """Every format to every other, over any bits and over values of four sizes."""
    rng = random.Random(7)
    for number, (src, dst) in enumerate(itertools.product(formats(), formats())):
        light = number % 11 == 0
        name = f"{describe(src)} to {describe(dst)}"
        yield _conversion(rng, name, src, dst, _places(rng, 3 * GROUP), is_light=light)


def value_cases() -> Iterator[Case]:
    """From binary32 to each format: halves between elements, ends, subnormals, NaNs, zeros."""
    content = awkward_values()
    for number, dst in enumerate(formats()):
        rows = len(content) // GROUP
        row_bytes, scale_bytes = _sizes(dst, GROUP)
        to = guarded(random.Random(number), rows * (row_bytes + scale_bytes), number % 2)
        pitch = row_bytes + scale_bytes
        place = ScalePlace(row_bytes, (pitch,), 0) if scale_bytes else None
        loops = ((rows, 4 * GROUP, pitch),)
        start = torch.tensor([0])
        arguments = (start, start, GROUP, loops, Format("f32"), dst, None, place)
        of = holding(content)
        yield Case(f"values to {describe(dst)}", "convert_rows", (to,), (of,), arguments)


def pattern_cases() -> Iterator[Case]:
    """All patterns of each element of 16 or fewer bits, to binary32 and to bf16."""
    for element in ("f16", "bf16", *_SMALL):
        bits = ELEMENT_BITS[element]
        content = torch.arange(2**bits).to(torch.int16 if bits == 16 else torch.uint8)
        for dst in (Format("f32"), Format("bf16"), Format("e4m3"), Format("e5m2")):
            to = guarded(random.Random(0), 2**bits * ELEMENT_BITS[dst.element] // 8, 4)
            start = torch.tensor([0])
            arguments = (start, start, 2**bits, (), Format(element), dst)
            name = f"all of {element} to {dst.element}"
            of = holding(content)
            yield Case(name, "convert_rows", (to,), (of,), arguments, bits == 8)


def shape_cases() -> Iterator[Case]:
    """Rows of one element, of odd lengths, at odd places, scales before, behind and far away."""
    rng = random.Random(8)
    bf16, fp8 = Format("bf16"), Format("e4m3", "f32", 128)
    for num_elements in (1, 3, 7, 31, 33, 130):
        plain = _places(rng, num_elements)
        for src, dst in ((bf16, Format("e4m3")), (Format("e5m2"), Format("f32"))):
            name = f"rows of {num_elements} {describe(src)} to {describe(dst)}"
            yield _conversion(rng, name, src, dst, plain)
    for groups, size in ((1, 2), (4, 128), (7, 64), (16, 32), (3, 10), (5, 6)):
        for dst in (each for each in formats(size) if each.group_elements):
            places = _places(rng, groups * size)
            name = f"{groups} groups of {size}: {describe(dst)}"
            light = groups in (7, 3)
            yield _conversion(rng, f"bf16 to {name}", bf16, dst, places, is_light=light)
            yield _conversion(rng, f"{name} to bf16", dst, bf16, places, is_light=groups == 7)
    yield _conversion(rng, "many rows", bf16, fp8, (128, (9, 11), 5), is_light=False)
    yield _conversion(rng, "many rows back", fp8, bf16, (128, (9, 11), 5), is_light=False)


def describe(of: Format) -> str:
    return of.element if of.scale == "none" else f"{of.element}*{of.scale}"


def awkward_values() -> Tensor:
    """float32, in groups of `GROUP`: each group of one size, so that its scale is."""
    groups: list[Tensor] = []
    for dtype in _FLOAT8:
        values = torch.arange(128, dtype=torch.uint8).view(dtype).to(torch.float32)
        values = values[values.isfinite()].sort().values
        halves = (values[1:] + values[:-1]) / 2
        above, below = (torch.nextafter(halves, torch.tensor(end)) for end in (1e9, -1e9))
        groups += [_filled(each) for each in (values, -values, halves, -halves, above, below)]
    nan, inf = float("nan"), float("inf")
    largest, least = torch.finfo(torch.float32).max, 2.0**-149
    for special in (
        [0.0] * GROUP,
        [-0.0, 0.0] * (GROUP // 2),
        [nan] * GROUP,
        [nan, 1.0, -nan, -2.0, 0.0, 3.5] + [0.25] * (GROUP - 6),
        [inf, 1.0, -2.0] + [0.5] * (GROUP - 3),
        [-inf, inf, nan, 1.0] + [0.5] * (GROUP - 4),
        [largest, -largest, 1.0, least] * (GROUP // 4),
        [largest / 3] * GROUP,
        [least] * GROUP,
        [least, -2 * least, 7 * least, 100 * least] * (GROUP // 4),
        [1e-38, -2e-38, 1e-40, 1e-44] * (GROUP // 4),
        [448.0, 449.0, 463.9, 464.0, 464.1, 480.0, 1e4, -1e4] * (GROUP // 8),
        [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5, 127.5] * (GROUP // 8),
        [-128.0, -128.5, -129.0, 127.0, 7.5, 8.5, 14.5, 15.5] * (GROUP // 8),
        [2.0**-127, 2.0**-126, 2.0**-128, 3 * 2.0**-130] * (GROUP // 4),
        [448 * 2.0**-127, 449 * 2.0**-127, 0.0, 1e-45] * (GROUP // 4),
    ):
        groups.append(torch.tensor(special, dtype=torch.float32))
    # One peak a group: each scale's largest element, and what is just above and below it.
    for peak in (448.0, 57344.0, 240.0, 127.0, 896.0, 3.0e38, 1e-30):
        for near in (peak, peak * (1 + 2.0**-23), peak * (1 - 2.0**-24)):
            groups.append(torch.linspace(-near, near, GROUP, dtype=torch.float32))
    any_bits = noise(random.Random(9), 4 * GROUP * 64).view(torch.float32)
    return torch.cat([*groups, any_bits])


def _filled(values: Tensor) -> Tensor:
    """With zeros to whole groups."""
    return torch.cat((values, torch.zeros(-len(values) % GROUP)))


_Places = tuple[int, tuple[int, ...], int]
"""Elements of a row, counts of the loops, blocks."""


def _places(rng: random.Random, num_elements: int) -> _Places:
    counts = tuple(rng.randint(1, 3) for _ in range(rng.randint(0, 2)))
    return num_elements, counts, rng.randint(1, 3)


class _Lay:
    """One side of a conversion: rows one behind the other, scales by one of four habits."""

    def __init__(self, rng: random.Random, of: Format, places: _Places) -> None:
        num_elements, counts, num_blocks = places
        row_bytes, scale_bytes = _sizes(of, num_elements)
        gap = rng.choice((0, 0, 1, 6))
        habit = rng.choice(("behind", "before", "region")) if scale_bytes else "none"
        is_within = habit in ("behind", "before")
        pitch = row_bytes + gap + (scale_bytes if is_within else 0)
        self.strides = _flat(counts, pitch)
        block = pitch * math.prod(counts)
        region = math.prod(counts) * scale_bytes if habit == "region" else 0
        first = scale_bytes if habit == "before" else 0
        self.offsets = torch.tensor(
            [first + (block + region) * n for n in rng.sample(range(num_blocks), num_blocks)]
        )
        self.num_bytes = (block + region) * num_blocks + first
        self.place: ScalePlace | None = None
        size = SCALE_BYTES[of.scale]
        if is_within:
            delta = row_bytes if habit == "behind" else -scale_bytes
            self.place = ScalePlace(delta, self.strides, size)
        elif habit == "region":
            self.place = ScalePlace(block, _flat(counts, scale_bytes), size)

    def memory(self, rng: random.Random) -> Guarded:
        return guarded(rng, self.num_bytes, rng.choice((0, 0, 1)))


def _conversion(
    rng: random.Random,
    name: str,
    src: Format,
    dst: Format,
    places: _Places,
    *,
    is_light: bool = True,
) -> Case:
    num_elements, counts, _ = places
    of, to = _Lay(rng, src, places), _Lay(rng, dst, places)
    loops = tuple(zip(counts, of.strides, to.strides, strict=True))
    arguments = (to.offsets, of.offsets, num_elements, loops, src, dst, of.place, to.place)
    source = of.memory(rng)
    if src.element in _WIDE and rng.random() < 0.5:
        _write_values(rng, source.buffer, src.element)
    return Case(name, "convert_rows", (to.memory(rng),), (source,), arguments, is_light)


def _write_values(rng: random.Random, buffer: Tensor, element: ElementType) -> None:
    """Values of one size over any bits; those at odd places come out as noise again."""
    dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[element]
    count = len(buffer) // dtype.itemsize
    values = [rng.gauss(0, 1) * rng.choice((1e-6, 1.0, 300.0)) for _ in range(count)]
    raw = torch.tensor(values).to(dtype).view(torch.uint8)
    buffer[: len(raw)] = raw


def _sizes(of: Format, num_elements: int) -> tuple[int, int]:
    """Bytes of a row's elements and of its scales."""
    groups = num_elements // of.group_elements if of.group_elements else 0
    return num_elements * ELEMENT_BITS[of.element] // 8, groups * SCALE_BYTES[of.scale]


def _flat(counts: tuple[int, ...], step: int) -> tuple[int, ...]:
    """Strides of loops without gaps, the last one fastest."""
    strides: list[int] = []
    for count in reversed(counts):
        strides.insert(0, step)
        step *= count
    return tuple(strides)


NUMBERS: Final = (pair_cases, value_cases, pattern_cases, shape_cases)
"""All conversions."""
