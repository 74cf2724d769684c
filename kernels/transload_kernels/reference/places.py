"""Where nested loops lead: the specification of `offsets` and `loops`."""

from collections.abc import Iterator, Sequence
from itertools import product


def steps(counts: Sequence[int], *strides: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """The bytes to add to an offset, for each index of the loops, the last loop fastest.

    Args:
        counts: Of each loop, outermost first. No loops: one index. A count of 0: none.
        strides: For each side, the bytes of each loop.

    Yields:
        For each side `sum(index * stride)`.
    """
    for index in product(*(range(count) for count in counts)):
        yield tuple(sum(i * s for i, s in zip(index, side, strict=True)) for side in strides)
