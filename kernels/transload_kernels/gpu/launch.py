"""How a launch is laid out: widths, tiles, loops, the cap on programs. Numbers, and no GPU."""

from collections.abc import Mapping, Sequence
from functools import reduce
from math import gcd, prod
from typing import Final, NamedTuple

import torch
from torch import Tensor

from transload_kernels.errors import Unsupported

PROGRAMS_VARIABLE: Final = "TRANSLOAD_KERNELS_SMS"
MAX_INDEX: Final = 2**31
"""Rows and tiles of one launch stay below: what `divisor` is exact for."""
MAX_LOOPS: Final = 4
"""Loops that a kernel takes apart; what is above becomes more offsets."""
LINE_BYTES: Final = 128
"""A GPU's cache line: narrower tiles waste what memory sends."""


class Tuning(NamedTuple):
    """What may be changed without changing what is computed.

    Attributes:
        num_programs: Programs of a launch at most. A program keeps about one SM (compute unit)
            from the model's own kernels; 0: as many as fill the GPU.
        tile_units: Accesses of up to 16 bytes that a program has in flight; a power of two.
        num_threads: Of a program; a power of two of at least 64.
    """

    num_programs: int = 12
    tile_units: int = 2048
    num_threads: int = 512


def tuning_of(environment: Mapping[str, str]) -> Tuning:
    """The defaults, with the cap that the operator has set; raises `Unsupported` if it is none."""
    text = environment.get(PROGRAMS_VARIABLE)
    if text is None:
        return Tuning()
    if not (text.isascii() and text.isdecimal()):
        raise Unsupported(f"{PROGRAMS_VARIABLE}={text!r}: a whole number, 0 for all of the GPU")
    return Tuning(num_programs=int(text))


class Divisor(NamedTuple):
    """A number, and what divides by it: `x * multiplier >> 31 + shift`."""

    number: int
    multiplier: int
    shift: int


def divisor(count: int) -> Divisor:
    """Exact for numbers below `MAX_INDEX`; the multiplier is below 2 ** 32.

    By Granlund and Montgomery, Division by Invariant Integers using Multiplication, theorem 4.2.
    """
    shift = (count - 1).bit_length()
    return Divisor(count, -(-(1 << (31 + shift)) // count), shift)


def common_width(*numbers: int) -> int:
    """The widest access, 16, 8, 4, 2 or 1 bytes, that divides all of the numbers."""
    return reduce(gcd, numbers, 16)


def offsets_width(offsets: Tensor) -> int:
    """The widest access that divides every one of the offsets.

    Waits for the device if the offsets are there.
    """
    if not len(offsets):
        return 16
    low_bits = offsets | 16
    return int((low_bits & -low_bits).min())


def fold(loops: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """The same rows in the same order by fewer loops: (count, stride of each side)."""
    folded: list[tuple[int, ...]] = []
    for loop in loops:
        count, strides = loop[0], loop[1:]
        if count == 1:
            continue
        if folded and folded[-1][1:] == tuple(count * stride for stride in strides):
            folded[-1] = (folded[-1][0] * count, *strides)
        else:
            folded.append(loop)
    return tuple(folded)


def spread(
    offsets: Sequence[Tensor], loops: tuple[tuple[int, ...], ...], most: int, weight: int
) -> tuple[list[Tensor], tuple[tuple[int, ...], ...]]:
    """Work outer loops into the offsets until a kernel can take the rest.

    Args:
        offsets: For each side int64 `[n]`.
        loops: (count, stride of each side), outermost first.
        most: Loops that may stay.
        weight: Indices that each row of a block counts for; with the loops' counts, a block's
            share of `MAX_INDEX`.
    """
    sides = list(offsets)
    while loops and (len(loops) > most or weight * prod(loop[0] for loop in loops) >= MAX_INDEX):
        (count, *strides), loops = loops[0], loops[1:]
        for side, stride in enumerate(strides):
            steps = torch.arange(count, dtype=torch.int64, device=sides[side].device) * stride
            sides[side] = (sides[side][:, None] + steps).flatten()
    return sides, loops


def power_of_two(number: int) -> int:
    """The least power of two that is not below."""
    return 1 << max(number - 1, 0).bit_length()


class Tile(NamedTuple):
    """Rows and columns of a program's step; powers of two."""

    rows: int
    cols: int


def tile_of(num_rows: int, num_cols: int, size: int, narrowest: int) -> Tile:
    """How to cut a table so that few lanes idle: the widest tile that fits rows to nine tenths.

    Args:
        num_rows: Of the table; a tile has no more than the next power of two.
        num_cols: Of the table, in units.
        size: Units of a tile; a power of two.
        narrowest: Columns below which no tile is cut to fit the end of a row; a power of two.
    """
    most = min(power_of_two(num_cols), size)
    least = min(narrowest, most)
    choices = [most >> i for i in range((most // least).bit_length())]
    fitting = (cols for cols in choices if _fill(num_cols, cols) >= 0.9)
    cols = next(fitting, None) or max(choices, key=lambda cols: _fill(num_cols, cols))
    return Tile(min(power_of_two(num_rows), size // cols), cols)


def _fill(num_cols: int, cols: int) -> float:
    """The share of lanes that have something to do."""
    return num_cols / (ceil_div(num_cols, cols) * cols)


def ceil_div(number: int, by: int) -> int:
    """Rounded up."""
    return -(-number // by)


def loop_arguments(
    loops: Sequence[tuple[int, ...]], num_sides: int, num_loops: int = MAX_LOOPS
) -> list[int]:
    """A kernel's scalars for its loops, innermost first, idle ones up to `num_loops`."""
    idle = (1, *([0] * num_sides))
    numbers: list[int] = []
    for count, *strides in [*reversed(loops), *([idle] * (num_loops - len(loops)))]:
        numbers += [*divisor(count), *strides]
    return numbers


def loops_variant(num_loops: int) -> int:
    """0, 2 or 4: a kernel is compiled for few depths, idle loops cost little."""
    return num_loops + num_loops % 2
