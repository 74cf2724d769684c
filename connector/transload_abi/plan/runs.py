"""What a plan comes to in bytes: copies with addresses, and how many runs of which length.

Neighbouring pieces are taken together wherever their bytes are, so `k` consecutive blocks may be
one run. Counting materialises no copy.
"""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from transload_abi.plan.loops import settle
from transload_abi.plan.types import Batch, Copy, Loop, Plan, Sequence, Side, Template


class Stretch(NamedTuple):
    """Consecutive pieces at even distances on both sides.

    Attributes:
        src: Piece number of the first on the source.
        dst: On the destination.
        num_pieces: How many.
        src_stride: Bytes from piece to piece; 0 where there is one.
        dst_stride: Likewise.
    """

    src: int
    dst: int
    num_pieces: int
    src_stride: int
    dst_stride: int


def copies(plan: Plan) -> Iterator[Copy]:
    """All copies of a plan, with as few and as long runs as its pieces allow."""
    for batch in plan.batches:
        for template in batch.templates:
            src, dst = template.src, template.dst
            shapes: dict[tuple[int, int, int], tuple[int, tuple[Loop, ...]]] = {}
            for stretch in stretches(batch, template):
                if stretch[2:] not in shapes:
                    shapes[stretch[2:]] = shape(template, stretch)
                run_bytes, loops = shapes[stretch[2:]]
                yield Copy(
                    src.pool,
                    dst.pool,
                    first_byte(src, stretch.src),
                    first_byte(dst, stretch.dst),
                    run_bytes,
                    loops,
                )


def run_lengths(plan: Plan) -> Counter[int]:
    """How many runs there are, by their bytes."""
    lengths: Counter[int] = Counter()
    for batch in plan.batches:
        for template in batch.templates:
            alike = Counter(stretch[2:] for stretch in stretches(batch, template))
            for steps, count in alike.items():
                run_bytes, loops = shape(template, Stretch(0, 0, *steps))
                for loop in loops:
                    count *= loop[0]
                lengths[run_bytes] += count
    return lengths


def num_runs(plan: Plan) -> int:
    """How many runs there are: what a transport without strides has to post."""
    return run_lengths(plan).total()


def num_bytes(plan: Plan) -> int:
    """How many bytes are copied; those that are converted are not counted."""
    return sum(run_bytes * count for run_bytes, count in run_lengths(plan).items())


def first_byte(side: Side, piece: int) -> int:
    """Where a template begins for a piece."""
    block, part = divmod(piece, len(side.part_offsets))
    return side.offset + block * side.block_stride + side.part_offsets[part]


def shape(template: Template, stretch: Stretch) -> tuple[int, tuple[Loop, ...]]:
    """Run and loops of a template over a stretch."""
    across = (stretch.num_pieces, stretch.src_stride, stretch.dst_stride)
    return settle(template.run_bytes, (*template.loops, across))


def stretches(batch: Batch, template: Template) -> Iterator[Stretch]:
    """A batch's sequences, cut where a template's pieces are not at even distances."""
    src_step, dst_step = even_step(template.src), even_step(template.dst)
    for sequence in batch.sequences:
        if sequence.num_pieces == 1:
            yield Stretch(*sequence, 0, 0)
        elif src_step and dst_step:
            yield Stretch(*sequence, src_step, dst_step)
        else:
            yield from _cut(sequence, template)


def even_step(side: Side) -> int:
    """Bytes from piece to piece over all blocks; 0 where they differ."""
    num_parts = len(side.part_offsets)
    if num_parts == 1:
        return side.block_stride
    step = side.part_offsets[1]
    is_even = step * num_parts == side.block_stride and all(
        offset == part * step for part, offset in enumerate(side.part_offsets)
    )
    return step if is_even else 0


def _cut(sequence: Sequence, template: Template) -> Iterator[Stretch]:
    src, dst, count = sequence
    at = 0
    while at < count:
        end, steps = at + 1, (0, 0)
        while end < count:
            found = (
                first_byte(template.src, src + end) - first_byte(template.src, src + end - 1),
                first_byte(template.dst, dst + end) - first_byte(template.dst, dst + end - 1),
            )
            if min(found) <= 0 or (end > at + 1 and found != steps):
                break
            end, steps = end + 1, found
        yield Stretch(src + at, dst + at, end - at, *steps)
        at = end
