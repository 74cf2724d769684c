"""Sets of bits as nested loops, and whether such sets share a bit.

**Theory.** `overlap` first parts footprints by the ranges they span. Of those whose ranges meet it
takes the largest stride `S`: where everything else spans `S` bits or fewer, only copies of the same
number can meet, so the loop is dropped from all of them without changing the answer. Otherwise the
loop is written out, copy by copy. Ordinary placements never come to that: their work grows with
the digits of an address and not with blocks, layers or heads.
"""

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from transload_abi.errors import LimitExceeded
from transload_abi.limits import MAX_PIECES

Loops = tuple[tuple[int, int], ...]


class Footprint(NamedTuple):
    """The bits `base + sum(i * stride) + j`, for all `i` below each loop's count and `j < size`.

    Attributes:
        base: First bit.
        size: Consecutive bits, at least one.
        loops: Counts, at least one, and strides in bits, not negative.
    """

    base: int
    size: int
    loops: Loops = ()

    @property
    def end(self) -> int:
        """One more than the last bit."""
        return self.base + self.size + sum((count - 1) * stride for count, stride in self.loops)


class Budget:
    """How many footprints may still be looked at; one budget can serve several questions."""

    def __init__(self, pieces: int = MAX_PIECES) -> None:
        self.left = pieces

    def spend(self, pieces: int) -> None:
        """Take that many.

        Raises:
            LimitExceeded: There are fewer left.
        """
        if pieces > self.left:
            raise LimitExceeded("the placement is too irregular to prove that no bits are shared")
        self.left -= pieces


def normalize(footprint: Footprint) -> Footprint:
    """The same bits, as often: loops by stride, those that compose merged, runs in `size`."""
    size = footprint.size
    loops: list[tuple[int, int]] = []
    for count, stride in sorted(footprint.loops, key=lambda loop: loop[1]):
        if count == 1:
            continue
        if not loops and stride == size:
            size *= count
        elif loops and stride == loops[-1][0] * loops[-1][1]:
            loops[-1] = (loops[-1][0] * count, loops[-1][1])
        else:
            loops.append((count, stride))
    return Footprint(footprint.base, size, tuple(loops))


def whole_bytes(footprint: Footprint) -> list[Footprint]:
    """All bits of the bytes that hold one of a footprint's; its numbers are of halves of bytes."""
    parts = [normalize(footprint)._replace(loops=())]
    for count, stride in normalize(footprint).loops:
        if stride % 8 == 0:
            parts = [each._replace(loops=(*each.loops, (count, stride))) for each in parts]
            continue
        # Every other copy begins at the same half of its byte.
        parts = [
            each._replace(
                base=each.base + first * stride, loops=(*each.loops, (copies, 2 * stride))
            )
            for each in parts
            for first, copies in ((0, (count + 1) // 2), (1, count // 2))
        ]
    return list(dict.fromkeys(_widened(each) for each in parts))


def _widened(part: Footprint) -> Footprint:
    inside = part.base % 8
    size = inside + part.size
    return Footprint(part.base - inside, size + -size % 8, part.loops)


def overlap(
    footprints: Iterable[Footprint], budget: Budget | None = None
) -> tuple[int, int] | None:
    """The indices of two footprints that share a bit, the lower first; None if there are none.

    Twice the same index: that footprint has a bit more than once.

    Raises:
        LimitExceeded: Not settled within the budget, `limits.MAX_PIECES` unless given.
    """
    budget = budget or Budget()
    pieces = [_Piece(normalize(each), number) for number, each in enumerate(footprints)]
    todo = [pieces]
    while todo:
        pieces = todo.pop()
        budget.spend(len(pieces))
        clusters = _clusters(pieces)
        if isinstance(clusters, _Meeting):
            return clusters.indices
        for cluster in clusters:
            simpler = _simpler(cluster, budget)
            if isinstance(simpler, _Meeting):
                return simpler.indices
            todo.append(simpler)
    return None


class _Piece(NamedTuple):
    """A part of the footprint of that number."""

    bits: Footprint
    number: int


class _Meeting(NamedTuple):
    """Two pieces that share a bit."""

    a: _Piece
    b: _Piece

    @property
    def indices(self) -> tuple[int, int]:
        return min(self.a.number, self.b.number), max(self.a.number, self.b.number)


def _clusters(pieces: list[_Piece]) -> list[list[_Piece]] | _Meeting:
    """Pieces parted by the ranges they span, without those that plainly meet nothing."""
    clusters: list[list[_Piece]] = []
    end = 0
    farthest: _Piece | None = None
    for piece in sorted(pieces, key=lambda piece: piece.bits.base):
        if farthest is None or piece.bits.base >= end:
            clusters.append([piece])
        elif not piece.bits.loops and not farthest.bits.loops:
            return _Meeting(farthest, piece)
        else:
            clusters[-1].append(piece)
        if farthest is None or piece.bits.end > end:
            farthest, end = piece, piece.bits.end
    return [each for each in clusters if len(each) > 1 or not _is_nested(each[0].bits)]


def _is_nested(bits: Footprint) -> bool:
    """Whether each loop strides over all that is inside it, so that no bit is there twice."""
    reach = bits.size
    for count, stride in bits.loops:
        if stride < reach:
            return False
        reach += (count - 1) * stride
    return True


def _simpler(cluster: list[_Piece], budget: Budget) -> list[_Piece] | _Meeting:
    """Pieces that meet if and only if those of the cluster do, with a stride fewer."""
    stride = max((loop[1] for piece in cluster for loop in piece.bits.loops), default=0)
    rest = [piece._replace(bits=_without(piece.bits, stride)) for piece in cluster]
    if stride:
        span = max(each.bits.end for each in rest) - min(each.bits.base for each in rest)
        if span <= stride:
            return rest
    return _meeting(cluster) or _written_out(cluster, stride, budget)


def _without(bits: Footprint, stride: int) -> Footprint:
    """The copy of number 0 in a loop of that stride, which may be part of a longer loop."""
    if not bits.loops:
        return bits
    count, last = bits.loops[-1]
    if last == stride:
        return bits._replace(loops=bits.loops[:-1])
    if last and stride % last == 0 and count % (stride // last) == 0:
        return bits._replace(loops=(*bits.loops[:-1], (stride // last, last)))
    return bits


def _meeting(cluster: list[_Piece]) -> _Meeting | None:
    """Two pieces that are easily seen to meet; None says nothing."""
    for piece in cluster:
        if piece.bits.loops:
            inner = piece.bits._replace(loops=piece.bits.loops[:-1])
            if _holds(inner, piece.bits.loops[-1][1]):
                return _Meeting(piece, piece)
    for a, b in pairwise(cluster):
        if _holds(a.bits, b.bits.base - a.bits.base):
            return _Meeting(a, b)
    return None


def _holds(bits: Footprint, offset: int) -> bool:
    """Whether the bit at an offset from the base is found by going down the loops once."""
    for count, stride in reversed(bits.loops):
        if stride:
            offset -= min(count - 1, offset // stride) * stride
    return offset < bits.size


def _written_out(cluster: list[_Piece], stride: int, budget: Budget) -> list[_Piece]:
    pieces = []
    for piece in cluster:
        if not piece.bits.loops or piece.bits.loops[-1][1] != stride:
            pieces.append(piece)
            continue
        count, inner = piece.bits.loops[-1][0], piece.bits.loops[:-1]
        budget.spend(count)
        pieces += [
            _Piece(Footprint(piece.bits.base + copy * stride, piece.bits.size, inner), piece.number)
            for copy in range(count)
        ]
    return pieces
