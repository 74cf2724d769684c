"""How one axis of a role runs through memory on both sides at once: digits, and loops over them.

Knows nothing of groups or blocks. All strides and offsets are in bits.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from math import gcd, lcm
from typing import Final, NamedTuple

from transload_abi.errors import Refused
from transload_abi.plan.types import Loop
from transload_abi.types import Role

Digits = tuple[tuple[int, int, int], ...]
"""Rows (div, extent, stride) from div 1 upwards; each starts where the one before ends."""


MAX_POINTS: Final = 1 << 16
"""Steps of one axis that no loop describes on both sides at once; almost always there is one."""


class Nest(NamedTuple):
    """Nested loops, outermost first, from an offset on either side."""

    src: int
    dst: int
    loops: tuple[Loop, ...] = ()


def digits(role: Role, axis: str) -> Digits:
    """The digits of an axis, with those that continue one another made one."""
    merged: list[tuple[int, int, int]] = []
    for _, div, extent, stride in sorted(term for term in role.terms if term[0] == axis):
        if extent == 1:
            continue
        if merged and stride == merged[-1][1] * merged[-1][2]:
            first, count, step = merged.pop()
            merged.append((first, count * extent, step))
        else:
            merged.append((div, extent, stride))
    return tuple(merged)


def offset(axis: Digits, index: int) -> int:
    """Bits from index 0 to an index."""
    return sum(index // div % extent * stride for div, extent, stride in axis)


def is_additive(axis: Digits, step: int) -> bool:
    """Whether `offset(p * step + i) == offset(p * step) + offset(i)` for all `i` below `step`."""
    return all(
        div % step == 0
        or (step % div == 0 and (div * extent % step == 0 or step % (div * extent) == 0))
        for div, extent, _ in axis
    )


def restrict(axis: Digits, start: int, count: int) -> Digits | None:
    """The digits of the range that begins at `start`, counted from there.

    Returns:
        None where the range begins or ends amid a digit that it also crosses: no digits say that.
    """
    kept: list[tuple[int, int, int]] = []
    last = start + count - 1
    for div, extent, stride in axis:
        if start // div == last // div:
            break
        if start % div or count % div:
            return None
        is_last = start // (div * extent) == last // (div * extent)
        kept.append((div, count // div if is_last else extent, stride))
    return tuple(kept)


def spans(axes: Sequence[tuple[Digits, int]], count: int) -> Iterator[tuple[int, int]]:
    """Few ranges (first, count) of `0..count` that all axes have digits for, as `restrict` says.

    Usually one; as a rule each is the longest that can begin where the one before ends.

    Args:
        axes: Digits, and the index at which the axis begins.
        count: At least one, and no more than any axis has.
    """
    first = 0
    cut = {(tuple(row[0] for row in axis), start) for axis, start in axes if axis}
    while first < count:
        starts = [(divs, start + first) for divs, start in cut]
        length = _longest(starts, count - first)
        yield first, length
        first += length


def _longest(starts: Sequence[tuple[tuple[int, ...], int]], most: int) -> int:
    """How many indices from the starts on have digits on all axes, whose `div`s are given."""
    levels = [
        max(level for level, div in enumerate(divs) if start % div == 0) for divs, start in starts
    ]
    while True:
        units, room = [1], most
        for (divs, start), level in zip(starts, levels, strict=True):
            units.append(divs[level])
            if level + 1 < len(divs):
                room = min(room, divs[level + 1] - start % divs[level + 1])
        unit = lcm(*units)
        if unit <= room:
            return room // unit * unit
        coarsest = max(range(len(starts)), key=lambda at: starts[at][0][levels[at]])
        levels[coarsest] -= 1


def axis_nests(
    src: Digits,
    src_start: int,
    dst: Digits,
    dst_start: int,
    count: int,
    spend: Callable[[int], None] = lambda _: None,
) -> list[Nest]:
    """Loops over `count` indices that begin at `src_start` and `dst_start`.

    Usually one nest. Ranges that fit the digits badly come to several. `spend` is told how many
    steps are about to be walked, and may raise.

    Raises:
        Refused: They fit so badly that it would take too long.
    """
    base = (offset(src, src_start), offset(dst, dst_start))
    src_digits, dst_digits = restrict(src, src_start, count), restrict(dst, dst_start, count)
    if src_digits is None or dst_digits is None:
        _check_points(count, spend)
        points = [
            Nest(offset(src, src_start + i), offset(dst, dst_start + i)) for i in range(count)
        ]
        return compress(points)
    cuts = sorted({1, count, *(row[0] for row in (*src_digits, *dst_digits))})
    inner = _even_cuts(cuts)
    loops = tuple(
        (high // low, offset(src_digits, low), offset(dst_digits, low))
        for low, high in reversed([*pairwise(inner)])
    )
    step = inner[-1]
    _check_points(count // step, spend)
    points = [
        Nest(base[0] + offset(src_digits, i), base[1] + offset(dst_digits, i), loops)
        for i in range(0, count, step)
    ]
    return compress(points)


def _check_points(count: int, spend: Callable[[int], None]) -> None:
    if count > MAX_POINTS:
        raise Refused(f"an axis would be walked in {count} steps, more than {MAX_POINTS}")
    spend(count)


def _even_cuts(cuts: list[int]) -> list[int]:
    """The longest start of `cuts` whose members each divide all that follow.

    Its last member is the largest that divides all cuts that are left out.
    """
    even = [1]
    for at, cut in enumerate(cuts):
        common = gcd(*cuts[at:])
        if common > even[-1]:
            even.append(common)
        if common != cut:
            break
    return even


def compress(nests: list[Nest]) -> list[Nest]:
    """Fewer nests that visit the same: equal ones at even distances become a loop.

    Greedy from the left, level by level. No loop gets a stride that is not positive.
    """
    while True:
        packed = _compress_once(nests)
        if len(packed) == len(nests):
            return packed
        nests = packed


def _compress_once(nests: list[Nest]) -> list[Nest]:
    packed: list[Nest] = []
    at = 0
    while at < len(nests):
        end, src_step, dst_step = _even_run(nests, at)
        if end - at == 2:
            # Two alone may be the last of one run and the first of a longer one: leave that whole.
            further, *steps = _even_run(nests, at + 1)
            if further - at > 3 and steps != [src_step, dst_step]:
                end = at + 1
        src, dst, loops = nests[at]
        if end - at > 1:
            loops = ((end - at, src_step, dst_step), *loops)
        packed.append(Nest(src, dst, loops))
        at = end
    return packed


def _even_run(nests: list[Nest], at: int) -> tuple[int, int, int]:
    """Where the run of equal nests at even distances that begins at `at` ends; its steps."""
    src, dst, loops = nests[at]
    if at + 1 == len(nests) or nests[at + 1].loops != loops:
        return at + 1, 0, 0
    src_step, dst_step = nests[at + 1].src - src, nests[at + 1].dst - dst
    if src_step <= 0 or dst_step <= 0:
        return at + 1, 0, 0
    end = at + 2
    due = (src + 2 * src_step, dst + 2 * dst_step, loops)
    while end < len(nests) and nests[end] == due:
        end += 1
        due = (due[0] + src_step, due[1] + dst_step, loops)
    return end, src_step, dst_step
