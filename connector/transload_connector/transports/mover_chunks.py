"""A part's plan for one request, cut into chunks: which blocks each reads, and what it moves.

Knows nothing of memory. Pieces of a plan count positions in the holder's list; those of a chunk
count the blocks of its payload, in the order in which they are sent.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from transload_abi.plan import Batch
from transload_abi.plan.types import Sequence as Pieces
from transload_abi.wire.limits import MAX_RANGES
from transload_abi.wire.messages import Range


class Chunk(NamedTuple):
    """What one read brings.

    Attributes:
        blocks: Positions in the holder's list, ascending.
        num_blocks: How many.
        batches: What becomes of them, as many as the plan has.
    """

    blocks: tuple[Range, ...]
    num_blocks: int
    batches: tuple[Batch, ...]


def chunks(batches: Sequence[Batch], max_blocks: int) -> list[Chunk]:
    """Chunks of at most so many blocks that together bring all that batches move."""
    ranges = _ranges(batches)
    found = [
        Chunk(blocks, sum(count for _, count in blocks), ()) for blocks in _cut(ranges, max_blocks)
    ]
    # The blocks that are read have numbers of their own: without those that are not.
    ends = list(accumulate(chunk.num_blocks for chunk in found))
    begins = list(accumulate((count for _, count in ranges), initial=0))
    firsts = [first for first, _ in ranges]
    taken: list[list[Batch]] = [[] for _ in found]
    for batch in batches:
        pieces: list[list[Pieces]] = [[] for _ in found]
        for each in batch.sequences:
            at = bisect_right(firsts, each.src // batch.src_parts) - 1
            apart = (begins[at] - firsts[at]) * batch.src_parts
            _share(each._replace(src=each.src + apart), batch.src_parts, ends, pieces)
        for mine, some in zip(taken, pieces, strict=True):
            mine.append(batch._replace(sequences=tuple(some)))
    return [chunk._replace(batches=tuple(some)) for chunk, some in zip(found, taken, strict=True)]


def _ranges(batches: Sequence[Batch]) -> list[Range]:
    """The positions that batches read, ascending; neighbours are one range."""
    spans = sorted(
        (each.src // batch.src_parts, -(-(each.src + each.num_pieces) // batch.src_parts))
        for batch in batches
        for each in batch.sequences
    )
    found: list[Range] = []
    for first, end in spans:
        if found and first <= sum(found[-1]):
            begin, count = found[-1]
            found[-1] = (begin, max(count, end - begin))
        else:
            found.append((first, end - first))
    return found


def _cut(ranges: Sequence[Range], max_blocks: int) -> list[tuple[Range, ...]]:
    """Ranges in turns of so many blocks, and of so many ranges as a read may have."""
    turns: list[tuple[Range, ...]] = []
    turn: list[Range] = []
    room = max_blocks
    for first, left in ranges:
        while left:
            count = min(left, room)
            turn.append((first, count))
            first, left, room = first + count, left - count, room - count
            if not room or len(turn) == MAX_RANGES:
                turns.append(tuple(turn))
                turn, room = [], max_blocks
    return [*turns, tuple(turn)] if turn else turns


def _share(pieces: Pieces, parts: int, ends: Sequence[int], found: list[list[Pieces]]) -> None:
    """Cut pieces where chunks end; each cut counts from its chunk's begin."""
    src, dst, left = pieces
    number = bisect_right(ends, src // parts)
    while left:
        begin = ends[number - 1] * parts if number else 0
        count = min(left, ends[number] * parts - src)
        found[number].append(Pieces(src - begin, dst, count))
        src, dst, left, number = src + count, dst + count, left - count, number + 1
