"""What a transport has to register: the fewest stretches of memory that hold all blocks."""

from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

from transload_abi.types import Descriptor, Group, Place, Pool


class Region(NamedTuple):
    """A contiguous stretch of a pool, in bytes."""

    pool: str
    offset: int
    num_bytes: int


def regions(descriptor: Descriptor) -> list[Region]:
    """One region for each pool, or more where the blocks of a pool lie in places far apart.

    What is between the pages of a place is registered with them, and so are pads. Groups that are
    not transferred count only where they share the place of others.
    """
    pools = {pool.id: pool for pool in descriptor.pools}
    spans: dict[str, list[tuple[int, int]]] = {pool: [] for pool in pools}
    for group in descriptor.groups:
        for number in {role.place for role in group.roles} if group.transferable else ():
            for pool in set(group.places[number].pools):
                spans[pool].append(_span(group, number, pools[pool]))
    return [region for pool, each in spans.items() for region in _merged(pool, sorted(each))]


def _merged(pool: str, spans: list[tuple[int, int]]) -> Iterator[Region]:
    """Sorted spans as few regions."""
    ends = list(accumulate((end for _, end in spans), max))
    first = 0
    for at, end in enumerate(ends):
        if at + 1 == len(ends) or spans[at + 1][0] > end:
            yield Region(pool, spans[first][0], end - spans[first][0])
            first = at + 1


def _span(group: Group, number: int, pool: Pool) -> tuple[int, int]:
    """First byte and end of a place's pages in a pool."""
    place = group.places[number]
    num_layers = len(group.layers) if len(place.pools) == 1 else 1
    begin, page = _page(group, number, place)
    last = (pool.num_blocks - 1) * place.block_stride + (num_layers - 1) * place.layer_stride
    if pool.block_bytes:
        return 0, pool.num_blocks * pool.block_bytes
    return place.offset + begin, place.offset + last + page


def _page(group: Group, number: int, place: Place) -> tuple[int, int]:
    """First byte and end of what a page holds, from its start."""
    begin, end = [], [place.page_bytes]
    for role in group.roles:
        if role.place == number:
            size = sum((extent - 1) * stride for _, _, extent, stride in role.terms) + role.bits
            begin.append(role.base_bits // 8)
            end.append(-(-(role.base_bits + size) // 8))
    return 0 if place.page_bytes else min(begin), max(end)
